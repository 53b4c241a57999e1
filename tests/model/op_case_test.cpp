// The checks that op_case.h declares.
#include "op_case.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <utility>

#include "meshwright/engine/host.h"
#include "meshwright/engine/scratch.h"
#include "meshwright/ops.h"

namespace mw::test {

using lemmas::call_of;
using lemmas::keep_for_backward;

OpCase::OpCase(std::shared_ptr<const OpType> type, std::vector<Dims> in, std::vector<Dims> out,
               const std::map<std::string, std::int64_t>& sizes) {
  at::manual_seed(1);
  op.type = std::move(type);
  op.name = op.type->kind();
  for (Dims& d : in) op.inputs.push_back({-1, std::move(d), false});
  op.output_dims = std::move(out);
  for (Dim dim : op.space()) {
    const std::int64_t size = sizes.at(dim.name());
    dims.set({dim, 0, size, size, {}});
  }
  inputs.resize(op.inputs.size());
  expert_loads.resize(op.inputs.size());
  wants.assign(op.inputs.size(), false);
  wide.assign(op.inputs.size(), false);
}

void OpCase::cut(const char* dim, std::int64_t offset, std::int64_t size, std::int64_t global) {
  dims.set({dim, offset, size, global, {}});
}

void OpCase::cut(const char* dim, std::vector<Range> runs, std::int64_t global) {
  LocalDim local{dim, 0, 0, global, std::move(runs)};
  for (const Range& run : local.runs) local.size += run.size;
  dims.set(local);
}

namespace {
std::int64_t total(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}
}  // namespace

void OpCase::sparse(Dims over, std::vector<std::int64_t> groups) {
  rows = std::move(groups);
  const double cells = static_cast<double>(c10::multiply_integers(dims.shape(over)));
  sparse_ = {std::move(over), static_cast<double>(total(rows)) / std::max(cells, 1.0)};
  dims.set_sparse(sparse_);
}

std::vector<std::int64_t> OpCase::shape(const Dims& of) const {
  if (!sparse_.has(of)) return dims.shape(of);
  std::vector<std::int64_t> shape{total(rows)};
  for (Dim dim : of) {
    const Dims& cells = sparse_.dims;
    if (std::find(cells.begin(), cells.end(), dim) == cells.end()) {
      shape.push_back(dims.at(dim).size);
    }
  }
  return shape;
}

void OpCase::real(std::size_t i) {
  inputs[i] = at::randn(shape(op.inputs[i].dims), at::kDouble);
  wants[i] = true;
}

void OpCase::index(std::size_t i, std::int64_t limit) {
  inputs[i] = at::randint(limit, shape(op.inputs[i].dims), at::kLong);
}

double error(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  if (a.numel() == 0) return 0;
  const double largest = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / std::max(largest, 1.0);
}

Gradients run(const OpCase& c, const Tensors& seeds, Into into, const Tensors& before) {
  Gradients made = lemmas::run(c, seeds, into, before);
  REQUIRE(made.replaced.empty());
  return made;
}

Tensors reference_gradients(const OpCase& c, const Reference& reference, const Tensors& seeds) {
  const at::AutoGradMode record(true);
  Tensors leaves, all;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    all.push_back(c.inputs[i].detach().clone());
    if (c.wants[i] && !c.expert_loads[i].defined()) {
      leaves.push_back(all.back().requires_grad_(true));
    }
  }
  Tensors outputs = reference(all), roots, heads;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o].requires_grad()) continue;
    roots.push_back(outputs[o]);
    heads.push_back(seeds[o]);
  }
  Tensors gradients;
  if (!leaves.empty()) {
    gradients = torch::autograd::grad(roots, leaves, heads, std::nullopt, false, true);
  }
  Tensors result(c.inputs.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    result[i] = c.expert_loads[i];
    if (!c.wants[i] || c.expert_loads[i].defined()) continue;
    result[i] = gradients[next].defined() ? gradients[next] : at::zeros_like(c.inputs[i]);
    ++next;
  }
  return result;
}

void check_op(const OpCase& c, const Reference& reference) {
  const OpTraits traits = c.op.type->traits(c.op);
  REQUIRE(traits.backward_reads_input.size() == c.inputs.size());
  REQUIRE(traits.gradient_passes.size() == c.inputs.size());
  REQUIRE(traits.backward_reads_output.size() == c.op.output_dims.size());
  const Tensors expected = reference(c.inputs);
  Tensors seeds, before(c.inputs.size());
  for (const at::Tensor& output : expected) {
    seeds.push_back(output.is_floating_point() ? at::randn_like(output) : at::Tensor());
  }
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (c.wants[i]) before[i] = at::randn_like(c.inputs[i]);
  }
  const Tensors gradients =
      traits.differentiable ? reference_gradients(c, reference, seeds) : Tensors();

  for (const Into into : {Into::fresh, Into::given, Into::added}) {
    const Gradients made = run(c, seeds, into, before);
    REQUIRE(made.outputs.size() == expected.size());
    for (std::size_t o = 0; o < expected.size(); ++o) {
      CHECK(error(made.outputs[o], expected[o]) < 1e-12);
    }
    REQUIRE(made.saved.size() == traits.saved.size());
    for (std::size_t s = 0; s < made.saved.size(); ++s) {
      auto shape = c.dims.shape(traits.saved[s].dims);
      if (traits.saved[s].extra > 0) shape.push_back(traits.saved[s].extra);
      CHECK(made.saved[s].sizes().vec() == shape);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!c.wants[i]) continue;
      INFO(c.op.name << ": gradient of input " << i << ", way " << static_cast<int>(into));
      const at::Tensor base = into == Into::added ? before[i] : at::zeros_like(before[i]);
      CHECK(error(made.inputs[i] - base, gradients[i]) < 1e-12);
    }
  }
  if (traits.forward_in_place >= 0) {
    Tensors inputs = c.inputs;
    at::Tensor& target = inputs[traits.forward_in_place];
    target = target.clone();
    OpCall call = call_of(c, inputs);
    call.in_place = true;
    c.op.type->forward(c.op, call);
    CHECK(call.outputs[0].data_ptr() == target.data_ptr());
    CHECK(error(call.outputs[0], expected[0]) < 1e-12);
  }
  if (traits.backward_may_overwrite_saved) {
    for (const std::string& fault : faults_over_saved(c)) FAIL_CHECK(fault);
  }
}

OpCase in_type(OpCase c, at::ScalarType type) {
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const bool wide = c.wide[i] && c10::elementSize(type) < 4;
    if (c.inputs[i].is_floating_point()) c.inputs[i] = c.inputs[i].to(wide ? at::kFloat : type);
  }
  return c;
}

namespace {

// Sees every allocation of this thread.
struct Watch : c10::MemoryReportingInfoBase {
  std::int64_t now = 0, peak = 0;
  std::map<void*, std::int64_t> blocks;  // a free does not say how many bytes it was
  void reportMemoryUsage(void* pointer, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device) override {
    if (bytes < 0) {
      now -= std::exchange(blocks[pointer], 0);
    } else {
      now += bytes - std::exchange(blocks[pointer], bytes);
    }
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

// Bytes that `piece` leaves behind, and those that it needed beside them at its peak.
struct Seen {
  std::int64_t left = 0, workspace = 0;
};
Seen watch(const std::function<void()>& piece) {
  auto seen = std::make_shared<Watch>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, seen);
  piece();
  return {seen->now, seen->peak - seen->now};
}

// Kernels of half types round up what they treat at a time. Where the gradients of layer_norm's
// parameters are fresh, they are not made apart, as they are in a run.
void check_workspace(const std::string& kind, const char* what, std::int64_t seen,
                     std::int64_t declared, at::ScalarType type) {
  INFO(what << ": workspace " << seen << " seen, " << declared << " declared or measured");
  const bool about = c10::elementSize(type) < 4 || kind == "layer_norm";
  const double allowed = about ? std::max(4096.0, 0.02 * static_cast<double>(seen)) : 0;
  CHECK(std::abs(static_cast<double>(seen - declared)) <= allowed);
}

// What a piece's cost says, or what is measured where it says nothing.
std::int64_t expected_workspace(const OpCase& c, Piece piece, const OpCall& call,
                                const std::vector<at::ScalarType>& outputs, int threads) {
  const int element = static_cast<int>(c10::elementSize(call.real));
  const Cost cost = c.op.type->cost(c.op, piece, c.dims, element);
  if (cost.workspace) return *cost.workspace;
  KernelTrial trial{c.op, piece, c.dims, call.real, threads, {}, outputs, c.sparse()};
  for (std::size_t i = 0; i < c.inputs.size(); ++i)
    trial.inputs.push_back({c.inputs[i].scalar_type(), c.wants[i], piece == Piece::wgrad});
  const std::int64_t fresh = try_scratch(trial).value();
  if (piece != Piece::dgrad) return fresh;
  // The gradient of a value that others read too is added: a piece's cost is that of its dearest
  // way.
  trial.inputs[0].added = true;
  return std::max(fresh, try_scratch(trial).value());
}

// The bytes of the outputs and of what is saved, by the traits.
std::int64_t kept_bytes(const OpCase& c, const OpTraits& traits, const OpCall& call, int element) {
  const auto is_wide = [&](std::size_t output) {
    return output < traits.fp32_outputs.size() && traits.fp32_outputs[output] && element < 4;
  };
  std::int64_t left = 0;
  for (std::size_t o = 0; o < c.op.output_dims.size(); ++o) {
    const bool index = !call.outputs[o].is_floating_point();
    left += c.dims.count(c.op.output_dims[o]) * (index ? 8 : is_wide(o) ? 4 : element);
  }
  for (const SavedValue& saved : traits.saved) {
    left += c.dims.count(saved.dims) * std::max<std::int64_t>(saved.extra, 1) *
            (saved.fp32_at_least ? std::max(element, 4) : element);
  }
  return left;
}

// A piece that makes the gradients of `wants`: what it needs beside them.
Seen watch_backward(const OpCase& c, Piece piece, OpCall call, const std::vector<bool>& wants,
                    Into into, at::ScalarType type) {
  call.wants = wants;
  call.grad_inputs.assign(c.inputs.size(), at::Tensor());
  std::int64_t gradients = 0;
  for (std::size_t i = 0; i < wants.size(); ++i) {
    if (!wants[i]) continue;
    const bool expert_load = c.expert_loads[i].defined();
    call.accumulate[i] = into == Into::added || expert_load;
    if (into != Into::fresh || expert_load) {
      const bool counts = expert_load && c10::elementSize(type) < 4;
      call.grad_inputs[i] =
          at::zeros_like(c.inputs[i], counts ? at::kFloat : c.inputs[i].scalar_type());
    } else {
      gradients += static_cast<std::int64_t>(c.inputs[i].nbytes());
    }
  }
  const Seen seen = watch([&] {
    if (piece == Piece::dgrad) c.op.type->dgrad(c.op, call);
    if (piece == Piece::wgrad) c.op.type->wgrad(c.op, call);
    if (piece == Piece::backward) c.op.type->backward(c.op, call);
  });
  CHECK(seen.left == gradients);
  return seen;
}

void check_memory_on(OpCase c, at::ScalarType type, int threads) {
  at::set_num_threads(threads);
  std::string shapes;
  for (const at::Tensor& input : c.inputs)
    shapes += fmt::format(" [{}]", fmt::join(input.sizes().vec(), ", "));
  INFO(c.op.name << " of" << shapes << " in " << at::toString(type) << " on " << threads
                 << " threads");
  // What cross-entropy's last op reads is the one before it's output, in fp32.
  if (c.op.kind() == "ce_loss") c.wide[0] = true;
  c = in_type(std::move(c), type);
  const OpTraits traits = c.op.type->traits(c.op);
  OpCall call = call_of(c, c.inputs);
  call.real = type;
  const Seen forward = watch([&] { c.op.type->forward(c.op, call); });
  CHECK(forward.left == kept_bytes(c, traits, call, static_cast<int>(c10::elementSize(type))));
  std::vector<at::ScalarType> outputs;
  for (const at::Tensor& output : call.outputs) outputs.push_back(output.scalar_type());
  const auto check = [&](Piece piece, std::int64_t seen) {
    const std::int64_t expected = expected_workspace(c, piece, call, outputs, threads);
    check_workspace(c.op.kind(), name_of(piece), seen, expected, type);
  };
  check(Piece::forward, forward.workspace);
  if (!traits.differentiable) return;

  keep_for_backward(traits, call);
  for (std::size_t o = 0; o < c.op.output_dims.size(); ++o) {
    const bool index = outputs[o] == at::kLong;
    call.grad_outputs.push_back(index ? at::Tensor()
                                      : at::randn(c.shape(c.op.output_dims[o]), outputs[o]));
  }
  const auto backward = [&](Piece piece, const std::vector<bool>& wants,
                            std::initializer_list<Into> ways) {
    std::int64_t most = 0;  // a piece's cost is that of its dearest way
    for (const Into into : ways) {
      most = std::max(most, watch_backward(c, piece, call, wants, into, type).workspace);
    }
    check(piece, most);
  };
  if (!traits.splits) {
    backward(Piece::backward, c.wants, {Into::fresh});
    // Their input's gradient is added to another's: the residual's, or the router's.
    if (c.op.kind() == "rms_norm" || c.op.kind() == "dispatch")
      backward(Piece::backward, c.wants, {Into::added});
    return;
  }
  std::vector<bool> first(c.wants.size(), false), rest = c.wants;
  first[0] = c.wants[0];
  rest[0] = false;
  backward(Piece::dgrad, first, {Into::fresh, Into::given, Into::added});
  backward(Piece::wgrad, rest, {Into::given, Into::added});
}

}  // namespace

void check_memory(const OpCase& c, at::ScalarType type) {
  const int threads_before = at::get_num_threads();
  for (const int threads : {1, 2}) {
    if (threads <= thread_limit()) check_memory_on(c, type, threads);
  }
  at::set_num_threads(threads_before);
}

}  // namespace mw::test
