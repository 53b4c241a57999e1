// The op @NAME@, for blocks of mw.model: x:@NAME@ { beta = 2 }. It knows no mesh: over which dims
// its operands lie, and which must be whole, is all that strategies ask of it.
#include <ATen/ATen.h>

#include "meshwright/kernel.h"
#include "meshwright/plugin.h"

namespace {

// log(1 + exp(beta x)) / beta, elementwise. torch differentiates it (AutogradOp): what is written
// here runs in backward once more. An op with kernels of its own
// for backward derives from mw::OpType.
class Kernel final : public mw::AutogradOp {
 public:
  explicit Kernel(double beta) : beta_(beta) {}
  std::string kind() const override { return "@NAME@"; }
  mw::OpClass op_class() const override { return mw::OpClass::elementwise; }
  std::vector<at::Tensor> compute(const mw::Op&, const mw::LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    return {at::softplus(inputs[0], beta_)};
  }
  // What torch allocates beside the result is measured where the plan is for this machine. For a
  // cluster the op says it: nothing in forward; in backward, the output once more.
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    mw::Cost cost = AutogradOp::cost(op, piece, dims, element);
    const std::int64_t bytes = dims.count(op.inputs[0].dims) * element;
    cost.accelerator_workspace = piece == mw::Piece::forward ? 0 : bytes;
    return cost;
  }

 private:
  double beta_;
};

class @CLASS@ final : public mw::BlockOp {
 public:
  static mw::Options options() {
    return mw::Options()
        .number("beta", "how sharp it bends at zero")
        .fallback(1.0)
        .range(1e-3, 1e3)
        .positional("beta");
  }
  explicit @CLASS@(const mw::Values& values) : beta_(values.number("beta")) {}

  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return b.append(b.op(name, std::make_shared<Kernel>(beta_), {b.use(inputs[0])}),
                    {{"", b.dims(inputs[0])}});
  }

 private:
  double beta_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "x -> the same dims: a smooth positive part",
                  mw::op<@CLASS@>())
