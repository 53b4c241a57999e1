// The op @NAME@, for blocks of mw.model: x:@NAME@ { power = 2 }. It knows no mesh: over which dims
// its operands lie, and which must be whole, is all that strategies ask of it.
#include <ATen/ATen.h>

#include "meshwright/kernel.h"
#include "meshwright/plugin.h"

namespace {

// relu(x) to a power, elementwise. torch differentiates it (AutogradOp): what is written here runs
// in backward once more. An op with kernels of its own for backward derives from mw::OpType.
class Kernel final : public mw::AutogradOp {
 public:
  explicit Kernel(std::int64_t power) : power_(power) {}
  std::string kind() const override { return "@NAME@"; }
  std::vector<at::Tensor> compute(const mw::Op&, const mw::LocalDims&,
                                  const std::vector<at::Tensor>& inputs) const override {
    return {at::relu(inputs[0]).pow(power_)};
  }

 private:
  std::int64_t power_;
};

class @CLASS@ final : public mw::BlockOp {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("power", "what the positive part is raised to")
        .fallback(2)
        .range(1, 8)
        .positional("power");
  }
  explicit @CLASS@(const mw::Values& values) : power_(values.integer("power")) {}

  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return b.append(b.op(name, std::make_shared<Kernel>(power_), {b.use(inputs[0])}),
                    {{"", b.dims(inputs[0])}});
  }

 private:
  std::int64_t power_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "x -> the same dims: its positive part to a power",
                  mw::op<@CLASS@>())
