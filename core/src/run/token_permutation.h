// Brings tensors into and out of the order in which a dim lies where a strategy permutes its
// elements (Draft::permute_tokens; zigzag sequences): data on its way in, and what is compared with
// another run on its way out.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "meshwright/program.h"

namespace mw {

// The elements of dim `at` of a tensor in the order of `runs`, or those of one run as a view.
at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs);

}  // namespace mw
