// The slope of the loss on accelerators, whose kernels widen what they read, beside its formula in
// fp64; and sums of bits, which are the same on every device.
#include <ATen/core/LegacyTypeDispatch.h>

#include "meshwright/ops.h"
#include "observers/replicas.h"
#include "on_devices.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

constexpr std::int64_t loss_rows = 120, whole_vocab = 400;

// The largest error of a gradient of the logits, in roundings of a bf16 number. The labels of some
// rows are nearly certain, so that their gradients are small differences.
double roundings_off(at::Device device, const LocalDim& vocab, at::ScalarType type) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::manual_seed(7);
  const at::Tensor labels = at::randint(whole_vocab, {1, loss_rows}, at::kLong);
  at::Tensor all = at::randn({1, loss_rows, whole_vocab}).mul_(3);
  at::Tensor some = all.narrow(1, 0, 40);
  some.scatter_(2, labels.narrow(1, 0, 40).unsqueeze(2), some.amax(2, true) + 8);
  const at::Tensor logits = all.narrow(2, vocab.offset, vocab.size).to(type).contiguous();
  const at::Tensor max = all.to(type).amax(-1);
  const at::Tensor exact = logits.to(at::kDouble).sub(max.to(at::kDouble).unsqueeze(2)).exp();
  const at::Tensor sum = all.to(type).to(at::kDouble).sub(max.to(at::kDouble).unsqueeze(2)).exp();
  const at::Tensor slopes = at::stack({sum.sum(2).reciprocal(), at::full({1, loss_rows}, -1)})
                                .mul(at::rand({1, loss_rows}, at::kDouble).add(0.1))
                                .to(at::kFloat);

  Op op;
  op.type = ce_stats();
  op.inputs = {{-1, {"batch", "seq", "vocab"}}, {-1, {"batch", "seq"}}, {-1, {"batch", "seq"}}};
  op.output_dims = {{"stat", "batch", "seq"}};
  LocalDims dims;
  dims.set({"batch", 0, 1, 1, {}});
  dims.set({"seq", 0, loss_rows, loss_rows, {}});
  dims.set({"stat", 0, 2, 2, {}});
  dims.set(vocab);
  OpCall call{dims, {}, {}, {}, {}, {}, {}, {}, false, type};
  call.inputs = {logits.to(device), max.to(device), labels.to(device)};
  call.grad_outputs = {slopes.to(device)};
  call.wants = {true, false, false};
  call.grad_inputs.assign(3, at::Tensor());
  call.accumulate.assign(3, false);
  op.type->backward(op, call);

  const at::Tensor here = labels.sub(vocab.offset).unsqueeze(2);
  const at::Tensor held = here.ge(0).logical_and_(here.lt(vocab.size));
  const at::Tensor wide = slopes.to(at::kDouble).unsqueeze(3);
  const at::Tensor want =
      exact.mul(wide[0]).scatter_add(2, here.clamp(0, vocab.size - 1), wide[1].mul(held));
  const at::Tensor off = call.grad_inputs[0].cpu().to(at::kDouble).sub(want).abs();
  return off.div(want.abs().add(1e-30)).max().item<double>() * 256;
}

const LocalDim uncut{"vocab", 0, whole_vocab, whole_vocab, {}};
const LocalDim second_quarter{"vocab", 100, 100, whole_vocab, {}};

}  // namespace

TEST_CASE("A simulated accelerator's slope of the loss in bf16 is rounded once") {
  const OnDevices devices(Ranks::together);
  CHECK(roundings_off(sim::device(0), uncut, at::kBFloat16) <= 1);
  CHECK(roundings_off(sim::device(0), second_quarter, at::kBFloat16) <= 1);
  CHECK(roundings_off(sim::device(0), uncut, at::kFloat) <= 0.1);
}

TEST_CASE("A GPU's slope of the loss in bf16 is rounded once", "[.][gpu]") {
  make_by_default<Platform>(registry().find(Kind::device, "cuda"))->load();
  CHECK(roundings_off(at::kCUDA, uncut, at::kBFloat16) <= 1);
  CHECK(roundings_off(at::kCUDA, second_quarter, at::kBFloat16) <= 1);
  CHECK(roundings_off(at::kCUDA, uncut, at::kFloat) <= 0.1);
}

TEST_CASE("A GPU's sum of bits is the CPU's", "[.][gpu]") {
  registry().find(Kind::communicator, "nccl");
  for (const std::int64_t size : {0, 1, 3, 70001, 5'000'003}) {
    const at::Tensor x = at::randn({size});
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const at::Tensor here = x.to(type), there = here.cuda();
      CHECK(sum_of_bits(there) == sum_of_bits(here));
      if (size < 5) continue;
      CHECK(sum_of_bits(there.narrow(0, 1, size - 3)) == sum_of_bits(here.narrow(0, 1, size - 3)));
      there[size - 1].neg_();
      CHECK(sum_of_bits(there) != sum_of_bits(here));
    }
  }
}
