// What a rank keeps from step to step: parameters, gradients and optimizer state, flat tensors for
// every bucket, whole or this rank's part of them.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "meshwright/ledger.h"
#include "meshwright/program.h"
#include "optimizer/optimizer.h"

namespace mw {

class Storage {
 public:
  // Allocates; parameters are not yet filled.
  Storage(const Program& program, const Coordinates& at, at::Device device, Ledger& ledger);

  // Of a bucket with parts, whole tensors have its parts one after the other, zeros at the end.
  struct Flat {
    at::Tensor parameters;  // whole; undefined while parameters stored in parts are not gathered
    at::Tensor gradients;   // whole; undefined where stored in parts and nobody has written any
    at::Tensor own_parameters;  // this rank's part (a slice of the whole one if that is kept)
    at::Tensor own_gradients;
    at::Tensor master;  // of the part, in the optimizer's precision; undefined where that updates
                        // own_parameters themselves
    OptimizerState state;  // of the part
    bool summed = false;   // own_gradients holds this step's sum so far
  };
  std::vector<Flat>& flats() { return flats_; }

  // Views into whole flat tensors, by index into Program::parameters. A gradient's is allocated if
  // it is not there.
  const at::Tensor& parameter(int index) const { return parameters_[index]; }
  const at::Tensor& gradient(int index);
  int parameter_of(int slot) const {  // of its gradient slot too; -1
    return slot < static_cast<int>(parameter_of_.size()) ? parameter_of_[slot] : -1;
  }
  int bucket_of(int parameter) const { return bucket_of_[parameter]; }

  // Makes the whole tensor of parameters stored in parts, for an all-gather into it,
  // and lets it go.
  const at::Tensor& open_parameters(int bucket);
  void drop_parameters(int bucket);
  void drop_gradients(int bucket);
  // The whole gradients of a bucket, with zeros where nobody wrote.
  const at::Tensor& settle(int bucket);
  // Zeroes a part to which nobody has added in this step.
  void settle_part(int bucket);
  // Adds `part`, the reduced part, to the step's.
  void sum_part(int bucket, const at::Tensor& part);

  // The first of a bucket's elements in this rank's part.
  std::int64_t part_begin(int bucket) const { return index_[bucket] * parts_[bucket]; }
  // A parameter's view into a whole flat tensor of its bucket.
  at::Tensor slice(int parameter, const at::Tensor& whole) const;
  // What of a parameter's gradient lies in own_gradients: 1-D, empty where none does.
  at::Tensor own_gradient(int parameter) const;
  // Takes a parameter's first numbers, from local element `first` on, into all that holds of them.
  void fill(int parameter, std::int64_t first, const at::Tensor& numbers);

  // A gradient that nobody wrote in this step holds the last step's numbers until it is written.
  void begin_step();
  bool written(int parameter) const { return written_[parameter]; }
  void write(int parameter) { written_[parameter] = true; }
  // What is added to the bucket next stands alone: another rank keeps the sum so far.
  void begin_sum(int bucket) {
    for (int p : program_.buckets[bucket].parameters) written_[p] = false;
  }

 private:
  void view_parameters(int bucket);
  void view_gradients(int bucket);
  at::Tensor part_of(int bucket, const at::Tensor& whole) const;
  // Gives `part`, this rank's of the bucket, those of the numbers from element `at` of the bucket
  // on that lie in it.
  void fill_part(int bucket, std::int64_t at, const at::Tensor& numbers,
                 const at::Tensor& part) const;

  const Program& program_;
  const at::TensorOptions options_, gradient_options_;
  Ledger& ledger_;
  std::vector<Flat> flats_;
  std::vector<std::int64_t> sizes_, parts_,
      index_;  // of each bucket: elements, of a part, own part's
  std::vector<std::vector<std::int64_t>> shapes_;  // of each parameter
  std::vector<std::int64_t> offsets_;              // of each parameter in its bucket
  std::vector<at::Tensor> parameters_, gradients_;
  std::vector<int> parameter_of_, bucket_of_;
  std::vector<bool> written_;
};

}  // namespace mw
