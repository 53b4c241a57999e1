// Passes of the core that strategies ask for: buckets of a size, reductions beside backward.
#include <algorithm>
#include <limits>
#include <map>

#include "meshwright/passes.h"
#include "meshwright/program.h"
#include "plan/build.h"

namespace mw {
namespace {

std::int64_t gradient_bytes(const Program& program, int parameter) {
  return program.local_bytes(program.slots[program.parameters[parameter].gradient_slot],
                             program.first());
}

// Of each parameter the virtual stage whose backward is the last to add to its gradient, and where
// in it; -1 if none does. Of a step's timeline this must not depend:
// all steps keep the same buckets.
std::vector<std::pair<int, int>> makers(const Program& program) {
  std::map<int, int> parameter_of;  // gradient slot -> parameter
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    parameter_of[program.parameters[p].gradient_slot] = static_cast<int>(p);
  }
  std::vector<std::pair<int, int>> made(program.parameters.size(), {-1, -1});
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::backward || segment.copy_of >= 0) continue;
    for (std::size_t i = 0; i < segment.code.size(); ++i) {
      for_each_slot(segment.code[i], [&](int slot) {
        const auto found = parameter_of.find(slot);
        if (found == parameter_of.end()) return;
        std::pair<int, int>& by = made[found->second];
        if (by.first < 0 || segment.vstage <= by.first) {
          by = {segment.vstage, static_cast<int>(i)};
        }
      });
    }
  }
  return made;
}

void fill_buckets(Program& program, std::int64_t limit) {
  const auto made = makers(program);
  const auto before = [&](int a, int b) {  // backward begins with the last virtual stage
    return std::pair(-made[a].first, made[a].second) < std::pair(-made[b].first, made[b].second);
  };
  std::vector<Bucket> split;
  for (Bucket& bucket : program.buckets) {
    // Stages that share a bucket must split it alike, whenever their own gradients are ready.
    const bool shared = !bucket.stages.empty();
    if (!shared) {
      std::stable_sort(bucket.parameters.begin(), bucket.parameters.end(), before);
    }
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    int maker = -1;
    for (int parameter : bucket.parameters) {
      const std::int64_t more = gradient_bytes(program, parameter);
      const int makes = made[parameter].first;
      if (bytes > limit - more || (!shared && makes != maker)) {
        Bucket next = bucket;
        next.parameters.clear();
        split.push_back(std::move(next));
        bytes = 0;
      }
      split.back().parameters.push_back(parameter);
      bytes += more;
      maker = makes;
    }
  }
  program.buckets = std::move(split);
  name_buckets(program);
}

void overlap(Program& program) {
  // Stages that share buckets are ready at different times;
  // they reduce them at the end, in one order.
  for (Bucket& bucket : program.buckets) {
    bucket.overlap = !bucket.reduce.empty() && bucket.stages.empty();
  }
}

}  // namespace

Pass bucket_gradients(std::int64_t bytes) {
  return {"bucket gradients", [bytes](Program& program) { fill_buckets(program, bytes); },
          Pass::buckets};
}

Pass overlap_gradient_reduction() {
  return {"overlap gradient reduction", overlap, Pass::reductions};
}

}  // namespace mw
