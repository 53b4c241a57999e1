// One op with operands of its own, called as a rank calls it: forward, and backward in each way in
// which a program asks for gradients. The lemmas, the kit and the tests of ops share it.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "meshwright/op.h"

namespace mw::lemmas {

using Tensors = std::vector<at::Tensor>;

struct OpCase {
  Op op;
  LocalDims dims;
  Tensors inputs;                  // reals of one type, or int64
  std::vector<bool> wants;         // inputs that get a gradient
  std::vector<bool> parameters;    // inputs that are parameters, which wgrad does not get to see
  std::vector<std::int64_t> rows;  // OpCall::rows
};

// What a call made. `replaced`: inputs whose gradient is not in the tensor that was given for it.
struct Made {
  Tensors outputs, saved, inputs;
  std::vector<std::int64_t> rows;  // OpCall::rows after forward
  std::vector<std::size_t> replaced;
};

// Where gradients go: into fresh tensors; into given ones that hold NaN; into given ones, added to
// what is there; into the saved inputs themselves, where backward_may_overwrite_saved allows it.
enum class Into : std::uint8_t { fresh, given, added, saved };

// The call of a forward, before it is made. Its reals are of the type of the inputs' reals, of
// fp64 where no input is real.
OpCall call_of(const OpCase& c, const Tensors& inputs);
// Takes away the inputs and outputs that backward says it does not read, as a program lets go of
// them.
void keep_for_backward(const OpTraits& traits, OpCall& call);
// Calls backward, or dgrad without input 0 and then wgrad without the parameters.
void run_backward(const OpCase& c, const OpTraits& traits, OpCall& call);

Made forward(const OpCase& c);
// Runs forward, then backward with these gradients of the outputs (undefined where none came).
// `before`: what the given tensors hold under Into::added. Whatever a kernel throws is passed on.
Made run(const OpCase& c, const Tensors& grad_outputs, Into into, const Tensors& before = {});

}  // namespace mw::lemmas
