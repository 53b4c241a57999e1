// An op with a CUDA kernel of its own: x:softsign() is x / (1 + |x|). On CPUs, and where it was
// built without CUDA, it uses ATen's kernels.
#include "softsign.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <stdexcept>

#include "meshwright/kernel.h"
#include "meshwright/platform.h"
#include "meshwright/plugin.h"

namespace {

// Runs the kernel on the stream of the calling rank, behind all that it has queued there. False:
// there is no kernel for these tensors.
bool on_cuda([[maybe_unused]] const at::Tensor& x, [[maybe_unused]] const at::Tensor& gradient,
             [[maybe_unused]] const at::Tensor& out, [[maybe_unused]] bool adds) {
#ifdef WITH_CUDA
  if (!x.is_cuda()) return false;
  const at::ScalarType type = x.scalar_type();
  const Number number = type == at::kDouble     ? Number::fp64
                        : type == at::kBFloat16 ? Number::bf16
                        : type == at::kHalf     ? Number::fp16
                                                : Number::fp32;
  const Elements elements{x.const_data_ptr(),
                          gradient.defined() ? gradient.const_data_ptr() : nullptr,
                          out.mutable_data_ptr(),
                          adds,
                          x.numel(),
                          number};
  RECORD_FUNCTION("meshwright::softsign", {});  // an account counts the kernel
  const char* const error = softsign_on_cuda(&elements, mw::native_stream(x.device()));
  if (error != nullptr) throw std::runtime_error(error);
  return true;
#else
  return false;
#endif
}

class Kernel final : public mw::OpType {
 public:
  std::string kind() const override { return "softsign"; }
  mw::OpClass op_class() const override { return mw::OpClass::elementwise; }
  mw::OpTraits traits(const mw::Op&) const override {
    return {.backward_reads_input = {true}, .backward_reads_output = {false}};
  }
  void forward(const mw::Op&, mw::OpCall& call) const override {
    const at::Tensor x = call.inputs[0].contiguous();
    at::Tensor y = at::empty_like(x);
    if (!on_cuda(x, {}, y, false)) at::div_out(y, x, at::abs(x).add_(1));
    call.outputs[0] = y;
  }
  void backward(const mw::Op&, mw::OpCall& call) const override {
    if (!call.wants[0]) return;
    const at::Tensor x = call.inputs[0].contiguous(), gradient = call.grad_outputs[0].contiguous();
    const bool adds = call.accumulate[0] && call.grad_inputs[0].defined();
    at::Tensor& made = call.grad_inputs[0];
    if (!made.defined()) made = at::empty_like(x);
    if (on_cuda(x, gradient, made, adds)) return;
    const at::Tensor slope = at::abs(x).add_(1).pow_(-2).mul_(gradient);
    adds ? made.add_(slope) : made.copy_(slope);
  }
  // Forward reads and writes the elements; backward reads two tensors, and writes one. ATen makes
  // 1 + |x| apart, the CUDA kernel makes nothing.
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    const std::int64_t bytes = dims.count(op.inputs[0].dims) * element;
    mw::Cost cost;
    cost.bytes = static_cast<double>((piece == mw::Piece::forward ? 2 : 3) * bytes);
    cost.workspace = bytes;
#ifdef WITH_CUDA
    cost.accelerator_workspace = 0;
#endif
    return cost;
  }
};

class Softsign final : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return b.append(b.op(name, std::make_shared<Kernel>(), {b.use(inputs[0])}),
                    {{"", b.dims(inputs[0])}});
  }
};

}  // namespace

MESHWRIGHT_PLUGIN("softsign", "1.0.0", "x / (1 + |x|), on GPUs by a CUDA kernel",
                  mw::op<Softsign>())
