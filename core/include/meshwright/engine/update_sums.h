// The sums over whole parameters that an update reads (UpdateRule::sums), made of the elements that
// a rank has.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "meshwright/mesh.h"
#include "meshwright/optimizer.h"

namespace mw {

// The elements of a parameter that a rank updates, and where they lie in the whole parameter.
struct UpdatedPart {
  std::vector<std::int64_t> sizes;  // of the whole parameter, by dim
  std::vector<Range> own;           // what the rank's ops read of it, by dim
  Range elements;                   // the elements that are updated, of those that `own` has
  // For a parameter that is treated as matrices, how many of its first dims number them, and how
  // many dims after these form their rows.
  int stacked = 0, rows = 0;

  // The sizes of the whole parameter as matrices: their number, rows and columns.
  std::array<std::int64_t, 3> matrices() const;
  // The shape of a sum over the whole parameter.
  std::array<std::int64_t, 3> shape(const UpdateSum& sum) const;
  // How many elements each number of a sum is of.
  std::int64_t summed(const UpdateSum& sum) const;
  // Brings the numbers of a sum, or of a state of matrices, to the elements: all of one number, or
  // one for each. (matrices, rows, columns), with the size 1 for a side that it lacks; the matrices
  // are all of the parameter's or those of the rank.
  at::Tensor spread(const at::Tensor& numbers) const;
  // The numbers of a sum that belong to the rank's own matrices.
  at::Tensor of_own_matrices(const at::Tensor& numbers) const;
  // Adds the terms of the elements to a sum of the shape shape().
  void add(const at::Tensor& terms, const at::Tensor& sum) const;

 private:
  // The shape by dims of numbers that have a shape as matrices.
  std::vector<std::int64_t> by_dims(const at::Tensor& numbers) const;
};

// One update of a whole parameter by a rule, as a program does it in parts. `gradient`: flat, and
// overwritten. States of matrices are made if there are none yet.
void update_whole(const UpdateRule& rule, const UpdatedPart& whole, const at::Tensor& parameter,
                  const at::Tensor& gradient, OptimizerState& state, double lr, std::int64_t step,
                  double grad_scale);

}  // namespace mw
