// What programs compute in two steps, on every rank, beside what they must.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "prove/mutants.h"
#include "script/experiment.h"

namespace mw::test {

// A mix and what its steps come to: by one rank in float64. A mix that rounds (reals of two bytes,
// hooks that lose bits) is held to its own steps.
class Subject {
 public:
  explicit Subject(const Setup& setup);
  const Stages& stages() const { return experiment_.plan->programs; }
  // Empty: on every rank in both steps loss, norm, gradients and parameters are as they must be.
  // Else what is not, or why a rank failed. `timeout`: seconds that a collective waits for a rank.
  std::string differs(const Stages& stages, double timeout) const;

 private:
  struct Steps {
    std::vector<double> losses, norms;
    std::vector<std::map<std::string, at::Tensor>> gradients, parameters;
  };
  class Look;
  std::string run(const Plan& plan, double timeout, Steps* keep) const;

  Experiment experiment_;
  bool narrow_ = false;  // reals of two bytes
  double tolerance_ = 1e-9;
  Steps must_;
};

}  // namespace mw::test
