// Do two plans compute the same? Both run the same steps on the same weights and tokens, each in
// its own precision; every op's output, every gradient, every parameter is compared, whole tensor
// by whole tensor, and judged by a bound that is measured (docs/verify.md):
//
//   |a - b| <= k (e_a + e_b),  e_p = |one rank in p - one rank in fp64| + sqrt(n) u_p |one
//   rank in fp64|
//
// at that very tensor, 2-norms. One rank's own error against fp64 is what rounding makes of it
// there, with its true growth over the ops before, backward and the optimizer; sqrt(n) u is what a
// sum of n parts adds, over ranks and microbatches, which one rank does not make (Higham and Mary
// 2019). fp64's own error is fp32's times u_64 / u_32. To measure by runs, and not to guess by
// depth, is how TTrace (2025) sets its thresholds.
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

// Infinity where the error is not finite, whatever the bound.
inline double ratio_of(double error, double bound) {
  return std::isfinite(error) ? error / bound : std::numeric_limits<double>::infinity();
}

// One tensor in both runs. Differences are 2-norms over the norm of one rank's in fp64.
struct TensorDifference {
  TensorKey key;
  std::string value;  // the graph's name
  std::string op;     // that makes it, or uses the parameter last in forward
  std::int64_t count = 0;
  double error = 0;           // |a - b|
  double bound = 0;           // what rounding explains, times k
  double of_a = 0, of_b = 0;  // against one rank in fp64
  double bound_a = 0, bound_b = 0;
  double noise = 0;  // the larger e: from 1 on it is all rounding
  bool same_bits = false;
  // Ranks that hold it alike by the plan and do not: the difference between them.
  double spread_a = 0, spread_b = 0;
  int rank_a = 0, rank_b = 0;
  double ratio() const { return ratio_of(error, bound); }
};

enum class Suspect : std::uint8_t { neither, a, b, both };

struct ComparedScalar {
  double error = 0, bound = 0;
  double ratio() const { return ratio_of(error, bound); }
};

struct CompareOutcome {
  bool interrupted = false;  // stopped before there was a verdict: the rest says nothing
  bool equal = false;        // within the bound
  bool same_bits = false;    // all of it
  std::int64_t steps = 0;
  std::int64_t tensors = 0;                        // compared, over all steps
  std::string precision_a, precision_b;            // "bf16", "bf16, fp32 gradients"
  double loss = 0, gradients = 0, parameters = 0;  // largest relative errors
  double bound_ratio = 0;                          // the largest |a - b| over its bound
  TensorDifference closest;                        // whose it is
  std::optional<TensorDifference> first_bits;      // the first whose bits differ
  std::optional<TensorDifference> first;           // the first beyond its bound
  std::optional<TensorDifference>
      first_gradient;  // the first gradient of a parameter beyond its bound
  std::optional<TensorDifference>
      worst;  // the parameter whose gradient comes closest to its bound, or beyond
  // The step's loss and gradient norm, as they are reported; the step with the largest ratio.
  ComparedScalar reported_loss, reported_norm;
  Suspect suspect = Suspect::neither;  // whose run parts from one rank too at `first`
  bool both_off = false;               // a and b agree, and both differ from one rank
  // Hooks of a's and of b's plan that lose bits, and the parameters that they reduce.
  LossyHooks lossy_a, lossy_b;
  std::int64_t moved_choices = 0;  // of experts, by tokens, that differ between a and b
};

// One of the two runs that are compared.
struct ComparedRun {
  const RunRequest& asked;
  const RunSetup& setup;
};

// What differs between the two beside plan, microbatches, recompute and precision, added to
// `problems`, all at once and with the values.
void check_comparable(const ComparedRun& a, const ComparedRun& b, std::int64_t steps,
                      Problems& problems);

// Throws Error (plan) for more ranks than threads, Error (run) if a rank fails. `stop`: set to end
// after the current step. Every process of the experiments calls it; the outcome is the first
// one's, on others there is none.
CompareOutcome compare(const RunSetup& a, const RunSetup& b, std::int64_t steps = 2,
                       const std::atomic<bool>* stop = nullptr);

// "the output of layers.0.attention_add (from …), step 0: 1.2e-01, bound 3.4e-06", for people.
std::string describe(const TensorDifference& d, const Graph& graph);
// Says to people why it is a fault, and where to look.
std::string advice(const CompareOutcome& outcome, const TensorDifference& d);
// Says to people what lossy hooks have to do with what parts; empty if there are none, or nothing
// parts.
std::string note_of(const CompareOutcome& outcome);
// The verdict and a table, for people.
std::string describe(const CompareOutcome& outcome, const Plan& a, const Plan& b);

}  // namespace mw
