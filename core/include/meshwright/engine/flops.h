// Floating-point operations of a step, all ranks together.
#pragma once

#include "meshwright/program.h"

namespace mw {

struct Flops {
  // By the field's convention (Narayanan et al. 2021, appendix; PaLM, appendix B): every op of the
  // whole model once forward and once backward, attention scores in full, elementwise work not.
  double model = 0;
  // The same convention over what the ranks run: work that several ranks repeat counts for each of
  // them, recomputed work counts again. Equal to `model` if nothing is repeated.
  double hardware = 0;
};

// Costs one look at each op, however many ranks there are: a convention flop belongs to one point
// of an op's iteration space, so a cut op sums to the whole one, and an axis that cuts nothing of
// an op repeats it.
Flops count_flops(const std::vector<Program>& stages);

}  // namespace mw
