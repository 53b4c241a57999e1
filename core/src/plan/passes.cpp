// Passes of the core that strategies ask for: buckets of a size, reductions beside backward.
#include "meshwright/passes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "meshwright/engine/program_facts.h"
#include "meshwright/error.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"
#include "plan/build.h"
#include "program/lifetimes.h"

namespace mw {
namespace {

std::int64_t gradient_bytes(const Program& program, int parameter) {
  const ProgramParameter& p = program.parameters[parameter];
  const int slot = p.gradient_slot >= 0 ? p.gradient_slot : p.slot;  // frozen parameters have none
  return program.local_bytes(program.slots[slot], program.first());
}

// The virtual stage whose backward is the last to add to each parameter's gradient, and the
// instruction's index in it; -1 if none does. A step's timeline must not decide it: all steps keep
// the same buckets.
std::vector<std::pair<int, int>> makers(const Program& program) {
  std::vector<int> parameter_of(program.slots.size(), -1);  // parameter, by gradient slot
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const int slot = program.parameters[p].gradient_slot;
    if (slot >= 0) parameter_of[slot] = static_cast<int>(p);
  }
  std::vector<std::pair<int, int>> made(program.parameters.size(), {-1, -1});
  for (const Segment& segment : program.segments) {
    if (segment.kind != SegmentKind::backward || segment.copy_of >= 0) continue;
    for (std::size_t i = 0; i < segment.code.size(); ++i) {
      for_each_slot(segment.code[i], [&](int slot) {
        if (parameter_of[slot] < 0) return;
        std::pair<int, int>& by = made[parameter_of[slot]];
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
    const std::vector<int> parameters = std::exchange(bucket.parameters, {});
    const Bucket& empty = bucket;
    std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
    int maker = -1;
    for (int parameter : parameters) {
      const std::int64_t more = gradient_bytes(program, parameter);
      const int makes = made[parameter].first;
      if (bytes > limit - more || (!shared && makes != maker)) {
        split.push_back(empty);
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
    bucket.overlap = !bucket.reduce_atoms.empty() && bucket.stages.empty() && !bucket.frozen;
  }
}

bool reduced_over(const Program& program, const Bucket& bucket, const std::string& axis) {
  const std::vector<int>& atoms = program.mesh.axis(axis).atoms;
  if (bucket.counts || bucket.frozen) return false;
  return std::any_of(bucket.reduce_atoms.begin(), bucket.reduce_atoms.end(), [&](int atom) {
    return program.mesh.atoms()[atom].ways > 1 &&
           std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
  });
}

}  // namespace

Pass bucket_gradients(std::int64_t bytes) {
  return {"bucket gradients", [bytes](Program& program) { fill_buckets(program, bytes); },
          Pass::buckets};
}

Pass overlap_gradient_reduction() {
  return {"overlap gradient reduction", overlap, Pass::reductions};
}

Pass hook_reductions(const std::string& axis,
                     std::function<std::shared_ptr<const ReductionHook>(const BucketShape&)> choose,
                     std::string who) {
  Pass pass{"hook reductions",
            [axis, choose = std::move(choose)](Program& program) {
              for (Bucket& bucket : program.buckets) {
                if (!reduced_over(program, bucket, axis)) continue;
                Hook hook = choose(shape_of(program, bucket, program.first()));
                const std::string before = identity_of(bucket.hook), now = identity_of(hook);
                if (hook && bucket.hook && before != now)
                  throw Error(Stage::plan, "hook.differs", "hook",
                              fmt::format("two entries chose different hooks for {}: {} and {}",
                                          bucket.name, before, now),
                              "leave hook out of one of them, or name the same in both");
                if (hook) bucket.hook = std::move(hook);
              }
            },
            Pass::reductions, axis};
  if (who.empty()) return pass;
  pass.note = [who = std::move(who)](const std::vector<Program>& programs) {
    std::set<std::string> over;
    for (const Program& program : programs) {
      for (const Bucket& bucket : program.buckets)
        if (bucket.hook) over.insert(program.name_of(program.hooked_reduction(bucket)));
    }
    return over.empty()
               ? ""
               : fmt::format("{} sums gradients over {}", who, fmt::join(over, " and over "));
  };
  return pass;
}

Pass reduce_each_microbatch(const std::string& axis) {
  return {"reduce each microbatch",
          [axis](Program& program) {
            split_buckets(program, /*by_layer=*/false);
            for (Bucket& bucket : program.buckets) {
              bucket.reduce_per_microbatch =
                  bucket.stages.empty() && reduced_over(program, bucket, axis);
            }
          },
          Pass::reductions, axis};
}

}  // namespace mw
