// Cross-entropy over a vocab that may be cut, in pieces between which the partial results of the
// ranks are reduced. The maximum only shifts the exponentials into range: it cancels, and has no
// gradient.
#include <limits>

#include "fused.h"
#include "kernel.h"
#include "meshwright/ops.h"
#include "on_threads.h"

namespace mw {
namespace {

using namespace kernel;

class CeMax final : public OpType {
 public:
  std::string kind() const override { return "ce_max"; }
  OpClass op_class() const override { return OpClass::loss_part; }

  OpTraits traits(const Op&) const override { return without_gradient(1); }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor& logits = call.inputs[0];
    if (logits.size(-1) == 0) {  // this rank has no part of the vocab
      const auto rows = logits.sizes().slice(0, logits.dim() - 1);
      set_outputs(call,
                  {at::full(rows, -std::numeric_limits<double>::infinity(), logits.options())});
    } else {
      set_outputs(call, {logits.amax(-1)});
    }
  }

  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    Cost cost;
    cost.workspace = 0;
    cost.executed = static_cast<double>(elements);
    cost.bytes = static_cast<double>((elements + dims.count(op.output_dims[0])) * element);
    return cost;
  }
};

// Where no kernel treats rows in one pass: bytes of rows that an accelerator treats at a time.
constexpr std::int64_t accelerator_bytes = 64 << 20;

class CeStats final : public OpType {
 public:
  std::string kind() const override { return "ce_stats"; }
  OpClass op_class() const override { return OpClass::loss; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.fp32_outputs = {true};
    traits.backward_reads_input = {true, true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false, false};
    traits.backward_may_overwrite_saved = true;
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const LocalDim& vocab = call.dims.at(op.inputs[0].dims.back());
    const at::Tensor logits = rows_of(call.inputs[0], std::max<std::int64_t>(vocab.size, 1));
    const at::Tensor max = call.inputs[1].reshape({-1, 1});
    const at::Tensor labels = call.inputs[2].reshape({-1, 1});
    const std::int64_t count = max.size(0);
    at::Tensor stats = at::empty({2, count}, options(logits));
    set_outputs(call, {stats.view(call.dims.shape(op.output_dims[0]))});
    if (vocab.size == 0) {
      stats.zero_();
      return;
    }
    if (fused_forward(logits, max, labels, vocab, stats)) return;
    if (looped(logits, max, stats)) {
      in_its_type(logits, [&]<class T>(T) {
        rows_on_threads(count, vocab.size, [&](std::int64_t begin, std::int64_t end) {
          vector::loops<T>().exp_sum(data<T>(stats) + begin, data<T>(logits) + begin * vocab.size,
                                     data<T>(max) + begin, end - begin, vocab.size);
        });
        pick(data<T>(stats) + count, data<T>(logits), data<T>(max), labels.contiguous(), vocab);
      });
      return;
    }
    const std::int64_t step = rows_at_once(logits, count, vocab);
    const at::Tensor buffer = at::empty({std::min(step, count), vocab.size}, options(logits));
    for (std::int64_t r = 0; r < count; r += step) {
      const std::int64_t n = std::min(step, count - r);
      const at::Tensor lc = part_of(logits, 0, r, n), mc = part_of(max, 0, r, n);
      at::Tensor shifted = part_of(buffer, 0, 0, n);
      shift(lc, mc, shifted);
      LocalLabels held = held_of(part_of(labels, 0, r, n), vocab);
      at::Tensor picked = shifted.gather(1, held.index);
      if (held.factor.defined()) picked.mul_(held.factor);
      part_of(stats[1], 0, r, n).copy_(picked.squeeze(1));
      shifted.exp_();
      at::Tensor to = part_of(stats[0], 0, r, n);
      at::sum_out(to, shifted, 1);
    }
  }

  // d logits = exp(logit - max) d first, plus d second at the label. May be written over the
  // logits.
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const LocalDim& vocab = call.dims.at(op.inputs[0].dims.back());
    const Target to = target(call, 0, call.inputs[0].sizes(), call.inputs[0].options());
    if (vocab.size == 0) return;
    const at::Tensor logits = rows_of(call.inputs[0], vocab.size);
    const at::Tensor dlogits = to.tensor.view({-1, vocab.size});
    const at::Tensor max = call.inputs[1].reshape({-1, 1});
    const at::Tensor labels = call.inputs[2].reshape({-1, 1});
    const at::Tensor dstats = call.grad_outputs[0].reshape({2, -1, 1});
    const at::Tensor dsum = dstats[0], dpicked = dstats[1];
    const std::int64_t count = max.size(0);
    if (fused_backward(logits, max, labels, vocab, dstats, {dlogits, to.add})) return;
    if (looped(logits, dlogits, max, dstats)) {
      in_its_type(logits, [&]<class T>(T) {
        rows_on_threads(count, vocab.size, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t at = begin * vocab.size;
          vector::loops<T>().exp_scaled(data<T>(dlogits) + at, data<T>(logits) + at,
                                        data<T>(max) + begin, data<T>(dsum) + begin, end - begin,
                                        vocab.size, written(to));
        });
        add_picked(data<T>(dlogits), data<T>(dpicked), labels.contiguous(), vocab);
      });
      return;
    }
    const std::int64_t step = rows_at_once(logits, count, vocab);
    const bool apart = to.add || is_half(logits);
    at::Tensor buffer;
    if (apart) buffer = at::empty({std::min(step, count), vocab.size}, options(logits));
    for (std::int64_t r = 0; r < count; r += step) {
      const std::int64_t n = std::min(step, count - r);
      at::Tensor goal = part_of(dlogits, 0, r, n);
      at::Tensor made = apart ? part_of(buffer, 0, 0, n) : goal;
      shift(part_of(logits, 0, r, n), part_of(max, 0, r, n), made);
      exp_scaled(made, part_of(dsum, 0, r, n));
      const LocalLabels held = held_of(part_of(labels, 0, r, n), vocab);
      at::Tensor source = part_of(dpicked, 0, r, n).to(made.scalar_type());
      if (held.factor.defined()) source = source.mul(held.factor);
      made.scatter_add_(1, held.index, source);
      if (apart) put({goal, to.add}, made);
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const LocalDim& vocab = dims.at(op.inputs[0].dims.back());
    const std::int64_t count = dims.count(op.inputs[1].dims), elements = count * vocab.size;
    const bool cut = vocab.size < vocab.global;
    const std::int64_t sum = wide_element(element);
    Cost cost;
    cost.workspace = 0;
    if (piece == Piece::forward) {
      cost.executed = 3.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>(elements * element + count * (3 * element + 8));
    } else {
      cost.executed = 3.0 * static_cast<double>(elements);
      cost.bytes = static_cast<double>(2 * elements * element + count * (3 * element + 8));
    }
    if (vocab.size == 0) return cost;
    // The shifted logits and a column of them. If the vocab is cut, also the labels' indices,
    // whether a label is held here, and the factor made from that, for which a CPU casts it.
    const bool forward = piece == Piece::forward;
    const std::int64_t shifted = vocab.size * sum + (cut && forward ? 0 : sum);
    const auto of = [&](std::int64_t step, std::int64_t cast) {
      const std::int64_t row = cut ? 8 + 1 + sum + cast : 0;
      return std::min(step, count) * (row + (forward || element < 4 ? shifted : 0));
    };
    // On a CPU only half types need memory: all others have loops.
    cost.workspace = element < 4 ? of(chunk_rows(count, vocab.size * element), sum) : 0;
    // Beside a kernel of one pass, the labels' elements are made apart: two numbers of each, and if
    // the vocab is cut, what held_of() makes.
    const std::int64_t one_pass = count * (2 * sum + (cut ? 8 + 2 + sum : 0));
    cost.accelerator_workspace =
        std::max(of(accelerator_rows(count, vocab.size * sum), 0), one_pass);
    return cost;
  }

 private:
  // Each row's label as a column of this rank's part of the vocab; if the vocab is cut, also 1 or 0
  // for whether it lies there.
  struct LocalLabels {
    at::Tensor index, factor;
  };

  // picked = the label's logit - max, where the label is here, else 0.
  template <class T>
  static void pick(T* picked, const T* logits, const T* max, const at::Tensor& labels,
                   const LocalDim& vocab) {
    const auto* label = labels.const_data_ptr<std::int64_t>();
    for (std::int64_t r = 0; r < labels.numel(); ++r) {
      const std::int64_t at = label[r] - vocab.offset;
      TORCH_CHECK_INDEX(label[r] >= 0 && label[r] < vocab.global, "label ", label[r],
                        " is not below the vocab's ", vocab.global);
      picked[r] = at >= 0 && at < vocab.size ? logits[r * vocab.size + at] - max[r] : T(0);
    }
  }

  template <class T>
  static void add_picked(T* dlogits, const T* dpicked, const at::Tensor& labels,
                         const LocalDim& vocab) {
    const auto* label = labels.const_data_ptr<std::int64_t>();
    for (std::int64_t r = 0; r < labels.numel(); ++r) {
      const std::int64_t at = label[r] - vocab.offset;
      if (at >= 0 && at < vocab.size) dlogits[r * vocab.size + at] += dpicked[r];
    }
  }

  // Kernels of one pass, of the logits, the maximum and the gradient of the sum.
  struct Kernels {
    explicit Kernels(Expressions f = {})
        : sum(f.parse("d")),
          dlogits(f.parse("exp(a - b) * c")),
          power(f.parse("exp(a - b)")),
          fused(std::move(f), 3, {{RowReduction::Kind::sum, power}}) {}
    int sum, dlogits, power;
    Fused fused;
  };
  static const Kernels& kernels() {
    static const Kernels all;
    return all;
  }

  static bool fused_forward(const at::Tensor& logits, const at::Tensor& max,
                            const at::Tensor& labels, const LocalDim& vocab,
                            const at::Tensor& stats) {
    if (!Fused::serves(logits) ||
        !kernels().fused.run({kernels().sum}, {{stats[0].unsqueeze(1)}}, {logits, max}))
      return false;
    const LocalLabels held = held_of(labels, vocab);
    at::Tensor picked = logits.gather(1, held.index).to(stats.scalar_type()).sub_(max);
    if (held.factor.defined()) picked.mul_(held.factor);
    stats[1].copy_(picked.squeeze(1));
    return true;
  }

  // A label's element is made apart: rounded to a half type, the two terms of its gradient would
  // leave little of their difference. It is read first, as the gradient may lie on the logits.
  static bool fused_backward(const at::Tensor& logits, const at::Tensor& max,
                             const at::Tensor& labels, const LocalDim& vocab,
                             const at::Tensor& dstats, const Target& to) {
    if (!Fused::serves(logits)) return false;
    const LocalLabels held = held_of(labels, vocab);
    at::Tensor dpicked = dstats[1];
    if (held.factor.defined()) dpicked = dpicked.mul(held.factor);
    at::Tensor made = logits.gather(1, held.index).to(dstats.scalar_type()).sub_(max).exp_();
    made.mul_(dstats[0]).add_(dpicked);
    if (to.add) made.add_(to.tensor.gather(1, held.index));
    if (!kernels().fused.run({kernels().dlogits}, {to}, {logits, max, dstats[0]})) return false;
    to.tensor.scatter_(1, held.index, made.to(to.tensor.scalar_type()));
    return true;
  }

  static std::int64_t accelerator_rows(std::int64_t count, std::int64_t row_bytes) {
    return std::clamp<std::int64_t>(accelerator_bytes / row_bytes, 1,
                                    std::max<std::int64_t>(count, 1));
  }
  // How many of `count` rows are treated at a time.
  static std::int64_t rows_at_once(const at::Tensor& logits, std::int64_t count,
                                   const LocalDim& vocab) {
    if (logits.is_cpu()) return chunk_rows(count, vocab.size * logits.element_size());
    return accelerator_rows(count, vocab.size * at::elementSize(wide(logits)));
  }

  static LocalLabels held_of(const at::Tensor& labels, const LocalDim& vocab) {
    if (vocab.size == vocab.global) return {labels, {}};
    at::Tensor index = labels - vocab.offset;
    at::Tensor held = index.ge(0);
    held.logical_and_(index.lt(vocab.size));
    return {index.clamp_(0, vocab.size - 1), held};
  }

  // made = exp(made) by[row], for `made` of at most 0, where exp is the slope of an ELU. An
  // accelerator computes that in one pass; a CPU has its own exp.
  static void exp_scaled(at::Tensor& made, const at::Tensor& by) {
    if (made.is_cpu()) {
      made.exp_().mul_(by);
    } else {
      at::elu_backward_out(made, by, 1, 1, 1, /*is_result=*/false, made);
    }
  }

  // made = logits - max, in the type of `made`.
  static void shift(const at::Tensor& logits, const at::Tensor& max, at::Tensor& made) {
    if (made.scalar_type() == logits.scalar_type()) {
      at::sub_out(made, logits, max);
    } else if (!logits.is_cpu()) {  // an accelerator's kernel widens the logits as it reads them
      at::sub_out(made, logits, max.to(made.scalar_type()));
    } else {
      made.copy_(logits).sub_(max);
    }
  }

  static at::TensorOptions options(const at::Tensor& logits) {
    return logits.options().dtype(wide(logits));
  }
};

class CeLoss final : public OpType {
 public:
  CeLoss(std::int64_t count, double weight, const char* of_step,
         const std::optional<LossDivisor>& divisor)
      : count_(static_cast<double>(count)),
        weight_(weight),
        scale_(weight / count_),
        of_step_(of_step),
        divisor_(divisor) {}
  std::string kind() const override { return "ce_loss"; }
  OpClass op_class() const override { return OpClass::loss_part; }
  std::vector<StepConstant> constants(const Op&) const override {
    if (of_step_.empty()) return {};
    return {{of_step_, count_}};
  }
  std::optional<MaskedLoss> masked_form() const override;

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.fp32_outputs = {true};
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false};
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor& stats = call.inputs[0];
    at::Tensor loss = stats[0].log().sub_(stats[1]).sum();
    set_outputs(call, {loss.mul_(scale_)});
  }

  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor& stats = call.inputs[0];
    const at::Tensor dloss = call.grad_outputs[0].mul(scale_);
    const Target to = target(call, 0, stats.sizes(), stats.options());
    if (to.add) {
      to.tensor[0].add_(dloss / stats[0]);
      to.tensor[1].sub_(dloss);
    } else {
      at::Tensor first = to.tensor[0];
      at::div_out(first, dloss, stats[0]);
      to.tensor[1].copy_(dloss.neg().expand_as(stats[1]));
    }
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t elements = dims.count(op.inputs[0].dims);
    const bool forward = piece == Piece::forward;
    Cost cost;
    cost.executed = static_cast<double>(elements);
    cost.bytes = static_cast<double>((forward ? 1 : 2) * elements * element);
    cost.further_kernels = 3;
    const std::int64_t number = wide_element(element);
    // Forward makes the logarithms, then the scale as a tensor in float64 and, for fp32 numbers, in
    // fp32.
    const std::int64_t scale = number == 4 ? 12 : 8;
    // Backward holds the scaled gradient and its negative, a number each.
    cost.workspace = forward ? std::max(elements / 2 * number, scale) : 2 * number;
    return cost;
  }

 private:
  const double count_, weight_, scale_;
  const std::string of_step_;
  // The divisor that the masked form reads. None: the loss has no masked form.
  const std::optional<LossDivisor> divisor_;
};

// The loss where not all labels count. Its second input is by how many each label's loss is divided
// (LossDivisor).
class MaskedCeLoss final : public OpType {
 public:
  explicit MaskedCeLoss(double weight) : weight_(weight) {}
  std::string kind() const override { return "ce_loss"; }
  OpClass op_class() const override { return OpClass::loss_part; }

  OpTraits traits(const Op&) const override {
    OpTraits traits;
    traits.fp32_outputs = {true};
    traits.backward_reads_input = {true, true};
    traits.backward_reads_output = {false};
    traits.gradient_passes = {false, false};
    traits.gradients_apart = true;
    return traits;
  }

  void forward(const Op&, OpCall& call) const override {
    const at::Tensor& stats = call.inputs[0];
    const at::Tensor losses = stats[0].log().sub_(stats[1]);
    losses.masked_fill_(call.inputs[1].eq(0), 0);  // where a logit is infinite, 0 times it is NaN
    set_outputs(call, {losses.mul_(factors(call)).sum()});
  }

  void backward(const Op&, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const at::Tensor& stats = call.inputs[0];
    const at::Tensor dlosses = factors(call).mul_(call.grad_outputs[0]);
    deliver(call, 0, at::stack({dlosses / stats[0], -dlosses}));
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const std::int64_t labels = dims.count(op.inputs[1].dims), number = wide_element(element);
    const bool forward = piece == Piece::forward;
    Cost cost;
    cost.executed = static_cast<double>((forward ? 6 : 7) * labels);
    cost.bytes = static_cast<double>(labels * (8 + (forward ? 2 : 4) * number));
    cost.accelerator_workspace = labels * (8 + 3 * number);
    return cost;
  }

 private:
  // What each label's loss is multiplied by.
  at::Tensor factors(const OpCall& call) const {
    const at::Tensor& divisors = call.inputs[1];
    const at::Tensor factors = at::full_like(divisors, weight_, call.inputs[0].options());
    return factors.div_(divisors.clamp_min(1)).masked_fill_(divisors.eq(0), 0);
  }

  const double weight_;
};

std::optional<MaskedLoss> CeLoss::masked_form() const {
  if (!divisor_) return {};
  return MaskedLoss{only_of<MaskedCeLoss>(weight_), *divisor_};
}

}  // namespace

OpTypePtr ce_max() {
  return only<CeMax>();
}
OpTypePtr ce_stats() {
  return only<CeStats>();
}
OpTypePtr ce_loss(std::int64_t count, double weight, const char* of_step,
                  const std::optional<LossDivisor>& divisor) {
  return std::make_shared<CeLoss>(count, weight, of_step, divisor);
}

}  // namespace mw
