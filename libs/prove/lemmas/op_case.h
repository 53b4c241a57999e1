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
  std::vector<bool> wants;         // by input: it gets a gradient
  std::vector<bool> parameters;    // by input: it is a parameter, which wgrad does not get to see
  std::vector<std::int64_t> rows;  // OpCall::rows
};

// The results of a call. `inputs`: gradients of the inputs. `replaced`: inputs whose gradient is
// not in the tensor that was given for it.
struct Made {
  Tensors outputs, saved, inputs;
  std::vector<std::int64_t> rows;  // OpCall::rows after forward
  std::vector<std::size_t> replaced;
};

// Where backward puts gradients: `fresh` tensors that it makes; `given` tensors that hold NaN;
// given tensors, `added` to what they hold; the `saved` inputs themselves, where
// backward_may_overwrite_saved allows it.
enum class Into : std::uint8_t { fresh, given, added, saved };

// Prepares the OpCall of a forward. Its reals have the type of the real inputs, or fp64 where no
// input is real.
OpCall call_of(const OpCase& c, const Tensors& inputs);
// Drops the inputs and outputs that the traits say backward does not read, as a program releases
// them.
void keep_for_backward(const OpTraits& traits, OpCall& call);
// Calls backward, or dgrad without input 0 and then wgrad without the parameters.
void run_backward(const OpCase& c, const OpTraits& traits, OpCall& call);

Made forward(const OpCase& c);
// Runs forward, then backward with these gradients of the outputs (undefined: no gradient arrives).
// `before`: what the given tensors hold for Into::added. Exceptions of kernels pass through.
Made run(const OpCase& c, const Tensors& grad_outputs, Into into, const Tensors& before = {});

}  // namespace mw::lemmas
