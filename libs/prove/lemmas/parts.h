// What ops are held to: their parts make what the whole makes, backward is the derivative of
// forward, and calls keep their contract; and how one such thing is tried and remembered.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "prove/lemmas/values.h"

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

// Whether an op says that its gradient is meant to be no derivative (StraightThrough).
bool is_straight_through(const Op& op);

// Holds each gradient against differences of forward along a random direction, to 1e-6 of the
// gradient's norm. Where one does not agree, closer points are tried: one bend of forward between
// two points is no fault. Not of counts that no loss moves (ExpertLoad).
std::vector<Fault> check_adjoint(WholeOp& whole);

// Checks of an op without a derivative that no result with a gradient changes with an input that
// has one.
std::vector<Fault> check_constant(WholeOp& whole);

// Holds what OpCall promises: a gradient is written into the tensor that is given for it, or added
// to what is there; one that overwrites a saved input is the same; forward in place is the same,
// in the input's own storage; a result without a gradient counts as one of zeros; nothing that a
// kernel only reads is changed, and what the traits say that backward does not read, it does not.
std::vector<Fault> check_contract(WholeOp& whole, const Bound& bound);

struct Outcome {
  std::vector<Problem> failures;
  std::vector<std::string> not_checked;
  bool tried = false;
  bool keeps = false;  // may be remembered
};

using Try = std::function<void(WholeOp&, const Bound&, Outcome&)>;

// Sizes are changed as little as the op wants (Shrink), operands are drawn or made (Draw), and
// reals are fp64, or fp32 where the op takes nothing else. `large`: what holds at small sizes is
// tried at large_sizes too.
Outcome try_op(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
               const Try& body);

// Under what an outcome is remembered: what is tried (`about`), the sizes, and all of the op and of
// those that make its operands that it depends on. An empty text: it is not remembered.
struct TryKey {
  std::string text;
  std::vector<std::shared_ptr<const OpType>> types;
};
TryKey key_of(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
              const std::string& about);
// What is remembered under a key: a thing without a failure. Null: nothing.
std::shared_ptr<const Outcome> remembered(const TryKey& key);
void remember(const TryKey& key, const Outcome& outcome);
void forget();

}  // namespace mw::lemmas
