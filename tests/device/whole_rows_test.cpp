// What ops declare of the memory that they need on an accelerator, where kernels that go in chunks
// on a CPU take all rows at once: beside what a simulated one's allocator sees.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "meshwright/ops.h"
#include "on_devices.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

namespace {

// Sees every allocation of this thread.
struct Watch : c10::MemoryReportingInfoBase {
  std::int64_t now = 0, peak = 0;
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.is_cpu()) return;
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

struct Case {
  std::string name;
  OpTypePtr type;
  std::vector<Dims> inputs, outputs;
  std::vector<int> indices;        // inputs that are none of the reals
  std::vector<int> wide;           // inputs that are in fp32 at least
  std::vector<bool> wants;         // gradients; none: forward alone
  std::vector<LocalDim> cut = {};  // dims of which the rank has a part
  // Bytes of each token that fused kernels need, which the simulated accelerator has not.
  std::int64_t fused = 0;
};

// RMSNorm is not among them: GPUs run ATen's fused kernel of it, which the simulated accelerator
// has not.
std::vector<Case> cases() {
  const Dims stream{"batch", "seq", "hidden"}, rows{"batch", "seq"},
      logits{"batch", "seq", "vocab"}, heads{"batch", "seq", "heads", "head_dim"},
      table{"seq", "head_dim"};
  const std::vector<LocalDim> part{{"vocab", 100, 100, 400, {}}};
  return {
      {"swiglu", swiglu(), {stream, stream}, {stream}, {}, {}, {true, true}},
      {"swiglu, weighed", swiglu(), {stream, stream, rows}, {stream}, {}, {2}, {true, true, true}},
      {"rope", rope(), {heads, table, table}, {heads}, {}, {}, {true, false, false}},
      {"ce_stats",
       ce_stats(),
       {logits, rows, rows},
       {{"stat", "batch", "seq"}},
       {2},
       {},
       {true, false, false},
       {},
       8},
      {"ce_stats, cut",
       ce_stats(),
       {logits, rows, rows},
       {{"stat", "batch", "seq"}},
       {2},
       {},
       {true, false, false},
       part,
       22},
      {"embedding, cut",
       embedding(),
       {rows, {"vocab", "hidden"}},
       {stream},
       {0},
       {},
       {false, true},
       part},
  };
}

// What a piece needed beside what it left.
std::int64_t workspace(const std::function<void()>& piece) {
  const auto seen = std::make_shared<Watch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, seen);
  piece();
  return seen->peak - seen->now;
}

void must_be(const char* piece, std::int64_t seen, const Cost& cost, std::int64_t fused) {
  const std::int64_t declared = cost.accelerator_workspace.value_or(cost.workspace.value_or(0));
  INFO(piece << ": " << seen << " seen, " << declared << " declared, " << cost.workspace.value_or(0)
             << " on a CPU");
  const double allowed = std::max(4096.0, 0.02 * static_cast<double>(seen));
  CHECK(std::abs(static_cast<double>(std::max(seen, fused) - declared)) <= allowed);
}

}  // namespace

TEST_CASE("Ops declare what they take on an accelerator, where they take all rows at once") {
  const OnDevices devices(Ranks::together);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::ScalarType type = GENERATE(at::kFloat, at::kBFloat16);
  const Case c = GENERATE(from_range(cases()));
  const std::map<std::string, std::int64_t> sizes{{"batch", 3},   {"seq", 500},  {"hidden", 200},
                                                  {"vocab", 400}, {"heads", 10}, {"head_dim", 20},
                                                  {"stat", 2}};
  Op op;
  op.type = c.type;
  for (const Dims& dims : c.inputs) op.inputs.push_back({-1, dims});
  op.output_dims = c.outputs;
  LocalDims dims;
  for (const Dim dim : op.space())
    dims.set({dim, 0, sizes.at(dim.name()), sizes.at(dim.name()), {}});
  for (const LocalDim& cut : c.cut) dims.set(cut);
  const auto on_device = [](const at::Tensor& tensor) { return tensor.to(sim::device(0)); };
  const auto has = [](const std::vector<int>& list, std::size_t i) {
    return std::find(list.begin(), list.end(), static_cast<int>(i)) != list.end();
  };
  OpCall call{dims, {}, {}, {}, {}, {}, {}, {}, false, type};
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const auto shape = dims.shape(c.inputs[i]);
    const at::ScalarType real = has(c.wide, i) ? at::kFloat : type;
    call.inputs.push_back(on_device(has(c.indices, i) ? at::randint(100, shape, at::kLong)
                                                      : at::randn(shape).to(real)));
  }
  const int element = static_cast<int>(c10::elementSize(type));
  const std::int64_t fused = c.fused * dims.count({"batch", "seq"});
  DYNAMIC_SECTION(c.name << " in " << at::toString(type)) {
    must_be("forward", workspace([&] { c.type->forward(op, call); }),
            c.type->cost(op, Piece::forward, dims, element), fused);
    for (const at::Tensor& output : call.outputs)
      call.grad_outputs.push_back(on_device(at::randn(output.sizes()).to(output.scalar_type())));
    call.wants = c.wants;
    call.grad_inputs.assign(c.inputs.size(), at::Tensor());
    call.accumulate.assign(c.inputs.size(), false);
    must_be("backward", workspace([&] { c.type->backward(op, call); }),
            c.type->cost(op, Piece::backward, dims, element), fused);
  }
}
