// How a step's batch is cut into microbatches, as a plugin may bring it: mw.microbatch.ramp { … }
// is one that is built in.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// What a step computes with: `batch` sequences over all ranks, in microbatches of `microbatch` on
// each rank, or of `sizes` where they are given one by one.
struct StepShape {
  std::int64_t batch = 0, microbatch = 0;
  std::vector<std::int64_t> sizes;
  bool at_most = false;  // a rank may have fewer than `microbatch`
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

// What a policy may depend on beside its own options.
struct MicrobatchContext {
  std::int64_t batch = 0;   // the experiment's: sequences of a step, over all ranks
  std::int64_t memory = 0;  // bytes that a rank may hold; 0: the experiment has no limit
};

class Microbatching {
 public:
  virtual ~Microbatching() = default;
  // Above 0: microbatches are the largest with which a rank is predicted to hold no more bytes, and
  // shape() is not asked.
  virtual std::int64_t fit() const { return 0; }
  // The shape of a step, counted from 0, whose first sample is `sample`. It is called once for each
  // step before the run begins.
  virtual StepShape shape(std::int64_t step, std::int64_t sample) const = 0;
};

// Made by a constructor (const Values&, const MicrobatchContext&).
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
