#include <algorithm>
#include <limits>

#include "plan/lifetimes.h"

namespace mw {
namespace {

// For each parameter, the index of the instruction in `segment` after which its gradient is whole.
std::vector<int> ready(const Program& program, const Segment& segment) {
  std::vector<int> at(program.parameters.size(), -1);
  std::vector<int> parameter_of(program.slots.size(), -1);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    parameter_of[program.parameters[p].gradient_slot] = static_cast<int>(p);
  }
  for (std::size_t i = 0; i < segment.code.size(); ++i) {
    for_each_slot(segment.code[i], [&](int slot) {
      if (parameter_of[slot] >= 0) at[parameter_of[slot]] = static_cast<int>(i);
    });
  }
  return at;
}

std::int64_t gradient_bytes(const Program& program, int parameter) {
  const Coordinates first(program.mesh.atoms().size(), 0);
  return program.local_bytes(program.slots[program.parameters[parameter].gradient_slot], first);
}

void split_buckets(Program& program, std::int64_t limit) {
  const std::vector<int> at = ready(program, program.segments[program.segment("backward")]);
  std::vector<Bucket> split;
  for (Bucket& bucket : program.buckets) {
    std::stable_sort(bucket.parameters.begin(), bucket.parameters.end(),
                     [&](int a, int b) { return at[a] < at[b]; });
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    for (int parameter : bucket.parameters) {
      const std::int64_t more = gradient_bytes(program, parameter);
      if (bytes > limit - more) {
        Bucket next = bucket;
        next.parameters.clear();
        next.name = "bucket " + std::to_string(split.size());
        split.push_back(std::move(next));
        bytes = 0;
      }
      split.back().parameters.push_back(parameter);
      bytes += more;
    }
  }
  program.buckets = std::move(split);
}

void overlap(Program& program) {
  Segment last = program.segments[program.segment("backward")];
  last.name = "backward.last";
  const std::vector<int> at = ready(program, last);
  std::vector<std::pair<int, int>> starts;  // after which instruction, bucket
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    Bucket& bucket = program.buckets[b];
    if (bucket.reduce.empty()) continue;
    bucket.overlap = true;
    int after = -1;
    for (int parameter : bucket.parameters) after = std::max(after, at[parameter]);
    starts.emplace_back(after, static_cast<int>(b));
  }
  std::stable_sort(starts.begin(), starts.end(), [](auto& x, auto& y) { return x.first > y.first; });
  for (const auto& [after, b] : starts) {
    Instruction reduce;
    reduce.code = Code::reduce;
    reduce.bucket = b;
    reduce.phase = "gradients";
    reduce.label = program.buckets[b].name;
    last.code.insert(last.code.begin() + after + 1, std::move(reduce));
  }
  program.segments.push_back(std::move(last));
}

}  // namespace

Pass bucket_gradients(std::int64_t bytes) {
  return {"bucket gradients", [bytes](Program& program) { split_buckets(program, bytes); }};
}

Pass overlap_gradient_reduction() { return {"overlap gradient reduction", overlap}; }

}  // namespace mw
