// Reductions of gradients that are kept as shards and added up whole while a stage's backward stays
// with one chunk of the model: where in the timeline it turns to another, and the copies of its
// segments that reduce there.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "plan/build.h"

namespace mw {

std::map<int, int> bucket_of_gradients(const Program& program, bool Bucket::*chosen) {
  std::map<int, int> bucket_of;
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    if (!(program.buckets[b].*chosen)) continue;
    for (int p : program.buckets[b].parameters)
      bucket_of[program.parameters[p].gradient_slot] = static_cast<int>(b);
  }
  return bucket_of;
}

std::string fresh_name(const Program& program, const std::string& name) {
  std::string fresh = name;
  const auto is_taken = [&](const Segment& segment) { return segment.name == fresh; };
  for (int n = 2; std::any_of(program.segments.begin(), program.segments.end(), is_taken); ++n)
    fresh = fmt::format("{}.{}", name, n);
  return fresh;
}

namespace {

class ByChunk {
 public:
  ByChunk(Program& program, const std::map<int, int>& bucket_of) : program_(program) {
    for (const Segment& segment : program.segments) {
      written_.push_back(spans(segment, bucket_of));
      std::stable_sort(written_.back().begin(), written_.back().end(),
                       [](const Span& a, const Span& b) { return a.last < b.last; });
    }
  }

  // Returns the buckets whose reductions are under way after the last run.
  std::vector<int> run() {
    const std::vector<std::vector<int>> reduced = last_runs();
    std::vector<int> underway;
    for (std::size_t r = 0; r < reduced.size(); ++r) {
      int& segment = program_.timeline[r].segment;
      Copy copy{segment, {}, {}, reduced[r]};
      for (const Span& span : written_[segment]) {
        if (std::erase(underway, span.group) > 0) copy.before.push_back(span.group);
      }
      if (copy.before.empty() && copy.begun.empty()) continue;
      if (!copy.begun.empty()) copy.awaited = std::exchange(underway, copy.begun);
      const auto [known, fresh] = copies_.try_emplace(std::move(copy), -1);
      if (fresh) known->second = make(known->first);
      segment = known->second;
    }
    return underway;
  }

 private:
  // Of which segment; the reductions that the copy awaits before all else, as it adds to the same
  // gradients again, those that it awaits before it begins others, and these.
  struct Copy {
    int of = -1;
    std::vector<int> before, awaited, begun;
    auto operator<=>(const Copy&) const = default;
  };

  // Of each run the buckets that it is the last to add to before the stage turns.
  std::vector<std::vector<int>> last_runs() const {
    std::vector<std::vector<int>> reduced(program_.timeline.size());
    std::map<int, std::size_t> next;  // by virtual stage: the next run that adds
    std::map<int, std::size_t> adds;  // by bucket
    for (std::size_t r = program_.timeline.size(); r-- > 0;) {
      const int segment = program_.timeline[r].segment;
      if (written_[segment].empty()) continue;
      const int vstage = program_.segments[segment].vstage;
      std::size_t turn = program_.timeline.size();
      for (const auto& [other, run] : next) {
        if (other != vstage) turn = std::min(turn, run);
      }
      for (const Span& span : written_[segment]) {
        const auto known = adds.find(span.group);
        if (known == adds.end() || turn < known->second) reduced[r].push_back(span.group);
      }
      for (const Span& span : written_[segment]) adds[span.group] = r;
      next[vstage] = r;
    }
    return reduced;
  }

  // Each reduction begins after its bucket's last gradient. It is awaited when others begin, at the
  // next turn or, where weights' gradients are pieces of their own, before it: waits earlier would
  // keep earlier stages from their gradients, and two chunks' gradients are there at once in any
  // case.
  int make(const Copy& copy) {
    const auto& [of, before, awaited, begun] = copy;
    Segment segment = program_.segments[of];
    segment.name = fresh_name(program_, segment.name + (begun.empty() ? ".next" : ".last"));
    segment.copy_of = of;
    Insertions inserts;
    for (const int bucket : before) inserts.before(0, end_reduction(program_, bucket));
    bool first = true;
    for (const Span& span : written_[of]) {
      if (std::find(begun.begin(), begun.end(), span.group) == begun.end()) continue;
      if (std::exchange(first, false)) {
        for (const int bucket : awaited)
          inserts.before(span.last + 1, end_reduction(program_, bucket));
      }
      inserts.before(span.last + 1, begin_reduction(program_, span.group));
    }
    inserts.into(segment);
    program_.segments.push_back(std::move(segment));
    return static_cast<int>(program_.segments.size()) - 1;
  }

  Program& program_;
  std::vector<std::vector<Span>> written_;  // of each segment, by last use
  std::map<Copy, int> copies_;              // the copy's segment
};

}  // namespace

std::vector<int> place_by_chunk(Program& program) {
  for (Bucket& bucket : program.buckets) {
    bucket.reduce_per_chunk =
        bucket.reduce_per_chunk && bucket.sharded_state >= ShardedState::gradients;
  }
  const std::map<int, int> bucket_of = bucket_of_gradients(program, &Bucket::reduce_per_chunk);
  return bucket_of.empty() ? std::vector<int>() : ByChunk(program, bucket_of).run();
}

}  // namespace mw
