// Tells rounding from faults: decides which differences between two runs rounding explains. The
// measuring is compare.cpp's.
#pragma once

#include <map>
#include <vector>

#include "check/compare.h"

namespace mw {

// What was measured of one tensor: 2-norms of differences, not yet relative.
struct Differences {
  double size = 0;                  // of one rank's in fp64
  std::int64_t count = 0;           // elements
  std::vector<double> errors;       // of one rank against that, by precision
  double a_apart = 0, b_apart = 0;  // of a and b against it
  double apart = 0;                 // |a - b|
  double spread_a = 0, spread_b = 0;
  int rank_a = 0, rank_b = 0;
  bool same_bits = true;
  bool both = false;  // a and b have it
  bool index = false,
       route = false;  // numbers that are no reals; of those, which experts tokens chose
  std::int64_t choices_apart = 0;
  // Where the tensor is what an op reads: whether it is a parameter, which is measured against what
  // is stored; if not, which tensor it was made as.
  bool parameter = false;
  TensorKey made;
};

// What is known of a run.
struct Side {
  int errors = 0;     // which of Differences::errors is its precision's
  double factor = 1;  // by which to multiply them
  double roundoff = 0;
  int ranks = 1, microbatches = 1;
  std::vector<StepOutcome> outcomes;
};

class Judge {
 public:
  explicit Judge(const Graph& graph) : graph_(graph) {}

  std::map<TensorKey, Differences> tensors;
  std::vector<StepOutcome> losses;  // of one rank in fp64
  std::vector<double> lr;           // of each step
  const Optimizer* optimizer = nullptr;
  // The parameters whose updates the optimizer orthogonalises, by value: how many leading dims
  // number matrices, and how many after them make the rows.
  std::map<int, std::pair<int, int>> matrices;

  CompareOutcome judge(const Side& a, const Side& b,
                       const std::map<TensorKey, at::Tensor>& reference);

 private:
  struct Error {
    double a = 0, b = 0;  // relative, of one rank in the precision of a and of b
  };
  Error error_of(const TensorKey& key, const Differences& d, double size, const Side& a,
                 const Side& b);
  double size_of(const TensorKey& key, const Differences& d) const;
  void follow(const TensorKey& first, const Side& a, const Side& b,
              const std::map<TensorKey, at::Tensor>& reference);
  void matrix_step(const at::Tensor& parameter, const at::Tensor& gradient, OptimizerState& state,
                   double rate, double scale, std::pair<int, int> shape,
                   at::IntArrayRef sizes) const;
  TensorDifference difference_of(const TensorKey& key, const Differences& d, const Side& a,
                                 const Side& b);
  TensorDifference read_of(const TensorKey& key, const Differences& d) const;
  void take(CompareOutcome& outcome, const TensorDifference& d) const;
  void judge_reports(CompareOutcome& outcome, const Side& a, const Side& b) const;

  const Graph& graph_;
  std::map<std::pair<std::int64_t, int>, Error> errors_;  // of forward values, by step and value
  std::map<std::pair<std::int64_t, int>, double> loss_bound_;  // relative bounds of losses
  // How far each parameter may be off after each step for what its gradients may be off.
  std::map<std::pair<std::int64_t, int>, double> moved_;
  double slack_ = 0;                             // relative, of all that comes later
  std::map<std::int64_t, double> slack_at_end_;  // of each step
};

}  // namespace mw
