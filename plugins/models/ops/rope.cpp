// Rotary position embedding: a table of cosines and sines of positions, and the rotation of
// queries and keys by it.
#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "fused.h"
#include "kernel.h"
#include "meshwright/graph.h"
#include "meshwright/ops.h"
#include "on_threads.h"

namespace mw {
namespace {

using namespace kernel;

class RopeTable final : public OpType {
 public:
  explicit RopeTable(const RopeAngles& of) : of_(of), kernels_(of.scale) {}
  std::string kind() const override { return "rope_table"; }

  OpTraits traits(const Op&) const override { return without_gradient(2); }
  // Scores depend on how far tokens lie from each other, which is the same from any first token.
  std::optional<Op> in_documents(const Op& op, int, Graph&) const override { return op; }
  // Each row has angles of its own: (batch, seq, head_dim).
  std::optional<Op> in_parted_documents(const Op& op, int places, int, Graph&) const override {
    const Dim batch("batch");
    Op form = op;
    form.inputs[0] = {places, {batch, op.inputs[0].dims[0]}};
    for (Dims& dims : form.output_dims) dims.insert(dims.begin(), batch);
    return form;
  }

  // Angles in double: in fp32 those of late positions would lose digits.
  void forward(const Op& op, OpCall& call) const override {
    const std::int64_t width = call.dims.at(op.output_dims[0].back()).global;
    const at::TensorOptions options = call.inputs[0].options().dtype(at::kDouble);
    if (fused(call, width)) return;
    const at::Tensor angle =
        call.inputs[0].to(at::kDouble).unsqueeze(-1).mul(turns(width, options));
    const at::Tensor cosine = angle.cos().mul_(of_.scale).to(call.real);
    const at::Tensor sine = angle.sin().mul_(of_.scale).to(call.real);
    const auto both = [&](const at::Tensor& first, const at::Tensor& second) {
      if (of_.pairs == RopePairs::halves) return at::cat({first, second}, -1);
      return at::stack({first, second}, -1).flatten(-2);
    };
    set_outputs(call, {both(cosine, cosine), both(sine.neg(), sine)});
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.output_dims[0]);
    Cost cost;
    cost.executed = static_cast<double>(2 * elements);
    cost.bytes = static_cast<double>(2 * elements * element);
    // Angles, cosines, sines, and negated sines, each of half the width.
    const std::int64_t half = elements / 2;
    cost.workspace = (8 + 3 * element) * half;
    cost.further_kernels = 4;  // the places in double, and three for the turns
    return cost;
  }

 private:
  // Cosines and sines in one kernel. Both halves of a pair have one place in memory, the other one.
  bool fused(OpCall& call, std::int64_t width) const {
    if (!Fused::serves(call.inputs[0])) return false;
    const at::Tensor place = call.inputs[0].to(at::kDouble).unsqueeze(-1);
    const at::Tensor turned = turns(width, place.options());
    std::vector<std::int64_t> sizes = place.sizes().vec();
    sizes.back() = 2 * turned.size(0);
    std::vector<at::Tensor> tables;
    std::vector<Target> to;
    for (int table = 0; table < 2; ++table) {
      tables.push_back(at::empty(sizes, place.options().dtype(call.real)));
      for (int half = 0; half < 2; ++half) {
        const bool halves = of_.pairs == RopePairs::halves;
        const at::Tensor pairs = tables.back().unflatten(
            -1, halves ? at::IntArrayRef{2, turned.size(0)} : at::IntArrayRef{turned.size(0), 2});
        to.push_back({pairs.select(halves ? -2 : -1, half)});
      }
    }
    if (!kernels_.fused.run({kernels_.cosine, kernels_.cosine, kernels_.negative, kernels_.sine},
                            to, {place, turned}))
      return false;
    set_outputs(call, std::move(tables));
    return true;
  }

  struct Kernels {
    explicit Kernels(double scale, Expressions f = {})
        : cosine(f.parse(fmt::format("cos(a * b) * {}", scale))),
          sine(f.parse(fmt::format("sin(a * b) * {}", scale))),
          negative(f.parse(fmt::format("0 - sin(a * b) * {}", scale))),
          fused(std::move(f), 2) {}
    int cosine, sine, negative;
    Fused fused;
  };

  // By how much each pair turns from one position to the next.
  at::Tensor turns(std::int64_t width, const at::TensorOptions& options) const {
    if (!of_.angles.empty()) return at::tensor(of_.angles, at::kDouble).to(options.device());
    return at::pow(of_.theta, at::arange(0, width, 2, options).mul_(-1.0 / double(width)));
  }

  const RopeAngles of_;
  const Kernels kernels_;
};

// The size of a chunk of x (batch, seq, heads, head_dim): whole sequences, or part of one.
struct Chunks {
  std::int64_t batch = 1, seq = 1;
};

Chunks chunks_of(std::int64_t batch, std::int64_t seq, std::int64_t row_bytes) {
  const std::int64_t rows = chunk_rows(batch * seq, row_bytes);
  if (rows >= seq) return {std::min(batch, rows / seq), seq};
  return {1, rows};
}

// Exchanges the halves of the last dim. The halves of a head are short: moved as 16-byte words they
// cost a quarter of the loop steps.
void swap_halves(const at::Tensor& out, const at::Tensor& x) {
  const std::int64_t width = x.size(-1);
  at::Tensor from = x, to = out;
  const std::int64_t word = 16 / x.element_size();
  if (width % (2 * word) == 0 && x.storage_offset() % word == 0 &&
      out.storage_offset() % word == 0 && x.stride(0) % word == 0 && x.stride(1) % word == 0 &&
      x.stride(2) % word == 0 && x.stride(3) == 1) {
    from = x.view(at::kComplexDouble);
    to = out.view(at::kComplexDouble);
  }
  const std::int64_t half = from.size(-1) / 2;
  to.narrow(-1, 0, half).copy_(from.narrow(-1, half, half));
  to.narrow(-1, half, half).copy_(from.narrow(-1, 0, half));
}

// Exchanges the two elements of each pair of neighbours.
void swap_neighbours(const at::Tensor& out, const at::Tensor& x) {
  const at::Tensor from = x.unflatten(-1, {-1, 2}), to = out.unflatten(-1, {-1, 2});
  to.select(-1, 0).copy_(from.select(-1, 1));
  to.select(-1, 1).copy_(from.select(-1, 0));
}

// Rotates row by row, by a loop of vector/. The numbers of each head must be adjacent.
template <class T>
void rotate_rows(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cosine,
                 const at::Tensor& sine, RopePairs pairs, double sign, bool add) {
  const std::int64_t width = x.size(3);
  vector::Heads<T> h{nullptr, nullptr, x.size(2), width, x.stride(2), y.stride(2)};
  h.halves = pairs == RopePairs::halves;
  h.sign = static_cast<T>(sign);
  h.write = add ? vector::Write::added : vector::Write::over;
  const std::int64_t seq = x.size(1);
  rows_on_threads(x.size(0) * seq, x.size(2) * width, [&](std::int64_t begin, std::int64_t end) {
    vector::Heads<T> row = h;
    for (std::int64_t n = begin; n < end; ++n) {
      const std::int64_t b = n / seq, s = n % seq;
      row.x = data<T>(x) + b * x.stride(0) + s * x.stride(1);
      row.y = data<T>(y) + b * y.stride(0) + s * y.stride(1);
      vector::loops<T>().rotate(row, data<T>(cosine) + s * width, data<T>(sine) + s * width);
    }
  });
}

// The two numbers of each pair of the last dim: its halves, or neighbours.
std::array<at::Tensor, 2> pairs_of(const at::Tensor& x, RopePairs pairs) {
  const std::int64_t half = x.size(-1) / 2;
  if (pairs == RopePairs::halves) return {x.narrow(-1, 0, half), x.narrow(-1, half, half)};
  const at::Tensor both = x.unflatten(-1, {half, 2});
  return {both.select(-1, 0), both.select(-1, 1)};
}

// Rotates pairs (a, b) by their cosines (c, d) and sines (e, f), in one direction or the other.
bool fused_rotate(const Target& y, const at::Tensor& x, const at::Tensor& cosine,
                  const at::Tensor& sine, RopePairs pairs, double sign) {
  struct Kernels {
    explicit Kernels(bool forward, Expressions f = {})
        : roots{f.parse(forward ? "a * c + b * e" : "a * c - b * e"),
                f.parse(forward ? "b * d + a * f" : "b * d - a * f")},
          fused(std::move(f), 6) {}
    std::vector<int> roots;
    Fused fused;
  };
  if (!Fused::serves(x)) return false;
  static const Kernels forward(true), back(false);
  const Kernels& kernels = sign > 0 ? forward : back;
  const auto [to, too] = pairs_of(y.tensor, pairs);
  const auto [a, b] = pairs_of(x, pairs);
  const auto [c, d] = pairs_of(cosine.unsqueeze(1), pairs);
  const auto [e, f] = pairs_of(sine.unsqueeze(1), pairs);
  return kernels.fused.run(kernels.roots, {{to, y.add}, {too, y.add}}, {a, b, c, d, e, f});
}

// y = x * cos + sign * swap(x) * sin, chunk by chunk; y may be x. Adds to y if `add`.
void rotate(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cos_table,
            const at::Tensor& sin_table, RopePairs pairs, double sign, bool add) {
  const std::int64_t batch = x.size(0), seq = x.size(1), heads = x.size(2), width = x.size(3);
  if (x.numel() == 0) return;
  if (fused_rotate({y, add}, x, cos_table, sin_table, pairs, sign)) return;
  if (looped(cos_table, sin_table) && x.is_cpu() && x.stride(3) == 1 && y.stride(3) == 1 &&
      x.scalar_type() == cos_table.scalar_type() && y.scalar_type() == x.scalar_type()) {
    in_its_type(x,
                [&]<class T>(T) { rotate_rows<T>(y, x, cos_table, sin_table, pairs, sign, add); });
    return;
  }
  Chunks step{batch, seq};
  if (x.is_cpu()) step = chunks_of(batch, seq, heads * width * x.element_size());
  const at::Tensor buffer = at::empty({step.batch * step.seq, heads, width}, x.options());
  const at::Tensor cosine = cos_table.to(x.scalar_type()).unsqueeze(1);
  const at::Tensor sine = sin_table.to(x.scalar_type()).unsqueeze(1);
  for (std::int64_t b = 0; b < batch; b += step.batch) {
    const std::int64_t nb = std::min(step.batch, batch - b);
    for (std::int64_t s = 0; s < seq; s += step.seq) {
      const std::int64_t ns = std::min(step.seq, seq - s);
      const at::Tensor xc = part_of(part_of(x, 0, b, nb), 1, s, ns);
      at::Tensor yc = part_of(part_of(y, 0, b, nb), 1, s, ns);
      at::Tensor swapped = part_of(buffer, 0, 0, nb * ns).view({nb, ns, heads, width});
      const at::Tensor c = part_of(cosine, 0, s, ns);
      if (pairs == RopePairs::halves) {
        swap_halves(swapped, xc);
      } else {
        swap_neighbours(swapped, xc);
      }
      if (add) {
        yc.addcmul_(xc, c);
      } else {
        at::mul_out(yc, xc, c);
      }
      yc.addcmul_(swapped, part_of(sine, 0, s, ns), sign);
    }
  }
}

// rotate() with one table for all sequences, or with a table for each.
void rotate_all(const at::Tensor& y, const at::Tensor& x, const at::Tensor& cosine,
                const at::Tensor& sine, RopePairs pairs, double sign, bool add) {
  if (cosine.dim() == 2) return rotate(y, x, cosine, sine, pairs, sign, add);
  for (std::int64_t b = 0; b < x.size(0); ++b)
    rotate(part_of(y, 0, b, 1), part_of(x, 0, b, 1), cosine[b], sine[b], pairs, sign, add);
}

// The part of x that is rotated, a view (batch, seq, heads, width): of x's last dim the end, or, if
// `first`, the beginning, as wide as the table. An x (batch, seq, width) has one head.
at::Tensor turning(const at::Tensor& x, const at::Tensor& table, bool first) {
  const std::int64_t width = table.size(-1);
  const at::Tensor part = part_of(x, -1, first ? 0 : x.size(-1) - width, width);
  return x.dim() == 3 ? part.unsqueeze(2) : part;
}
// The part of x that is not rotated; nullopt if all of it is.
std::optional<at::Tensor> still(const at::Tensor& x, const at::Tensor& table, bool first) {
  const std::int64_t width = x.size(-1) - table.size(-1);
  if (width == 0) return std::nullopt;
  return x.narrow(-1, first ? table.size(-1) : 0, width);
}

class Rope final : public OpType {
 public:
  Rope(RopePairs pairs, bool first) : pairs_(pairs), first_(first) {}
  std::string kind() const override { return "rope"; }
  OpClass op_class() const override { return OpClass::elementwise; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.backward_reads_input = {false, true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false, false};
    traits.forward_in_place = 0;
    return traits;
  }

  std::optional<Op> in_parted_documents(const Op& op, int, int, Graph& graph) const override {
    Op form = op;
    for (const std::size_t table : {1, 2}) {
      Dims& dims = form.inputs[table].dims;
      if (graph.value(op.inputs[table].value).dims.size() > dims.size())
        dims.insert(dims.begin(), op.inputs[0].dims[0]);
    }
    return form;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor &x = call.inputs[0], &table = call.inputs[1];
    const at::Tensor y = call.in_place ? x : at::empty_like(x, at::MemoryFormat::Contiguous);
    if (const auto rest = still(y, table, first_); rest && !call.in_place)
      rest->copy_(*still(x, table, first_));
    rotate_all(turning(y, table, first_), turning(x, table, first_), table, call.inputs[2], pairs_,
               1, false);
    set_outputs(call, {y});
  }

  // The inverse rotation. May be written over the output's gradient.
  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor &dy = call.grad_outputs[0], &table = call.inputs[1];
    const Target dx = target(call, 0, dy.sizes(), dy.options());
    if (const auto rest = still(dx.tensor, table, first_)) {
      if (dx.add) {
        rest->add_(*still(dy, table, first_));
      } else if (dx.tensor.data_ptr() != dy.data_ptr()) {
        rest->copy_(*still(dy, table, first_));
      }
    }
    rotate_all(turning(dx.tensor, table, first_), turning(dy, table, first_), table, call.inputs[2],
               pairs_, -1, dx.add);
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const Dims& d = op.inputs[0].dims;
    const Dims& angles = op.inputs[1].dims;
    const std::int64_t width = dims.at(angles.back()).size;
    const std::int64_t row = d.size() == 3 ? width : dims.at(d[2]).size * width;
    const std::int64_t elements = dims.count(d), table = dims.count(angles);
    const Chunks step = chunks_of(dims.at(d[0]).size, dims.at(d[1]).size, row * element);
    Cost cost;
    cost.executed = 3.0 * static_cast<double>(dims.at(d[0]).size * dims.at(d[1]).size * row);
    cost.bytes = static_cast<double>((2 * elements + 2 * table) * element);
    // On a CPU only half types need memory: all others have loops.
    cost.workspace = elements == 0 || element >= 4 ? 0 : step.batch * step.seq * row * element;
    // What ATen's kernels need: a fused kernel needs nothing.
    cost.accelerator_workspace = dims.at(d[0]).size * dims.at(d[1]).size * row * element;
    return cost;
  }

 private:
  const RopePairs pairs_;
  const bool first_;
};

}  // namespace

OpTypePtr rope_table(const RopeAngles& angles) {
  return std::make_shared<RopeTable>(angles);
}

OpTypePtr rope(RopePairs pairs, bool first) {
  static const auto both = [](bool at_first) {
    return std::array<OpTypePtr, 2>{std::make_shared<Rope>(RopePairs::halves, at_first),
                                    std::make_shared<Rope>(RopePairs::neighbours, at_first)};
  };
  static const std::array<OpTypePtr, 2> last = both(false), of_first = both(true);
  return (first ? of_first : last)[pairs == RopePairs::halves ? 0 : 1];
}

}  // namespace mw
