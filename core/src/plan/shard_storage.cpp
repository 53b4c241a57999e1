// The pass behind ZeRO: buckets of which ranks keep only their shard, with the gathers,
// reductions and releases that follow.
#include <algorithm>
#include <map>
#include <set>

#include "meshwright/passes.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

using OrderedInserts = std::multimap<int, Instruction>;  // before which instruction

void insert_all(OrderedInserts& inserts, int before, const std::vector<Instruction>& code) {
  for (const Instruction& i : code) inserts.emplace(before, i);
}

void insert(Segment& segment, const OrderedInserts& inserts) {
  std::vector<Instruction> code;
  auto next = inserts.begin();
  for (std::size_t i = 0; i <= segment.code.size(); ++i) {
    for (; next != inserts.end() && next->first == static_cast<int>(i); ++next) {
      code.push_back(next->second);
    }
    if (i < segment.code.size()) code.push_back(std::move(segment.code[i]));
  }
  segment.code = std::move(code);
}

// A use of a bucket's slots in a segment: first and last instruction.
struct Span {
  int bucket = -1, first = -1, last = -1;
};

class ShardStorage {
 public:
  ShardStorage(Program& program, const ShardedStorage& storage)
      : program_(program), storage_(storage) {}

  void run() {
    if (storage_.sharded_state >= ShardedState::gradients)
      split_buckets(program_, /*by_layer=*/true);
    bool any = false;
    for (Bucket& bucket : program_.buckets) {
      if (bucket.expert_load) continue;  // all see all counts
      for (int atom : program_.mesh.axis(storage_.axis).atoms) {
        const auto& reduce = bucket.reduce;
        const bool reduces = std::find(reduce.begin(), reduce.end(), atom) != reduce.end();
        if (reduces && program_.mesh.atoms()[atom].ways > 1) bucket.shard_atoms.push_back(atom);
      }
      bucket.offload = bucket.shard_atoms.empty() ? std::min(storage_.offload, Offload::optimizer)
                                                  : storage_.offload;
      if (bucket.shard_atoms.empty()) continue;
      any = true;
      bucket.sharded_state = storage_.sharded_state;
      bucket.reshard_after_forward = storage_.reshard_after_forward;
      // Reduced in every microbatch, not after the last.
      if (bucket.sharded_state >= ShardedState::gradients) bucket.overlap = false;
    }
    if (!any) return;
    make_flat_slots(program_);
    if (storage_.sharded_state >= ShardedState::gradients) {
      for (Segment& segment : program_.segments) reduce_in(segment);
    }
    if (storage_.sharded_state != ShardedState::parameters) return;
    for (Segment& segment : program_.segments) gather_in(segment);
    if (!storage_.reshard_after_forward) gather_once();
  }

 private:
  std::vector<Span> spans(const Segment& segment, bool gradients) const {
    std::map<int, int> bucket_of;  // slot -> bucket
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      if (program_.buckets[b].shard_atoms.empty()) continue;
      for (int p : program_.buckets[b].parameters) {
        const ProgramParameter& parameter = program_.parameters[p];
        bucket_of[gradients ? parameter.gradient_slot : parameter.slot] = static_cast<int>(b);
      }
    }
    std::vector<Span> list;  // by first use
    for (std::size_t i = 0; i < segment.code.size(); ++i) {
      for_each_slot(segment.code[i], [&](int slot) {
        const auto found = bucket_of.find(slot);
        if (found == bucket_of.end()) return;
        const auto known = std::find_if(list.begin(), list.end(),
                                        [&](const Span& s) { return s.bucket == found->second; });
        if (known == list.end()) {
          list.push_back({found->second, static_cast<int>(i), static_cast<int>(i)});
        } else {
          known->last = static_cast<int>(i);
        }
      });
    }
    return list;
  }

  // After a bucket's last gradient; awaited when the next is about to begin, so that two whole
  // buckets live at most.
  void reduce_in(Segment& segment) {
    if (segment.kind == SegmentKind::finish) return;
    std::vector<Span> list = spans(segment, true);
    std::stable_sort(list.begin(), list.end(),
                     [](const Span& a, const Span& b) { return a.last < b.last; });
    OrderedInserts inserts;
    int before = -1;
    for (const Span& span : list) {
      if (before >= 0) insert_all(inserts, span.last + 1, end_reduction(program_, before));
      insert_all(inserts, span.last + 1, begin_reduction(program_, span.bucket));
      before = span.bucket;
    }
    if (before >= 0) {
      insert_all(inserts, static_cast<int>(segment.code.size()), end_reduction(program_, before));
    }
    insert(segment, inserts);
  }

  void gather_in(Segment& segment) {
    const std::vector<Span> list = spans(segment, false);
    const auto ahead = static_cast<std::size_t>(storage_.prefetch);
    const char* phase = segment.kind == SegmentKind::forward ? "forward" : "backward";
    OrderedInserts inserts;
    if (storage_.reshard_after_forward) {
      for (const Span& span : list) {
        segment.code[span.last].release.push_back(program_.buckets[span.bucket].flat.parameters);
      }
    }
    for (std::size_t n = 0; n < list.size(); ++n) {
      if (storage_.reshard_after_forward) {
        if (n == 0) {  // what nothing stands before
          for (std::size_t k = 0; k <= ahead && k < list.size(); ++k) {
            inserts.emplace(list[0].first, begin_gather(program_, list[k].bucket, phase));
          }
        } else if (n + ahead < list.size()) {
          inserts.emplace(list[n].first, begin_gather(program_, list[n + ahead].bucket, phase));
        }
      }
      inserts.emplace(list[n].first, end_gather(program_, list[n].bucket, phase));
    }
    insert(segment, inserts);
  }

  // All gathers at the start of the step, in the order of use; finish lets go.
  void gather_once() {
    Segment all;
    all.name = "gather";
    all.kind = SegmentKind::gather;
    std::set<int> seen;
    for (const SegmentRun& run : program_.timeline) {
      for (const Instruction& i : program_.segments[run.segment].code) {
        const bool gathers = i.code == Code::wait && i.bucket >= 0 &&
                             i.pending == program_.buckets[i.bucket].flat.gather;
        if (gathers && seen.insert(i.bucket).second)
          all.code.push_back(begin_gather(program_, i.bucket, "forward"));
      }
    }
    program_.timeline.insert(program_.timeline.begin(),
                             {static_cast<int>(program_.segments.size()), -1});
    program_.segments.push_back(std::move(all));
  }

  Program& program_;
  const ShardedStorage storage_;
};

}  // namespace

Pass shard_storage(const ShardedStorage& storage) {
  return {"shard storage", [storage](Program& program) { ShardStorage(program, storage).run(); },
          Pass::storage, storage.axis};
}

}  // namespace mw
