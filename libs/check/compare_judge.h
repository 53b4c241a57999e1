// Tells rounding from faults: decides which differences between two runs rounding explains.
// compare.cpp measures the differences.
#pragma once

#include <map>
#include <vector>

#include "check/compare.h"

namespace mw {

// What was measured at one tensor: absolute 2-norms of differences.
struct Differences {
  double size = 0;                  // norm of the tensor on one rank in fp64, the reference
  std::int64_t count = 0;           // number of elements
  std::vector<double> errors;       // by precision: |one rank - reference|
  double a_apart = 0, b_apart = 0;  // |a - reference|, |b - reference|
  double apart = 0;                 // |a - b|
  double spread_a = 0, spread_b = 0;
  int rank_a = 0, rank_b = 0;
  bool same_bits = true;
  bool both = false;  // both a and b have the tensor
  bool index = false,
       route = false;  // it holds indices; it holds the tokens' choices of experts
  std::int64_t choices_apart = 0;
  // For an operand (TensorKey::read): it is a parameter, measured against the stored one; else the
  // key of the tensor as its producer made it.
  bool parameter = false;
  TensorKey made;
};

// One of the two runs.
struct JudgedRun {
  int errors = 0;       // index into Differences::errors, for the run's precision
  double factor = 1;    // by which these errors are multiplied
  double roundoff = 0;  // unit roundoff of the run's precision
  int ranks = 1, microbatches = 1;
  std::vector<StepOutcome> outcomes;
};

class Judge {
 public:
  explicit Judge(const Graph& graph) : graph_(graph) {}

  std::map<TensorKey, Differences> tensors;
  std::vector<StepOutcome> losses;  // by step: what one rank in fp64 reports
  std::vector<double> lr;           // by step
  const Optimizer* optimizer = nullptr;
  // For each parameter that the optimizer updates by a matrix rule, by its value in the graph: how
  // many leading dims number matrices, and how many dims after them make the rows.
  std::map<int, std::pair<int, int>> matrices;
  std::map<int, int> groups;  // each parameter's group of the optimizer, by its value in the graph

  CompareOutcome judge(const JudgedRun& a, const JudgedRun& b,
                       const std::map<TensorKey, at::Tensor>& reference);

 private:
  struct Error {
    double a = 0, b = 0;  // relative errors of one rank in the precisions of a and of b
  };
  static double measured_error(const Differences& d, const JudgedRun& side);
  Error error_of(const TensorKey& key, const Differences& d, double size, const JudgedRun& a,
                 const JudgedRun& b);
  double size_of(const TensorKey& key, const Differences& d) const;
  void follow(const TensorKey& first, const JudgedRun& a, const JudgedRun& b,
              const std::map<TensorKey, at::Tensor>& reference);
  TensorDifference difference_of(const TensorKey& key, const Differences& d, const JudgedRun& a,
                                 const JudgedRun& b);
  TensorDifference read_of(const TensorKey& key, const Differences& d) const;
  void take(CompareOutcome& outcome, const TensorDifference& d) const;
  void judge_reports(CompareOutcome& outcome, const JudgedRun& a, const JudgedRun& b) const;

  const Graph& graph_;
  std::map<std::pair<std::int64_t, int>, Error> errors_;  // of forward values, by step and value
  std::map<std::pair<std::int64_t, int>, double> loss_bound_;  // absolute, by step and value
  // By step and parameter: how far errors of the gradients may move the parameter.
  std::map<std::pair<std::int64_t, int>, double> moved_;
  double slack_ = 0;  // what earlier steps and other choices of experts add to every relative bound
  std::map<std::int64_t, double> slack_at_end_;  // by step: slack_ after it
};

}  // namespace mw
