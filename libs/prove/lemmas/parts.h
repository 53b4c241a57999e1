// The checks that an op must pass: its parts make what the whole op makes, backward is the
// derivative of forward, and calls keep the contract of OpCall. Also the choice of operands for a
// check, and the memory of outcomes.
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

// What is wrong with a piece of an op, as a sentence with numbers.
struct Fault {
  Piece piece = Piece::forward;
  std::string text;
  double error = 0;  // the relative error, where numbers differ
};

// "found 0.84 where 0.42 is needed at [1, 3], 2 times that everywhere (relative error 1)"; empty:
// the tensors agree within the bound. `scale`: the largest number that went into a sum; `error`
// becomes the relative error.
std::string difference(const at::Tensor& found, const at::Tensor& needed, double scale,
                       const Bound& bound, double& error);
double largest(const at::Tensor& tensor);

// In a catch block: the message of the exception, in one line.
std::string words_of_thrown();

// The piece that makes the gradient of an input.
Piece piece_of(const OpTraits& traits, std::size_t input);

// Runs the op on every rank's part, in ring steps where an operand goes round, adds up Partial
// results, and compares with the whole op. `backward`: gradients too. An exception on a part is a
// fault.
std::vector<Fault> check_parts(WholeOp& whole, CutOp& cut, bool backward, const Bound& bound);

// Compares an op of a model with the ops that compute it in parts (OpType::in_parts), on one rank.
// `last`: the op among them that makes the results of the model's op.
std::vector<Fault> check_in_parts(WholeOp& last, const Bound& bound);

// Changes tokens of one document of an op that reads where documents begin (inputs.h: starts): no
// result of another document may change.
std::vector<Fault> check_documents(WholeOp& whole, const Bound& bound);
// Brings the tokens of an op that reads their places (inputs.h) into the order of these: the
// results must be the same ones in that order.
std::vector<Fault> check_parted_documents(WholeOp& whole, const Bound& bound);

// Whether an op declares that its gradient is deliberately not the derivative (StraightThrough).
bool is_straight_through(const Op& op);

// Compares each gradient with differences of forward along a random direction, to 1e-6 of the
// gradient's norm. Where they do not agree, closer points are tried: one bend of forward between
// two points is no fault. Skips inputs that are counts, which no loss moves (ExpertLoad).
std::vector<Fault> check_adjoint(WholeOp& whole);

// For an op that declares no derivative: checks that no output that needs a gradient changes with
// an input that needs one.
std::vector<Fault> check_constant(WholeOp& whole);

// Checks the contract of OpCall: a gradient is written into the tensor that is given for it, or
// added to what that holds; a gradient that overwrites a saved input has the same numbers; forward
// in place makes the same result, in the input's own storage; a missing gradient of an output
// counts as zeros; kernels change nothing that they only read; and backward does not read what the
// traits say that it does not.
std::vector<Fault> check_contract(WholeOp& whole, const Bound& bound);

struct Outcome {
  std::vector<Problem> failures;
  std::vector<std::string> not_checked;
  bool tried = false;
  bool keeps = false;  // the outcome may be remembered
};

using Try = std::function<void(WholeOp&, const Bound&, Outcome&)>;

// Runs `body` on the op with the smallest operands that the op accepts: sizes by Shrink, numbers by
// Draw, reals in fp64, or in fp32 where the op accepts nothing else. `large`: where the check holds
// at small sizes, it also runs at large_sizes().
Outcome try_op(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
               const Try& body);

// The key of a remembered outcome: the check (`about`), the sizes, and all that the outcome depends
// on of the op and of the ops that make its operands. An empty text: it is not remembered.
struct TryKey {
  std::string text;
  std::vector<std::shared_ptr<const OpType>> types;
};
TryKey key_of(const Graph& graph, int op, const std::vector<SmallAxis>& axes, bool large,
              const std::string& about);
// The outcome remembered under a key, which never has failures. Null: none.
std::shared_ptr<const Outcome> remembered(const TryKey& key);
void remember(const TryKey& key, const Outcome& outcome);
void forget();

}  // namespace mw::lemmas
