// Adds the end of a step to a program: where reductions begin and are awaited, the totals of
// loss and gradient norm, the optimizer's update.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "meshwright/engine/interrupt.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

// The step's end, in three runs, so that each can be timed: what is left to reduce, the totals for
// which all ranks meet, the optimizer.
class Finish {
 public:
  Finish(Program& program, std::vector<int> under_way)
      : program_(program), under_way_(std::move(under_way)) {}

  void run() {
    using Part = std::vector<Instruction> (*)(const Program&, int);
    using Which = std::function<bool(const Bucket&)>;
    const auto reduces = [](const Bucket& b) {  // else runs before it do
      return !b.reduce_atoms.empty() && b.sharded_state < ShardedState::gradients &&
             !b.reduce_per_microbatch;
    };
    keep_gathered();
    for (const int bucket : under_way_) {
      for (Instruction& i : end_reduction(program_, bucket)) code_.push_back(std::move(i));
    }
    const auto reduces_shards = [](const Bucket& b) {
      return !b.shard_atoms.empty() && b.flat.shard_reduction >= 0;
    };
    for (const auto& [make, which] :
         {std::pair<Part, Which>{begin_reduction,
                                 [&](const Bucket& b) { return reduces(b) && !b.overlap; }},
          {end_reduction, reduces},
          {begin_shard_reduction, reduces_shards},
          {end_shard_reduction, reduces_shards}}) {
      for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
        if (!which(program_.buckets[b])) continue;
        for (Instruction& i : make(program_, static_cast<int>(b))) code_.push_back(std::move(i));
      }
    }
    end("reduce");

    Instruction loss;
    loss.code = Code::settle;
    loss.phase = "report";
    loss.outputs = {program_.loss};
    loss.label = program_.slots[program_.loss].name;
    code_.push_back(std::move(loss));
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) settle_sums(static_cast<int>(b));
    Instruction totals;
    totals.code = Code::totals;
    totals.phase = "report";
    count(totals, program_.loss, losses());
    for (const Bucket& bucket : program_.buckets) {
      const bool here = bucket.stages.empty() || bucket.stages.front() == program_.stage;
      if (here && !bucket.counts) count(totals, bucket.flat.reduced, parts(bucket));
    }
    totals.label = "loss, gradient norm";
    code_.push_back(totals);
    end("totals");

    // Parameters that all keep whole are gathered from those who updated them.
    const auto gathers = [](const Bucket& b) {
      return b.sharded_state == ShardedState::optimizer ||
             b.sharded_state == ShardedState::gradients;
    };
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int bucket = static_cast<int>(b);
      add_updates(program_, bucket, code_);
      if (gathers(program_.buckets[b])) {
        for (Instruction& i : begin_gather(program_, bucket, "parameters"))
          code_.push_back(std::move(i));
      }
    }
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      if (gathers(program_.buckets[b]))
        code_.push_back(end_gather(program_, static_cast<int>(b), "parameters"));
    }
    end("update");
  }

 private:
  // One more quantity of the totals, of which ranks along these atoms hold parts, or parts of a
  // sum: along all others they hold it alike.
  void count(Instruction& totals, int slot, const std::vector<int>& atoms) const {
    totals.inputs.push_back(slot);
    std::vector<int>& alike = totals.contributing.emplace_back();
    for (int a = 0; a < static_cast<int>(program_.mesh.atoms().size()); ++a) {
      if (a != program_.stage_atom && std::find(atoms.begin(), atoms.end(), a) == atoms.end())
        alike.push_back(a);
    }
  }
  static std::vector<int> parts(const Bucket& bucket) {
    std::vector<int> atoms = bucket.parameter_atoms;
    atoms.insert(atoms.end(), bucket.shard_atoms.begin(), bucket.shard_atoms.end());
    return atoms;
  }
  // Where any of the stage's losses is a sum over ranks.
  std::vector<int> losses() const {
    std::vector<int> atoms;
    for (const Segment& segment : program_.segments) {
      for (const Instruction& i : segment.code) {
        if (i.code != Code::add || i.outputs[0] != program_.loss) continue;
        const Layout& layout = program_.slots[i.inputs[0]].layout;
        for (std::size_t a = 0; a < layout.size(); ++a) {
          if (layout[a].is_partial()) atoms.push_back(static_cast<int>(a));
        }
      }
    }
    return atoms;
  }

  // What no reduction has settled, as it is not reduced or is kept apart.
  void settle_sums(int bucket) {
    const Bucket& b = program_.buckets[bucket];
    if (b.flat.shard_reduction >= 0) return;
    const std::vector<int> sums = sums_of(program_, bucket);
    if (sums.back() == b.flat.reduced) code_.push_back(settled(program_, bucket, b.flat.reduced));
  }

  // Parameters that were gathered and that no instruction lets go of stay until the step ends.
  void keep_gathered() {
    std::set<int> gathered, released;
    for (const Segment& segment : program_.segments) {
      for (const Instruction& i : segment.code) {
        if (i.code == Code::start && between_lasting(program_, i)) gathered.insert(i.outputs[0]);
        released.insert(i.release.begin(), i.release.end());
      }
    }
    for (const Bucket& bucket : program_.buckets) {
      const int slot = bucket.flat.parameters;
      if (gathered.count(slot) > 0 && released.count(slot) == 0) kept_.push_back(slot);
    }
  }

  void end(const char* name) {
    if (code_.empty()) return;
    for (int slot : std::exchange(kept_, {})) code_.front().release.push_back(slot);
    Segment segment;
    segment.name = name;
    segment.kind = SegmentKind::finish;
    segment.code = std::move(code_);
    code_.clear();
    program_.timeline.push_back({static_cast<int>(program_.segments.size()), -1});
    program_.segments.push_back(std::move(segment));
  }

  Program& program_;
  const std::vector<int> under_way_;  // buckets whose reductions have begun
  std::vector<Instruction> code_;
  std::vector<int> kept_;  // what ends with the step
};

// The starts of reductions after these instructions of a segment: each the instruction's index and
// the bucket; of several after one, the last bucket first.
Insertions started_after(const Program& program, const std::vector<std::pair<int, int>>& starts) {
  Insertions begun;
  for (auto start = starts.rbegin(); start != starts.rend(); ++start)
    begun.before(start->first + 1, begin_reduction(program, start->second));
  return begun;
}

// Puts the starts of overlapped reductions into the timeline's runs that make their gradients
// whole. A run with reductions gets a segment of its own:
// each stands right after the last gradient of its bucket.
void place_reductions(Program& program) {
  const auto ready = gradients_ready(program);
  std::map<int, std::vector<std::pair<int, int>>> starts;  // run -> after which instruction, bucket
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].overlap || program.buckets[b].reduce_per_microbatch) continue;
    std::pair<int, int> last{-1, -1};
    for (int parameter : program.buckets[b].parameters) last = std::max(last, ready[parameter]);
    if (last.first < 0) {
      program.buckets[b].overlap = false;
    } else {
      starts[last.first].emplace_back(last.second, static_cast<int>(b));
    }
  }
  for (auto& [run, list] : starts) {
    const int of = program.timeline[run].segment;
    Insertions begun = started_after(program, list);
    program.timeline[run].segment = add_copy(program, of, "last", begun);
  }
}

// The buckets of gradients kept as shards whose reductions have begun and which no run awaits, in
// the order in which they began.
std::vector<int> reductions_under_way(const Program& program) {
  const auto reduces = [](const Bucket& b) { return b.sharded_state >= ShardedState::gradients; };
  std::vector<int> under_way;
  if (std::none_of(program.buckets.begin(), program.buckets.end(), reduces)) return under_way;
  for (const SegmentRun& run : program.timeline) {
    for (const Instruction& i : program.segments[run.segment].code) {
      if (i.bucket < 0 || i.pending < 0 || !reduces(program.buckets[i.bucket]) ||
          i.pending != program.buckets[i.bucket].flat.reduction)
        continue;
      if (i.code == Code::start) {
        under_way.push_back(i.bucket);
      } else {
        std::erase(under_way, i.bucket);
      }
    }
  }
  return under_way;
}

// Reductions of buckets that every run which adds to them reduces: begun after its last gradient,
// or at the end, and awaited there.
void place_each(Program& program) {
  std::map<int, int> bucket_of;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].reduce_per_microbatch) continue;
    for (const int p : program.buckets[b].parameters)
      bucket_of[program.parameters[p].gradient_slot] = static_cast<int>(b);
  }
  if (bucket_of.empty()) return;
  for (Segment& segment : program.segments) {
    std::vector<Span> written = spans(segment, bucket_of);
    std::sort(written.begin(), written.end(),
              [](const Span& a, const Span& b) { return a.group < b.group; });
    const int end = static_cast<int>(segment.code.size());
    std::vector<std::pair<int, int>> starts;  // after which instruction, bucket
    for (const Span& span : written) {
      starts.emplace_back(program.buckets[span.group].overlap ? span.last : end - 1, span.group);
    }
    started_after(program, starts).into(segment);
    for (const Span& span : written) {
      for (Instruction& ends : end_reduction(program, span.group))
        segment.code.push_back(std::move(ends));
    }
  }
}

// The sums of a step begin in a segment before all others. Those that come and go begin when they
// are made.
void begin_sums(Program& program) {
  Instruction begin;
  begin.code = Code::begin_sum;
  begin.phase = "report";
  begin.outputs = {program.loss};
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    for (const int slot : sums_of(program, static_cast<int>(b))) {
      if (!program.slots[slot].transient) begin.outputs.push_back(slot);
    }
  }
  begin.label = "sums of the step";
  Segment segment;
  segment.name = "begin";
  segment.kind = SegmentKind::begin;
  segment.code = {std::move(begin)};
  program.timeline.insert(program.timeline.begin(),
                          {static_cast<int>(program.segments.size()), -1});
  program.segments.push_back(std::move(segment));
}

}  // namespace

void complete(Program& program, const std::vector<Pass>& passes) {
  throw_if_stopped();
  make_flat_slots(program);
  place_each(program);
  for (const Pass& pass : passes) {
    if (pass.finish) pass.finish(program);
  }
  std::vector<int> under_way = reductions_under_way(program);
  place_reductions(program);
  Finish(program, std::move(under_way)).run();
  begin_sums(program);
  throw_if_stopped();
  grant_in_place(program);
  note_releases(program);
}

}  // namespace mw
