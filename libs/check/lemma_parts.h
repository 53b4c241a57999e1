// What the parts of an op make, beside what the whole makes.
#pragma once

#include <string>
#include <vector>

#include "check/lemma_values.h"

namespace mw::lemmas {

// How far two results may be apart: `relative` to the largest of them, and `floor` in any case,
// for what is zero but for rounding.
struct Bound {
  double relative = 1e-9;
  double floor = 1e-14;
};
Bound bound_of(at::ScalarType type);

// What is wrong with a piece of an op, a sentence with numbers.
struct Fault {
  Piece piece = Piece::forward;
  std::string text;
  double error = 0;  // the relative error, where it is one
};

// "found 0.84 where 0.42 is needed at [1, 3] (2 times what is needed; relative error 1)"; empty: no
// difference. `scale`: the largest of what was added up; `error` becomes the relative error.
std::string difference(const at::Tensor& found, const at::Tensor& needed, double scale,
                       const Bound& bound, double& error);
double largest(const at::Tensor& tensor);

// In a handler: what was thrown, in a line.
std::string words_of_thrown();

// The piece that makes the gradient of an input.
Piece piece_of(const OpTraits& traits, std::size_t input);

// Runs every part, and adds up what the op's table says is a sum; in ring steps where something
// goes round. `backward`: gradients too. What a kernel throws on a part is a fault.
std::vector<Fault> check_parts(WholeOp& whole, CutOp& cut, bool backward, const Bound& bound);

}  // namespace mw::lemmas
