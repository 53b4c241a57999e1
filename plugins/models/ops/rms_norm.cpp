// RMSNorm, forward and backward: on GPUs by fused kernels, or by ATen's; on a CPU by loops of our
// own; for half types in chunks of rows that stay in cache.
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "fused.h"
#include "kernel.h"
#include "meshwright/ops.h"
#include "on_threads.h"

namespace mw {
namespace {

using namespace kernel;

// Several threads compute the weight's gradient first, each for some columns, and then the input's,
// each for some rows: every sum is made in the order in which one thread makes it.
template <class T>
void looped_backward(const vector::RmsBackward<T>& all, std::int64_t rows, std::int64_t columns) {
  const auto loop = vector::loops<T>().rms_backward;
  if (at::get_num_threads() == 1) return loop(all, rows, columns);
  if (all.dw != nullptr) {
    rows_on_threads(columns, rows, [&](std::int64_t begin, std::int64_t end) {
      vector::RmsBackward<T> part = all;
      part.dx = nullptr;
      part.dy += begin, part.x += begin, part.weight += begin, part.dw += begin;
      loop(part, rows, end - begin);
    });
  }
  if (all.dx == nullptr) return;
  rows_on_threads(rows, columns, [&](std::int64_t begin, std::int64_t end) {
    vector::RmsBackward<T> part = all;
    part.dw = nullptr;
    part.dy += begin * columns, part.x += begin * columns, part.dx += begin * columns;
    part.rstd += begin;
    loop(part, end - begin, columns);
  });
}

// ATen has no fused kernel on CPU. Where no loop of ours serves, each chunk of rows is read,
// normalised and scaled while it is in cache. Backward needs two sums of t = dy * x only, both
// matrix-vector products:
//   row:     c = (t w) rstd^3 / hidden        dx = dy w rstd - x c
//   column:  dw = t^T rstd
class RmsNorm final : public OpType {
 public:
  explicit RmsNorm(double eps) : eps_(eps), kernels_(eps) {}
  std::string kind() const override { return "rms_norm"; }
  OpClass op_class() const override { return OpClass::norm; }

  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input = {true, true};
    traits.backward_reads_output = {false};
    traits.saved = {{"rstd", normalised_rows(op), 0, true}};
    traits.gradient_passes = {false, false};
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const std::int64_t columns = call.inputs[1].numel();
    const at::Tensor x = rows_of(call.inputs[0], columns), weight = call.inputs[1].view({1, -1});
    if (fused_forward(op, call, x, weight)) return;
    if (x.is_cuda()) {
      const auto [made, saved] = at::_fused_rms_norm(x, {columns}, weight.view({-1}), eps_);
      set_outputs(call, {made.view(call.inputs[0].sizes())});
      call.saved = {saved.view(call.dims.shape(normalised_rows(op)))};
      return;
    }
    const std::int64_t count = x.size(0);
    const at::Tensor rstd = at::empty({count, 1}, x.options().dtype(wide(x)));
    const at::Tensor y = at::empty(x.sizes(), x.options());
    set_outputs(call, {y.view(call.inputs[0].sizes())});
    call.saved = {rstd.view(call.dims.shape(normalised_rows(op)))};
    if (looped(x, weight)) {
      in_its_type(x, [&]<class T>(T) {
        rows_on_threads(count, columns, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t at = begin * columns;
          vector::loops<T>().rms_forward(data<T>(y) + at, data<T>(rstd) + begin, data<T>(x) + at,
                                         data<T>(weight), end - begin, columns,
                                         static_cast<T>(eps_));
        });
      });
      return;
    }
    const std::int64_t step = chunk_rows(x, count, columns * x.element_size());
    for (std::int64_t r = 0; r < count; r += step) {
      const std::int64_t n = std::min(step, count - r);
      at::Tensor xc = part_of(x, 0, r, n), sc = part_of(rstd, 0, r, n), yc = part_of(y, 0, r, n);
      const at::Tensor sum = at::linalg_vector_norm(xc, 2, 1, true, sc.scalar_type());
      at::mul_out(sc, sum, sum);
      sc.mul_(1.0 / static_cast<double>(columns)).add_(eps_).rsqrt_();
      if (is_half(x)) {
        yc.copy_(xc.to(at::kFloat).mul_(sc).mul_(weight));
      } else {
        at::mul_out(yc, xc, sc);
        yc.mul_(weight);
      }
    }
  }

  void backward(const Op&, OpCall& call) const override {
    if (wanted(call, 0) && fused_backward(call)) return;
    if (call.inputs[0].is_cuda()) return aten_backward(call);
    const std::int64_t columns = call.inputs[1].numel();
    const bool half = is_half(call.inputs[0]);
    const at::ScalarType type = wide(call.inputs[0]);
    const at::Tensor x = rows_of(call.inputs[0], columns);
    const at::Tensor dy = rows_of(call.grad_outputs[0], columns);
    const at::Tensor weight = call.inputs[1].view({-1}).to(type);
    const at::Tensor rstd = call.saved[0].reshape({-1, 1});
    const std::int64_t count = x.size(0);

    Target dx, dw;
    at::Tensor sum;  // accumulates dw; for half types a tensor of its own, in fp32
    if (wanted(call, 0)) dx = target(call, 0, call.inputs[0].sizes(), x.options());
    if (wanted(call, 1)) {
      dw = target(call, 1, call.inputs[1].sizes(), x.options());
      if (!dw.add) dw.tensor.zero_();
      sum = half ? at::zeros({columns}, weight.options()) : dw.tensor.view({columns});
    }
    if (looped(x, dy, weight, rstd, dx.tensor, sum)) {
      in_its_type(x, [&]<class T>(T) {
        looped_backward<T>({data<T>(dy), data<T>(x), data<T>(weight), data<T>(rstd),
                            data<T>(dx.tensor), data<T>(sum), written(dx), columns},
                           count, columns);
      });
      return;
    }
    const std::int64_t step = chunk_rows(x, count, columns * x.element_size());
    at::Tensor buffer = at::empty({std::min(step, count), columns}, weight.options());
    for (std::int64_t r = 0; r < count; r += step) {
      const std::int64_t n = std::min(step, count - r);
      at::Tensor xc = part_of(x, 0, r, n).to(type);
      const at::Tensor gc = part_of(dy, 0, r, n).to(type), sc = part_of(rstd, 0, r, n);
      at::Tensor t = part_of(buffer, 0, 0, n);
      at::mul_out(t, gc, xc);
      if (sum.defined()) sum.addmv_(t.t(), sc.view({n}));
      if (!dx.tensor.defined()) continue;
      at::Tensor c = at::mv(t, weight).unsqueeze(1);
      c.mul_(sc).mul_(sc).mul_(sc).mul_(-1.0 / static_cast<double>(columns));
      at::Tensor to = part_of(dx.tensor.view({count, columns}), 0, r, n);
      at::Tensor made = dx.add || half ? t : to;
      at::mul_out(made, gc, weight);
      made.mul_(sc).addcmul_(xc, c);
      if (half) {
        // Adding tensors of two types makes fp32 copies of both; x's copy is no longer needed, and
        // serves.
        if (dx.add) made.add_(xc.copy_(to));
        to.copy_(made);
      } else if (dx.add) {
        to.add_(made);
      }
    }
    if (half && sum.defined()) dw.tensor.view({columns}).add_(sum);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t columns = dims.count(op.inputs[1].dims);
    const std::int64_t count = dims.count(normalised_rows(op));
    const std::int64_t elements = count * columns;
    const std::int64_t sum = wide_element(element);
    const std::int64_t number = 8 + 4;  // bytes of a scalar factor, as an fp64 tensor and in fp32
    Cost cost;
    if (piece == Piece::forward) {
      cost.executed = 4.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>((2 * elements + columns) * element + count * sum);
      workspace_of_half_rows(cost, element, count, columns * element, [&](std::int64_t step) {
        return step * sum + (step + 1) * columns * sum;
      });
      cost.accelerator_workspace = 0;
    } else {
      cost.executed = 10.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>((3 * elements + 2 * columns) * element + count * sum);
      workspace_of_half_rows(cost, element, count, columns * element, [&](std::int64_t step) {
        return step * (columns + 1) * sum + number + 2 * step * columns * sum + 2 * columns * sum;
      });
      // The fused kernel makes sums of some rows of the weight's gradient. One kernel adds them up,
      // and another one writes or adds the result.
      const std::int64_t sums = Fused::summing_blocks(columns / 8, count) * columns * sum;
      cost.further_kernels = 2;
      cost.further_bytes = static_cast<double>(2 * sums);
      // ATen's kernel makes the input's gradient before it is added; a fused one adds itself.
      cost.accelerator_workspace = std::max(elements * element, sums + columns * sum);
    }
    return cost;
  }

 private:
  // Fused kernels of the input, the weight, the output's gradient and rstd.
  struct Kernels {
    explicit Kernels(double eps, Expressions f = {})
        : y(f.parse(fmt::format("a * rsqrt(e + {}) * b", eps))),
          rstd(f.parse(fmt::format("rsqrt(e + {})", eps))),
          dx(f.parse("(c * b - a * (f * d * d)) * d")),
          dw(f.parse("c * a * d")),
          square(f.parse("a * a")),
          product(f.parse("c * b * a")),
          fused(std::move(f), 4,
                {{RowReduction::Kind::mean, square}, {RowReduction::Kind::mean, product}}) {}
    int y, rstd, dx, dw, square, product;
    Fused fused;
  };

  bool fused_forward(const Op& op, OpCall& call, const at::Tensor& x,
                     const at::Tensor& weight) const {
    if (!Fused::serves(x)) return false;
    const at::Tensor y = at::empty(x.sizes(), x.options());
    const at::Tensor rstd = at::empty({x.size(0), 1}, x.options().dtype(wide(x)));
    if (!kernels_.fused.run({kernels_.y, kernels_.rstd}, {{y}, {rstd}}, {x, weight})) return false;
    set_outputs(call, {y.view(call.inputs[0].sizes())});
    call.saved = {rstd.view(call.dims.shape(normalised_rows(op)))};
    return true;
  }

  bool fused_backward(OpCall& call) const {
    const std::int64_t columns = call.inputs[1].numel();
    const at::Tensor x = rows_of(call.inputs[0], columns);
    if (!Fused::serves(x)) return false;
    Target dx = target(call, 0, call.inputs[0].sizes(), x.options());
    dx.tensor = dx.tensor.view(x.sizes());
    Fused::ColumnSums dw{kernels_.dw, {}};
    if (!kernels_.fused.run(
            {kernels_.dx}, {dx},
            {x, call.inputs[1].view({1, -1}), rows_of(call.grad_outputs[0], columns),
             call.saved[0].reshape({-1, 1})},
            wanted(call, 1) ? &dw : nullptr))
      return false;
    if (wanted(call, 1))
      put(target(call, 1, call.inputs[1].sizes(), x.options()),
          dw.sums.sum(0).view(call.inputs[1].sizes()));
    return true;
  }

  static void aten_backward(OpCall& call) {
    const std::int64_t columns = call.inputs[1].numel();
    const auto [dx, dw] = at::_fused_rms_norm_backward(
        rows_of(call.grad_outputs[0], columns), rows_of(call.inputs[0], columns), {columns},
        call.saved[0].reshape({-1, 1}), call.inputs[1].view({-1}),
        {wanted(call, 0), wanted(call, 1)});
    if (dx.defined()) deliver(call, 0, dx.view(call.inputs[0].sizes()));
    if (dw.defined()) deliver(call, 1, dw.view(call.inputs[1].sizes()));
  }

  double eps_;
  Kernels kernels_;
};

}  // namespace

OpTypePtr rms_norm(double eps) {
  return only_of<RmsNorm>(eps);
}

}  // namespace mw
