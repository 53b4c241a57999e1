// What a rank keeps from step to step: parameters, gradients and optimizer state, one flat tensor
// of each for every bucket.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "engine/optimizer.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"

namespace mw {

class Storage {
 public:
  // Allocates; parameters are not yet filled.
  Storage(const Program& program, const Coordinates& at, at::TensorOptions options,
          const Optimizer& optimizer, Ledger& ledger);

  struct Flat {
    at::Tensor parameters, gradients;
    OptimizerState state;
  };
  std::vector<Flat>& flats() { return flats_; }

  // Views into the flat tensors, by index into Program::parameters.
  const at::Tensor& parameter(int index) const { return parameters_[index]; }
  const at::Tensor& gradient(int index) const { return gradients_[index]; }
  int parameter_of(int slot) const { return parameter_of_[slot]; }  // of its gradient slot too; -1

  // A gradient that nobody wrote in this step holds the last step's numbers until it is written.
  void begin_step() { written_.assign(written_.size(), false); }
  bool written(int parameter) const { return written_[parameter]; }
  void write(int parameter) { written_[parameter] = true; }
  // Zeroes the gradients of a bucket that nobody wrote.
  void settle(const Bucket& bucket);

 private:
  std::vector<Flat> flats_;
  std::vector<at::Tensor> parameters_, gradients_;
  std::vector<int> parameter_of_;
  std::vector<bool> written_;
};

}  // namespace mw
