// Checks whether two plans a and b compute the same. Both run the same steps on the same weights
// and tokens, each in its own precision p. Every op's output, every gradient and every parameter is
// compared as a whole tensor, and judged by a bound that is measured (docs/verify.md):
//
//   |a - b| <= k (e_a + e_b),  e_p = |one rank in p - one rank in fp64| + sqrt(n) u_p |one
//   rank in fp64|
//
// in 2-norms of that very tensor; u_p is the unit roundoff of p, k is compare_factor. One rank's
// error against fp64 shows what rounding does to the tensor, with its true growth over the ops
// before it, backward and the optimizer. sqrt(n) u is what a sum of n parts over ranks and
// microbatches adds, which one rank does not make (Higham and Mary 2019). For fp64, the error is
// that of fp32 times u_64 / u_32. TTrace (2025) sets its thresholds by runs in the same way,
// instead of guessing by depth.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "check/recorder.h"
#include "common/run_request.h"

namespace mw {

// Correct mixes stay at half of the bound and below, faults are 4 to millions of times beyond it
// (tests/cli/test_compare.py prints both).
constexpr double compare_factor = 3;

// error / bound, or infinity where the error is not finite.
inline double ratio_of(double error, double bound) {
  return std::isfinite(error) ? error / bound : std::numeric_limits<double>::infinity();
}

// How far one tensor differs between the two runs. 2-norms, relative to the norm on one rank in
// fp64.
struct TensorDifference {
  TensorKey key;
  std::string value;  // the value's name in the graph
  std::string op;     // the op that makes it; for a parameter, the last op in forward that uses it
  std::int64_t count = 0;
  double error = 0;           // |a - b|
  double bound = 0;           // bound of `error`
  double of_a = 0, of_b = 0;  // differences of a and of b from one rank in fp64
  double bound_a = 0, bound_b = 0;
  double noise = 0;  // the larger of e_a and e_b; from 1 on, the tensor is nothing but rounding
  bool same_bits = false;
  // The largest difference between copies that the plan says are alike, and the rank whose copy it
  // is.
  double spread_a = 0, spread_b = 0;
  int rank_a = 0, rank_b = 0;
  double ratio() const { return ratio_of(error, bound); }
};

// The run of the two that also differs from one rank in fp64.
enum class Suspect : std::uint8_t { neither, a, b, both };

struct ComparedScalar {
  double error = 0, bound = 0;
  double ratio() const { return ratio_of(error, bound); }
};

struct CompareOutcome {
  bool interrupted = false;  // stopped before there was a verdict
  bool equal = false;        // every difference is within its bound
  bool same_bits = false;    // all bits of all tensors are equal
  std::int64_t steps = 0;
  std::int64_t tensors = 0;                        // number compared, over all steps
  std::string precision_a, precision_b;            // "bf16", "bf16, fp32 gradients"
  double loss = 0, gradients = 0, parameters = 0;  // largest relative errors
  double bound_ratio = 0;                          // the largest |a - b| over its bound
  TensorDifference closest;                        // the tensor with bound_ratio
  std::optional<TensorDifference> first_bits;      // the first tensor whose bits differ
  std::optional<TensorDifference> first;           // the first tensor beyond its bound
  std::optional<TensorDifference>
      first_gradient;  // the first gradient of a parameter beyond its bound
  std::optional<TensorDifference>
      worst;  // the parameter whose gradient comes closest to its bound, or beyond
  // The reported loss and gradient norm, each of the step with the largest error over its bound.
  ComparedScalar reported_loss, reported_norm;
  Suspect suspect = Suspect::neither;  // which run differs from one rank at `first`
  bool both_off = false;               // at some tensor, both runs differ from one rank
  // Hooks of a's and of b's plan that lose bits, and the parameters that they reduce.
  LossyHooks lossy_a, lossy_b;
  std::int64_t moved_choices = 0;  // tokens' choices of experts that differ between a and b
};

struct ComparedRun {
  const RunRequest& asked;
  const RunSetup& setup;
};

// Adds a problem for each setting that differs between the two runs, with both values. Plan,
// microbatches, recompute and precision may differ.
void check_comparable(const ComparedRun& a, const ComparedRun& b, std::int64_t steps,
                      Problems& problems);

// Throws Error (plan) for more ranks than threads, Error (run) if a rank fails. `stop`: set to end
// after the current step. Every process of the experiments calls it, and the first process gets
// the outcome; the others get an empty one.
CompareOutcome compare(const RunSetup& a, const RunSetup& b, std::int64_t steps = 2,
                       const std::atomic<bool>* stop = nullptr);

// "the output of layers.0.attention_add (from …), step 0: 1.2e-01, bound 3.4e-06".
std::string describe(const TensorDifference& d, const Graph& graph);
// A text for people: why a difference is a fault, and where to look for its cause.
std::string advice(const CompareOutcome& outcome, const TensorDifference& d);
// A text for people: whether lossy hooks explain the differences; empty if there are no such hooks,
// or no differences.
std::string note_of(const CompareOutcome& outcome);
// A text for people: the verdict, and a table of differences.
std::string describe(const CompareOutcome& outcome, const Plan& a, const Plan& b);

}  // namespace mw
