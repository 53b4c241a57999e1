// Each op's forward and backward beside the way that eager PyTorch computes it (the composite,
// differentiated by autograd), one thread, at the sizes of the small baseline model. Prints CPU
// milliseconds and the ratio: above 1, ours is faster.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>

#include "common/process.h"
#include "graph/init.h"
#include "meshwright/ops.h"

using namespace mw;

namespace {

using Tensors = std::vector<at::Tensor>;
using Composite = std::function<at::Tensor(const Tensors&)>;

int repeats = 9;

// Times are the CPU's, which other programs on the cores change little.
double milliseconds(const std::function<void()>& work) {
  std::vector<double> times;
  work();
  for (int i = 0; i < repeats; ++i) {
    const std::clock_t begin = std::clock();
    work();
    times.push_back(1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[repeats / 2];
}

struct Subject {
  Op op;
  LocalDims dims;
  Tensors inputs;
  std::vector<bool> wants;
};

Subject subject(OpTypePtr type, std::vector<Dims> inputs, std::vector<Dims> outputs,
                const std::map<std::string, std::int64_t>& sizes) {
  Subject made;
  made.op.type = std::move(type);
  for (Dims& dims : inputs) made.op.inputs.push_back({-1, std::move(dims), false});
  made.op.output_dims = std::move(outputs);
  for (Dim dim : made.op.space()) {
    made.dims.set({dim, 0, sizes.at(dim.name()), sizes.at(dim.name())});
  }
  for (const Use& use : made.op.inputs) made.inputs.push_back(at::randn(made.dims.shape(use.dims)));
  made.wants.assign(inputs.size(), true);
  return made;
}

double total_ours = 0, total_theirs = 0;

void compare(const std::string& name, Subject s, const Composite& composite, int times = 1) {
  const OpTraits traits = s.op.type->traits(s.op);
  Tensors seeds;
  OpCall last{s.dims, s.inputs, {}, {}, {}, {}, s.wants, std::vector<bool>(s.inputs.size())};
  const double forward = milliseconds([&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // as a rank calls it
    OpCall call{s.dims, s.inputs, {}, {}, {}, {}, s.wants, std::vector<bool>(s.inputs.size())};
    call.in_place = traits.forward_in_place >= 0;
    s.op.type->forward(s.op, call);
    last.outputs = call.outputs;
    last.saved = call.saved;
  });
  for (const at::Tensor& output : last.outputs) seeds.push_back(at::randn_like(output));
  double backward = 0;
  const bool passes = std::all_of(traits.gradient_passes.begin(), traits.gradient_passes.end(),
                                  [](bool p) { return p; });
  if (traits.differentiable && !passes) {
    last.grad_outputs = seeds;
    backward = milliseconds([&] {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      last.grad_inputs.assign(s.inputs.size(), at::Tensor());
      if (traits.splits) {
        s.op.type->dgrad(s.op, last);
        s.op.type->wgrad(s.op, last);
      } else {
        s.op.type->backward(s.op, last);
      }
    });
  }
  const at::AutoGradMode record(true);
  Tensors leaves, all;
  for (std::size_t i = 0; i < s.inputs.size(); ++i) {
    all.push_back(s.inputs[i].detach());
    if (s.wants[i]) leaves.push_back(all.back().requires_grad_(true));
  }
  at::Tensor out;
  const double their_forward = milliseconds([&] { out = composite(all); });
  const double their_both = milliseconds([&] {
    out = composite(all);
    if (!leaves.empty()) {
      torch::autograd::grad({out}, leaves, {at::ones_like(out)});
    }
  });
  total_ours += times * (forward + backward);
  total_theirs += times * their_both;
  fmt::print(
      "{:14s} forward {:7.3f} ms ({:5.2f}x)   backward {:7.3f} ms   both {:7.3f} ms ({:5.2f}x)\n",
      name, forward, their_forward / forward, backward, forward + backward,
      their_both / (forward + backward));
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::int64_t> sizes{{"batch", 16}, {"seq", 128}, {"hidden", 256},
                                            {"heads", 8},  {"ffn", 688}, {"vocab", 256}};
  std::int64_t kv_heads = 0, layers = 4;
  CLI::App app("Op kernels beside eager PyTorch, one thread, fp32");
  for (auto& [name, size] : sizes) app.add_option("--" + name, size, "size of the dim");
  app.add_option("--kv_heads", kv_heads, "key heads; 0: as heads");
  app.add_option("--layers", layers, "layers, for the sum of a step");
  app.add_option("--repeats", repeats, "timings, of which the median counts");
  CLI11_PARSE(app, argc, argv);
  sizes["kv_heads"] = kv_heads > 0 ? kv_heads : sizes["heads"];
  sizes["keys"] = sizes["seq"];
  sizes["head_dim"] = sizes["hidden"] / sizes["heads"];
  sizes["stat"] = 2;
  sizes["positions"] = sizes["seq"];
  at::set_num_threads(1);
  // Memory that goes back to the system at each call, and comes again, would count as the kernel's
  // time. The program keeps it.
  keep_freed_memory();
  const int n = static_cast<int>(layers);
  const Dims stream{"batch", "seq", "hidden"}, inner{"batch", "seq", "ffn"}, rows{"batch", "seq"};
  const Dims heads{"batch", "seq", "heads", "head_dim"},
      keys{"batch", "keys", "kv_heads", "head_dim"};

  compare(
      "linear", subject(linear(), {stream, {"ffn", "hidden"}}, {inner}, sizes),
      [](const Tensors& in) { return at::linear(in[0], in[1]); }, 0);
  compare(
      "rms_norm", subject(rms_norm(1e-5), {stream, {"hidden"}}, {stream}, sizes),
      [&](const Tensors& in) { return at::rms_norm(in[0], {sizes["hidden"]}, in[1], 1e-5); },
      2 * n + 1);
  compare(
      "layer_norm", subject(layer_norm(1e-5), {stream, {"hidden"}, {"hidden"}}, {stream}, sizes),
      [&](const Tensors& in) { return at::layer_norm(in[0], {sizes["hidden"]}, in[1], in[2]); }, 0);

  const Dims table{"seq", "head_dim"};
  Subject turn = subject(rope(), {heads, table, table}, {heads}, sizes);
  turn.wants = {true, false, false};
  compare(
      "rope", turn,
      [](const Tensors& in) {
        const at::Tensor x = in[0].transpose(1, 2);
        const auto halves = x.chunk(2, -1);
        return x * in[1] + at::cat({-halves[1], halves[0]}, -1) * in[2];
      },
      2 * n);

  const std::int64_t group = sizes["heads"] / sizes["kv_heads"];
  compare(
      "attention", subject(attention(), {heads, keys, keys}, {heads}, sizes),
      [&](const Tensors& in) {
        at::Tensor q = in[0].transpose(1, 2), k = in[1].transpose(1, 2), v = in[2].transpose(1, 2);
        if (group > 1) {
          k = k.repeat_interleave(group, 1);
          v = v.repeat_interleave(group, 1);
        }
        return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true).transpose(1, 2).flatten(2);
      },
      n);
  compare(
      "swiglu", subject(swiglu(), {inner, inner}, {inner}, sizes),
      [](const Tensors& in) { return at::silu(in[0]) * in[1]; }, n);
  compare(
      "map swiglu", subject(map("silu(a) * b"), {inner, inner}, {inner}, sizes),
      [](const Tensors& in) { return at::silu(in[0]) * in[1]; }, 0);
  compare(
      "map geglu", subject(map("gelu(a) * b"), {inner, inner}, {inner}, sizes),
      [](const Tensors& in) { return at::gelu(in[0], "tanh") * in[1]; }, 0);
  compare(
      "map chain", subject(map("(silu(a) * 2 - a) / 3 + b"), {inner, inner}, {inner}, sizes),
      [](const Tensors& in) { return (at::silu(in[0]) * 2 - in[0]) / 3 + in[1]; }, 0);
  compare(
      "gelu", subject(gelu(), {inner}, {inner}, sizes),
      [](const Tensors& in) { return at::gelu(in[0], "tanh"); }, 0);
  compare(
      "add", subject(add(), {stream, stream}, {stream}, sizes),
      [](const Tensors& in) { return in[0] + in[1]; }, 2 * n);

  Subject lookup = subject(embedding(), {rows, {"vocab", "hidden"}}, {stream}, sizes);
  lookup.inputs[0] = at::randint(sizes["vocab"], {sizes["batch"], sizes["seq"]}, at::kLong);
  lookup.wants = {false, true};
  compare(
      "embedding", lookup, [](const Tensors& in) { return at::embedding(in[1], in[0]); }, 1);

  // The three ops of the loss together, against cross_entropy.
  const Dims wide{"batch", "seq", "vocab"};
  Subject max = subject(ce_max(), {wide}, {rows}, sizes);
  max.wants = {false};
  Subject stats = subject(ce_stats(), {wide, rows, rows}, {{"stat", "batch", "seq"}}, sizes);
  stats.inputs[2] = at::randint(sizes["vocab"], {sizes["batch"], sizes["seq"]}, at::kLong);
  stats.inputs[1] = stats.inputs[0].amax(-1);
  stats.wants = {true, false, false};
  compare(
      "ce_max", max, [](const Tensors& in) { return in[0].amax(-1); }, 1);
  compare(
      "ce_stats", stats,
      [](const Tensors& in) {
        return at::cross_entropy_loss(in[0].flatten(0, 1), in[2].flatten());
      },
      1);
  fmt::print("all but the GEMMs of a step with {} layers: {:.1f} ms, eager {:.1f} ms: {:.2f}x\n", n,
             total_ours, total_theirs, total_theirs / total_ours);
  Value weight;
  weight.name = "weight";
  at::Tensor ten_million = at::empty({10'000'000});
  fmt::print("initial weights: {:.0f} ms for 10 million\n",
             milliseconds([&] { fill(ten_million, weight, 1); }));
}
