// Places what goes on beyond a step's end: the next step's forward awaits the gathers of updated
// parameters, and makes the updates in host memory; the backward copies the gradients for these to
// host memory as it sums them.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {

std::vector<std::vector<int>> transfers_of_buckets(const Program& program) {
  std::vector<std::vector<int>> found(program.segments.size());
  for (std::size_t s = 0; s < found.size(); ++s) {
    const std::vector<Instruction>& code = program.segments[s].code;
    for (std::size_t n = 0; n < code.size(); ++n) {
      if (code[n].has_bucket() && code[n].pending >= 0) found[s].push_back(static_cast<int>(n));
    }
  }
  return found;
}

std::map<int, std::pair<int, int>> last_sums(const Program& program) {
  std::map<int, std::pair<int, int>> last;
  const auto transfers = transfers_of_buckets(program);
  for (std::size_t r = 0; r < program.timeline.size(); ++r) {
    const int segment = program.timeline[r].segment;
    const std::vector<Instruction>& code = program.segments[segment].code;
    for (const int n : transfers[segment]) {
      const int bucket = code[n].bucket;
      if (code[n].serves != Serves::gradients) continue;
      if (code[n].begins_transfer()) last.erase(bucket);
      if (!code[n].awaits_transfer()) continue;
      auto end = static_cast<std::size_t>(n) + 1;
      while (end < code.size() && code[end].bucket == bucket &&
             (code[end].code == Code::copy || code[end].code == Code::add))
        ++end;
      last[bucket] = {static_cast<int>(r), static_cast<int>(end)};
    }
  }
  return last;
}

bool runs_once(const Program& program, int segment) {
  return std::count_if(program.timeline.begin(), program.timeline.end(),
                       [&](const SegmentRun& r) { return r.segment == segment; }) == 1;
}

void insert_in_run(Program& program, std::size_t run, const char* suffix, Insertions& inserts) {
  int& segment = program.timeline[run].segment;
  if (runs_once(program, segment)) {
    inserts.into(program.segments[segment]);
  } else {
    segment = add_copy(program, segment, suffix, inserts);
  }
}

namespace {

// The update of a bucket that the step before has left, and the gather that follows it.
std::vector<Instruction> left_update(const Program& program, int bucket) {
  std::vector<Instruction> code = update_on_host(program, bucket);
  if (program.buckets[bucket].gathered_once_updated()) {
    for (Instruction& i : begin_gather(program, bucket, "parameters")) code.push_back(std::move(i));
  }
  return code;
}

// Places in the forward, before each bucket's parameters are first read, the bucket's update that
// the step before has left and the wait for its gather.
class ForwardUpdates {
 public:
  explicit ForwardUpdates(Program& program) : program_(program) {
    for (std::size_t b = 0; b < program.buckets.size(); ++b) {
      Bucket& bucket = program.buckets[b];
      const bool whole = !bucket.gathered_once_updated() || bucket.gather_overlaps_forward;
      bucket.update_overlaps_forward =
          bucket.update_overlaps && bucket.updated_on_host() && whole &&
          program.update_needs_totals;  // else the update runs beside the backward
      if (!bucket.gather_overlaps_forward && !bucket.update_overlaps_forward) continue;
      const int number = static_cast<int>(b);
      if (bucket.sharded_state == ShardedState::parameters) {
        bucket_of_[bucket.flat.stored] = bucket_of_[bucket.flat.on_device] = number;
        continue;
      }
      for (const int p : bucket.parameters) bucket_of_[program.parameters[p].slot] = number;
    }
    bucket_of_.erase(-1);
  }

  std::vector<int> run() {
    std::set<int> segments;
    for (std::size_t r = 0; r < program_.timeline.size(); ++r) {
      const int segment = program_.timeline[r].segment;
      if (program_.segments[segment].kind != SegmentKind::forward) continue;
      if (segments.insert(segment).second) place(r);
    }
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int bucket = static_cast<int>(b);
      if (ordered(bucket)) continue;
      program_.buckets[b].gather_overlaps_forward = false;
      program_.buckets[b].update_overlaps_forward = false;
      order_.push_back(bucket);
    }
    return order_;
  }

 private:
  bool ordered(int bucket) const {
    return std::find(order_.begin(), order_.end(), bucket) != order_.end();
  }

  // Places the updates and waits of a forward segment. Its first run makes the updates of the
  // buckets that no run before it reads.
  void place(std::size_t run) {
    const int segment = program_.timeline[run].segment;
    const std::vector<Span> reads = spans(program_.segments[segment], bucket_of_);
    Insertions first, all;
    bool updates = false;
    for (std::size_t n = 0; n < reads.size(); ++n) {
      // Parameters that are kept whole travel while the bucket before them is computed with. Shards
      // are updated where their own gather begins, which is as far ahead as the strategy says.
      for (std::size_t k = n == 0 ? 0 : n + 1; k <= n + 1 && k < reads.size(); ++k)
        updates = update(first, segment, reads[k], reads[n].first) || updates;
      for (Insertions* inserts : {&first, &all}) await(*inserts, reads[n]);
    }
    if (!updates || runs_once(program_, segment)) {
      first.into(program_.segments[segment]);
      return;
    }
    program_.timeline[run].segment = add_copy(program_, segment, "first", first);
    all.into(program_.segments[segment]);
  }

  bool update(Insertions& inserts, int segment, const Span& read, int ahead) {
    const Bucket& bucket = program_.buckets[read.group];
    const bool shards = bucket.sharded_state == ShardedState::parameters;
    // A gather that another segment has begun leaves no place for the update.
    const bool begun = program_.segments[segment].code[read.first].awaits_transfer();
    if (ordered(read.group) || (shards && begun)) return false;
    order_.push_back(read.group);
    if (!bucket.update_overlaps_forward) return false;
    inserts.before(shards ? read.first : ahead, left_update(program_, read.group));
    return true;
  }

  void await(Insertions& inserts, const Span& read) {
    if (!program_.buckets[read.group].gather_overlaps_forward) return;
    Instruction wait = end_gather(program_, read.group, "parameters");
    wait.again = true;
    inserts.before(read.first, std::move(wait));
  }

  Program& program_;
  std::map<int, int> bucket_of_;  // bucket, by the slot whose first read needs it updated
  std::vector<int> order_;
};

}  // namespace

std::set<int> place_gradient_copies(Program& program) {
  std::set<int> copied;
  if (std::none_of(program.buckets.begin(), program.buckets.end(),
                   [](const Bucket& b) { return b.updated_on_host(); }))
    return copied;
  std::map<int, std::pair<int, int>> whole = last_sums(program);
  const auto ready = gradients_ready(program);
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!program.buckets[b].reduce_atoms.empty()) continue;
    std::pair<int, int> last{-1, -1};
    for (const int parameter : program.buckets[b].parameters)
      last = std::max(last, ready[parameter]);
    if (last.first >= 0) whole[static_cast<int>(b)] = {last.first, last.second + 1};
  }
  std::map<int, Insertions> inserts;  // by run of the timeline
  for (const auto& [bucket, place] : whole) {
    const Bucket& b = program.buckets[bucket];
    const bool summed = b.flat.shard_reduction < 0 && b.stages.empty();
    if (!b.updated_on_host() || !summed) continue;
    inserts[place.first].before(place.second, gradients_to_host(program, bucket));
    copied.insert(bucket);
  }
  for (auto& [run, list] : inserts)
    insert_in_run(program, static_cast<std::size_t>(run), "last", list);
  return copied;
}

std::vector<int> place_updates(Program& program) {
  return ForwardUpdates(program).run();
}

}  // namespace mw
