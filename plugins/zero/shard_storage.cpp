// Chooses the buckets of which ranks keep only their shard, and places the gathers, reductions and
// releases that follow.
#include "shard_storage.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace zero {
namespace {

class ShardStorage {
 public:
  ShardStorage(mw::Program& program, const ShardedStorage& storage)
      : program_(program), storage_(storage) {}

  void run() {
    const bool gradients = storage_.sharded_state >= mw::ShardedState::gradients;
    if (gradients) mw::split_buckets(program_, /*by_layer=*/true);
    if (!choose()) return;
    mw::make_flat_slots(program_);
    if (gradients && !storage_.by_chunk) {
      const std::map<int, int> buckets = buckets_of(&mw::ProgramParameter::gradient_slot);
      for (mw::Segment& segment : program_.segments) reduce_in(segment, buckets);
    }
    if (storage_.sharded_state != mw::ShardedState::parameters) return;
    const std::map<int, int> buckets = buckets_of(&mw::ProgramParameter::slot);
    for (mw::Segment& segment : program_.segments) gather_in(segment, buckets);
    if (!storage_.reshard_after_forward) gather_once();
  }

 private:
  // Whether there is any bucket of which ranks keep a shard.
  bool choose() {
    bool any = false;
    for (mw::Bucket& bucket : program_.buckets) {
      if (bucket.expert_load) continue;  // all see all counts
      for (const std::string& axis : storage_.axes) {
        for (int atom : program_.mesh.axis(axis).atoms) {
          const auto& reduce = bucket.reduce_atoms;
          const bool reduces = std::find(reduce.begin(), reduce.end(), atom) != reduce.end();
          if (reduces && program_.mesh.atoms()[atom].ways > 1) bucket.shard_atoms.push_back(atom);
        }
      }
      std::sort(bucket.shard_atoms.begin(), bucket.shard_atoms.end());
      bucket.offload = bucket.shard_atoms.empty()
                           ? std::min(storage_.offload, mw::Offload::optimizer)
                           : storage_.offload;
      if (bucket.shard_atoms.empty()) continue;
      any = true;
      bucket.sharded_state = storage_.sharded_state;
      if (bucket.sharded_state < mw::ShardedState::gradients) continue;
      bucket.overlap = false;  // reduced in every microbatch or by chunk, not after the last one
      bucket.reduce_per_chunk = storage_.by_chunk;
    }
    return any;
  }

  // Of these slots of their parameters, the buckets of which ranks keep a shard.
  std::map<int, int> buckets_of(int mw::ProgramParameter::*slot) const {
    std::map<int, int> buckets;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      if (program_.buckets[b].shard_atoms.empty()) continue;
      for (int p : program_.buckets[b].parameters) {
        buckets[program_.parameters[p].*slot] = static_cast<int>(b);
      }
    }
    return buckets;
  }

  // After a bucket's last gradient; awaited when the next that lies and is summed alike is about to
  // begin, so that two of them live at most. A layer has several where its parameters do not.
  void reduce_in(mw::Segment& segment, const std::map<int, int>& buckets) {
    if (segment.kind == mw::SegmentKind::finish) return;
    std::vector<mw::Span> list = mw::spans(segment, buckets);
    std::stable_sort(list.begin(), list.end(),
                     [](const mw::Span& a, const mw::Span& b) { return a.last < b.last; });
    mw::Insertions inserts;
    std::map<std::pair<std::vector<int>, std::vector<int>>, int> before;  // by how they lie
    for (const mw::Span& span : list) {
      const mw::Bucket& bucket = program_.buckets[span.group];
      const auto [place, first] =
          before.try_emplace({bucket.reduce_atoms, bucket.parameter_atoms}, span.group);
      if (!first) inserts.before(span.last + 1, mw::end_reduction(program_, place->second));
      inserts.before(span.last + 1, mw::begin_reduction(program_, span.group));
      place->second = span.group;
    }
    for (const auto& [how, bucket] : before)
      inserts.before(static_cast<int>(segment.code.size()), mw::end_reduction(program_, bucket));
    inserts.into(segment);
  }

  // Spans one behind the other of one layer.
  std::vector<std::vector<mw::Span>> by_layer(const mw::Segment& segment,
                                              const std::vector<mw::Span>& list) const {
    std::vector<std::vector<mw::Span>> layers;
    int before = -1;  // of no layer
    for (const mw::Span& span : list) {
      const int op = segment.code[span.first].op;
      const int layer = op < 0 ? -1 : program_.graph->ops()[op].layer;
      if (layers.empty() || layer < 0 || layer != before) layers.emplace_back();
      layers.back().push_back(span);
      before = layer;
    }
    return layers;
  }

  void gather_in(mw::Segment& segment, const std::map<int, int>& buckets) {
    const auto layers = by_layer(segment, mw::spans(segment, buckets));
    const auto ahead = static_cast<std::size_t>(storage_.prefetch);
    const char* phase = segment.kind == mw::SegmentKind::forward ? "forward" : "backward";
    mw::Insertions inserts;
    for (std::size_t n = 0; n < layers.size(); ++n) {
      if (storage_.reshard_after_forward) {
        // Before the first layer what nothing stands before.
        for (std::size_t k = n == 0 ? 0 : n + ahead; k <= n + ahead && k < layers.size(); ++k) {
          for (const mw::Span& span : layers[k])
            inserts.before(layers[n].front().first, mw::begin_gather(program_, span.group, phase));
        }
        for (const mw::Span& span : layers[n])
          segment.code[span.last].release.push_back(program_.buckets[span.group].flat.parameters);
      }
      for (const mw::Span& span : layers[n])
        inserts.before(span.first, mw::end_gather(program_, span.group, phase));
    }
    inserts.into(segment);
  }

  // All gathers at the start of the step, in the order of use; nothing lets go before its end. Each
  // is awaited by all runs that use it.
  void gather_once() {
    mw::Segment all;
    all.name = "gather";
    all.kind = mw::SegmentKind::gather;
    std::set<int> seen;
    for (const mw::SegmentRun& run : program_.timeline) {
      for (mw::Instruction& i : program_.segments[run.segment].code) {
        const bool gathers = i.code == mw::Code::wait && mw::between_lasting(program_, i) &&
                             i.bucket >= 0 && i.pending == program_.buckets[i.bucket].flat.gather;
        if (!gathers) continue;
        i.again = true;
        if (!seen.insert(i.bucket).second) continue;
        for (mw::Instruction& begins : mw::begin_gather(program_, i.bucket, "forward"))
          all.code.push_back(std::move(begins));
      }
    }
    program_.timeline.insert(program_.timeline.begin(),
                             {static_cast<int>(program_.segments.size()), -1});
    program_.segments.push_back(std::move(all));
  }

  mw::Program& program_;
  const ShardedStorage& storage_;
};

}  // namespace

mw::Pass shard_storage(const ShardedStorage& storage) {
  return {"shard storage",
          [storage](mw::Program& program) { ShardStorage(program, storage).run(); },
          mw::Pass::storage, storage.axes.front()};
}

}  // namespace zero
