// The interface of policies that cut a step's batch into microbatches, which plugins may implement;
// mw.microbatch.ramp { … } is a built-in one.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// The batch of a step: `batch` sequences over all ranks, in microbatches of `microbatch` sequences
// on each rank, or of `sizes` if this list is not empty.
struct StepShape {
  std::int64_t batch = 0, microbatch = 0;
  std::vector<std::int64_t> sizes;
  bool at_most = false;       // whether a rank may have fewer sequences than `microbatch`
  std::int64_t sequence = 0;  // tokens of a sequence; 0: the most, which the experiment has
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

// What a microbatch policy may depend on beside its own options.
struct MicrobatchContext {
  std::int64_t batch = 0;     // sequences of a step over all ranks, as the experiment has it
  std::int64_t sequence = 0;  // tokens of a sequence, as the experiment has it
  std::int64_t memory = 0;    // bytes that a rank may hold; 0: the experiment has no limit
};

class Microbatching {
 public:
  virtual ~Microbatching() = default;
  // Bytes that a rank may hold. If above 0, the planner takes the largest microbatches with which a
  // rank is predicted to hold no more, and does not call shape().
  virtual std::int64_t fit() const { return 0; }
  // The shape of step `step` (from 0), whose first sample is number `sample`. Called once for each
  // step, before the run begins.
  virtual StepShape shape(std::int64_t step, std::int64_t sample) const = 0;
};

// A policy's constructor takes (const Values&, const MicrobatchContext&).
template <>
struct KindOf<Microbatching> {
  static constexpr Kind kind = Kind::microbatch;
  using Make = std::unique_ptr<Microbatching>(const Values& values,
                                              const MicrobatchContext& context);
};
template <class Class>
constexpr Registration microbatch(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Microbatching, Class>(name, doc);
}

}  // namespace mw
