// Adds the end of a step to a program: where reductions begin and are awaited, the totals of
// loss and gradient norm, the optimizer's update.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "meshwright/engine/interrupt.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

// The buckets whose reductions a program's timeline has begun or awaited by its end.
struct UnawaitedTransfer {
  std::vector<int> underway;  // begun and not awaited, in the order of their starts
  std::set<int> over;         // awaited by a run
  // whose gradient shards a run has begun to sum over groups of ranks
  std::set<int> shards_underway;
};

UnawaitedTransfer begun_by_runs(const Program& program) {
  UnawaitedTransfer found;
  const auto transfers = transfers_of_buckets(program);
  for (const SegmentRun& run : program.timeline) {
    for (const int n : transfers[run.segment]) {
      const Instruction& i = program.segments[run.segment].code[n];
      if (i.serves == Serves::gradient_shards) found.shards_underway.insert(i.bucket);
      if (i.serves != Serves::gradients) continue;
      if (i.begins_transfer()) {
        found.over.erase(i.bucket);
        found.underway.push_back(i.bucket);
      } else {
        std::erase(found.underway, i.bucket);
        found.over.insert(i.bucket);
      }
    }
  }
  return found;
}

// The step's end, in three runs, so that each can be timed: what is left to reduce, the totals for
// which all ranks meet, the optimizer.
class Finish {
 public:
  // `updates`: the buckets in the order in which they are updated. `copied`: the buckets whose
  // gradients a run has copied to host memory.
  Finish(Program& program, std::vector<int> updates, std::set<int> copied)
      : program_(program),
        begun_(begun_by_runs(program)),
        updates_(std::move(updates)),
        copied_(std::move(copied)) {
    std::erase_if(updates_, [&](int b) { return program_.buckets[b].update_overlaps_forward; });
  }

  void run() {
    keep_gathered();
    reduce();
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int bucket = static_cast<int>(b);
      if (program_.buckets[b].updated_on_host() && copied_.count(bucket) == 0)
        append(gradients_to_host(program_, bucket));
    }
    end("reduce");
    if (!program_.update_needs_totals) update_on_host_first();

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
      if (bucket.counts || bucket.frozen) continue;
      count(totals, bucket.flat.reduced, parts(bucket));
      // The first of several stages counts the bucket. The others, none of which is stage 0, add 0
      // times their copy, which is NaN where a number of it is not finite.
      if (!bucket.stages.empty() && bucket.stages.front() != program_.stage)
        totals.contributing.back().push_back(program_.stage_atom);
    }
    totals.label = "loss, gradient norm";
    code_.push_back(totals);
    end("totals");

    update(updates_);
    end("update");
  }

 private:
  void update(const std::vector<int>& buckets) {
    // A bucket's states travel to the device while the bucket before it is updated.
    if (!buckets.empty()) append(bring_to_device(program_, buckets.front()));
    for (std::size_t n = 0; n < buckets.size(); ++n) {
      if (n + 1 < buckets.size()) append(bring_to_device(program_, buckets[n + 1]));
      add_updates(program_, buckets[n], code_);
      if (program_.buckets[buckets[n]].gathered_once_updated())
        append(begin_gather(program_, buckets[n], "parameters"));
    }
    for (const int bucket : buckets) {
      const Bucket& b = program_.buckets[bucket];
      if (b.gathered_once_updated() && !b.gather_overlaps_forward)
        code_.push_back(end_gather(program_, bucket, "parameters"));
    }
  }

  // Updates the buckets in host memory that wait for no totals, in the order in which their
  // gradients arrive there. The host runs ahead of the device and updates them while the device is
  // still in the backward.
  void update_on_host_first() {
    std::vector<int> arrived;
    for (const SegmentRun& run : program_.timeline) {
      for (const Instruction& i : program_.segments[run.segment].code) {
        const bool arrives = i.code == Code::copy && i.serves == Serves::gradients &&
                             program_.slots[i.outputs[0]].memory == Memory::host;
        if (arrives && program_.buckets[i.bucket].update_overlaps) arrived.push_back(i.bucket);
      }
    }
    update(arrived);
    end("host update");
    std::erase_if(updates_, [&](int b) {
      return std::find(arrived.begin(), arrived.end(), b) != arrived.end();
    });
  }

  void append(std::vector<Instruction> code) {
    for (Instruction& i : code) code_.push_back(std::move(i));
  }

  // Reduces what no run has reduced, and awaits what runs have begun to reduce.
  void reduce() {
    const auto keeps_shards = [](const Bucket& b) {
      return b.sharded_state >= ShardedState::gradients;
    };
    for (const int bucket : begun_.underway) {
      if (keeps_shards(program_.buckets[bucket])) append(end_reduction(program_, bucket));
    }
    std::vector<int> reduced, shards;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const int number = static_cast<int>(b);
      if (!bucket.shard_atoms.empty() && bucket.flat.shard_reduction >= 0) shards.push_back(number);
      const bool left = begun_.over.count(number) == 0 && !bucket.frozen;
      if (!bucket.reduce_atoms.empty() && !keeps_shards(bucket) && left) reduced.push_back(number);
    }
    const auto& underway = begun_.underway;
    for (const int b : reduced) {
      if (std::find(underway.begin(), underway.end(), b) == underway.end())
        append(begin_reduction(program_, b));
    }
    for (const int b : reduced) append(end_reduction(program_, b));
    for (const int b : shards) {
      if (begun_.shards_underway.count(b) == 0) append(begin_shard_reduction(program_, b));
    }
    for (const int b : shards) append(end_shard_reduction(program_, b));
  }

  // Adds a slot to the totals. Ranks along `atoms` hold parts of it, or parts of a sum. Along all
  // other atoms they hold it alike, and one of them counts it.
  void count(Instruction& totals, int slot, const std::vector<int>& atoms) const {
    totals.inputs.push_back(slot);
    std::vector<int>& alike = totals.contributing.emplace_back();
    for (int a = 0; a < static_cast<int>(program_.mesh.atoms().size()); ++a) {
      const bool apart = slot != program_.loss && program_.parts_replicas(a);
      if (a != program_.stage_atom && !apart && std::ranges::count(atoms, a) == 0)
        alike.push_back(a);
    }
  }
  static std::vector<int> parts(const Bucket& bucket) {
    std::vector<int> atoms = bucket.parameter_atoms;
    atoms.insert(atoms.end(), bucket.shard_atoms.begin(), bucket.shard_atoms.end());
    return atoms;
  }
  // The atoms along which any of the stage's losses is a sum over ranks.
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

  // Settles the bucket's sums that neither a reduction nor a copy to host memory has settled.
  void settle_sums(int bucket) {
    const Bucket& b = program_.buckets[bucket];
    if (b.flat.shard_reduction >= 0 || b.updated_on_host() || b.frozen) return;
    const std::vector<int> sums = sums_of(program_, bucket);
    if (sums.back() == b.flat.reduced) code_.push_back(settled(program_, bucket, b.flat.reduced));
  }

  // Parameters that were gathered and that no instruction lets go of stay until the step ends.
  void keep_gathered() {
    std::set<int> gathered, released;
    for (const Segment& segment : program_.segments) {
      for (const Instruction& i : segment.code) {
        const bool starts =
            i.code == Code::start || (i.begins_transfer() && i.serves == Serves::parameters);
        if (starts && between_lasting(program_, i)) gathered.insert(i.outputs[0]);
        released.insert(i.release.begin(), i.release.end());
      }
    }
    for (const Bucket& bucket : program_.buckets) {
      const int slot = bucket.flat.parameters;
      if (program_.slots[slot].transient && gathered.count(slot) > 0 && released.count(slot) == 0)
        kept_.push_back(slot);
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
  const UnawaitedTransfer begun_;
  std::vector<int> updates_;
  const std::set<int> copied_;
  std::vector<Instruction> code_;
  std::vector<int> kept_;  // slots of gathered parameters that are released at the step's end
};

// Whether the bucket's gradient shards are also summed over groups of ranks that keep the same
// ones. A bucket that several stages share is left to the end of the step, as they reach it at
// different times.
bool is_summed_further(const Bucket& b) {
  return !b.shard_atoms.empty() && b.flat.shard_reduction >= 0 && b.stages.empty();
}

// Whether another stage waits for what the segment computes.
bool sends(const Segment& segment) {
  return std::ranges::any_of(segment.code, [](const Instruction& i) {
    return i.code == Code::start && i.move.kind == Move::Kind::send;
  });
}

// Insertions that start reductions in a segment. `starts`: the index of the instruction to follow,
// and the bucket. Where several follow one instruction, the last bucket starts first. A reduction
// whose sum goes on to host memory is awaited right before the next one begins; `sums_on`: also one
// whose sum goes on to other groups of ranks.
Insertions started_after(const Program& program, std::vector<std::pair<int, int>> starts,
                         bool sums_on) {
  std::sort(starts.begin(), starts.end(), [](const auto& a, const auto& b) {
    return std::pair{a.first, -a.second} < std::pair{b.first, -b.second};
  });
  Insertions begun;
  int before = -1;
  for (const auto& [after, bucket] : starts) {
    if (before >= 0) begun.before(after + 1, end_reduction(program, before));
    begun.before(after + 1, begin_reduction(program, bucket));
    const Bucket& b = program.buckets[bucket];
    const bool follows = b.updated_on_host() || (sums_on && is_summed_further(b));
    before = follows && !b.reduce_per_microbatch && b.stages.empty() ? bucket : -1;
  }
  return begun;
}

// Puts the starts of overlapped reductions into the timeline's runs that make their gradients
// whole. A run with reductions gets a segment of its own: each start stands right after the last
// gradient of its bucket. In a run that no other stage waits for, the sums over further groups of
// ranks begin too (place_shard_reductions).
void place_reductions(Program& program) {
  if (std::none_of(program.buckets.begin(), program.buckets.end(),
                   [](const Bucket& b) { return b.overlap; }))
    return;
  const auto ready = gradients_ready(program);
  std::map<int, std::vector<std::pair<int, int>>> starts;  // run -> (instruction to follow, bucket)
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
    Insertions begun = started_after(program, list, !sends(program.segments[of]));
    program.timeline[run].segment = add_copy(program, of, "last", begun);
  }
}

// Begins to sum gradient shards over further groups of ranks as soon as the last microbatch's sum
// is there. This is left to the end of the step for a bucket whose reduction no run awaits.
void place_shard_reductions(Program& program) {
  std::map<int, Insertions> begun;  // by run of the timeline
  if (std::none_of(program.buckets.begin(), program.buckets.end(), is_summed_further)) return;
  for (const auto& [bucket, place] : last_sums(program)) {
    if (is_summed_further(program.buckets[bucket]))
      begun[place.first].before(place.second, begin_shard_reduction(program, bucket));
  }
  for (auto& [run, inserts] : begun)
    insert_in_run(program, static_cast<std::size_t>(run), "last", inserts);
}

// Places reductions of buckets that are reduced in every microbatch: begun after a segment's last
// gradient of the bucket, or at the segment's end, and awaited there.
void place_each(Program& program) {
  std::map<int, int> bucket_of;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].reduce_per_microbatch) continue;
    for (const int p : program.buckets[b].parameters)
      bucket_of[program.parameters[p].gradient_slot] = static_cast<int>(b);
  }
  bucket_of.erase(-1);  // frozen parameters have no gradients
  if (bucket_of.empty()) return;
  for (Segment& segment : program.segments) {
    std::vector<Span> written = spans(segment, bucket_of);
    std::sort(written.begin(), written.end(),
              [](const Span& a, const Span& b) { return a.group < b.group; });
    const int end = static_cast<int>(segment.code.size());
    std::vector<std::pair<int, int>> starts;  // (instruction to follow, bucket)
    for (const Span& span : written) {
      starts.emplace_back(program.buckets[span.group].overlap ? span.last : end - 1, span.group);
    }
    started_after(program, starts, /*sums_on=*/false).into(segment);
    for (const Span& span : written) {
      for (Instruction& ends : end_reduction(program, span.group))
        segment.code.push_back(std::move(ends));
    }
  }
}

// Adds the segment, before all others, that begins the sums of the step. A sum in a transient slot
// begins when the slot is made.
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
  for (const Pass& pass : passes) finish_held(pass, program);
  place_reductions(program);
  place_shard_reductions(program);
  std::set<int> copied = place_gradient_copies(program);
  std::vector<int> order = place_updates(program);
  Finish(program, std::move(order), std::move(copied)).run();
  begin_sums(program);
  throw_if_stopped();
  for (const Pass& pass : passes) rearrange_held(pass, program);
  grant_in_place(program);
  note_releases(program);
}

}  // namespace mw
