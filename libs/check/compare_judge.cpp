// Decides, tensor by tensor, whether two runs differ by more than rounding: the bound is a
// multiple of what lower precision does to one rank, measured at that tensor.
#include "check/compare_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "meshwright/engine/update_sums.h"

namespace mw {
namespace {
// The measured error of a tensor with fewer elements than this may be small by luck.
constexpr std::int64_t few = 16;

double or_infinity(double error) {
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}
}  // namespace

// The size that errors of a tensor are relative to. For a tensor that is zero but for rounding,
// that is a share of the whole gradient, or a typical move of the optimizer.
double Judge::size_of(const TensorKey& key, const Differences& d) const {
  double floor = 1e-30;
  if (key.kind == TensorKind::backward || key.kind == TensorKind::gradient)
    floor = 1e-6 * losses[key.step].grad_norm;
  if (key.kind == TensorKind::parameter)
    floor = lr[key.step] * std::sqrt(static_cast<double>(d.count));
  return std::max({d.size, floor, 1e-30});
}

// What a run in lower precision measured of the tensor; 0 if it did not come so far.
double Judge::measured_error(const Differences& d, const JudgedRun& side) {
  const auto at = static_cast<std::size_t>(side.errors);
  return at < d.errors.size() ? d.errors[at] * side.factor : 0;
}

Judge::Error Judge::error_of(const TensorKey& key, const Differences& d, double size,
                             const JudgedRun& a, const JudgedRun& b) {
  const auto of = [&](const JudgedRun& side) {
    // The number of parts of a sum: ranks, times microbatches for what accumulates over them.
    const double parts = static_cast<double>(side.ranks) *
                         (key.kind >= TensorKind::gradient ? side.microbatches : 1);
    const double measured = measured_error(d, side);
    return measured / size + std::sqrt(parts) * side.roundoff;
  };
  Error error{of(a), of(b)};
  if (key.kind != TensorKind::forward) return error;
  if (d.count < few) {
    for (const Use& use : graph_.ops()[op_of(graph_, key)].inputs) {
      const auto read = errors_.find({key.step, use.value});
      if (read == errors_.end()) continue;
      error.a = std::max(error.a, read->second.a);
      error.b = std::max(error.b, read->second.b);
    }
  }
  errors_[{key.step, value_of(graph_, key)}] = error;
  return error;
}

// Finds how far errors of the gradients may move a parameter (moved_). An optimizer may magnify
// errors: Adam divides an element's gradient by its own size, so an element that is zero but for
// rounding moves by the whole learning rate either way. Runs that do so and runs that do not are
// both right, beyond the measured errors. So the optimizer is run on the gradients, and on
// gradients whose nonzero elements are off by what k allows, up and down.
void Judge::follow(const TensorKey& first, const JudgedRun& a, const JudgedRun& b,
                   const std::map<TensorKey, at::Tensor>& reference) {
  // Where sums of its elements count, the parameter is what it is after the first step.
  const int group = groups.at(first.output);
  const UpdateRule rule = optimizer->rule(group);
  TensorKey updated = first;
  updated.kind = TensorKind::parameter;
  const auto known = reference.find(updated);
  const at::Tensor gradient_of_first = reference.at(first);
  const at::Tensor as_is = rule.sums.empty() || known == reference.end()
                               ? at::zeros_like(gradient_of_first.flatten(), at::kDouble)
                               : known->second.to(at::kDouble).flatten();
  std::vector<at::Tensor> parameters = {as_is.clone(), as_is.clone(), as_is.clone()};
  std::vector<OptimizerState> states(3);
  for (OptimizerState& state : states) state = optimizer->make_state(as_is, group);
  UpdatedPart whole{.sizes = gradient_of_first.sizes().vec(),
                    .elements = {0, gradient_of_first.numel()}};
  for (const std::int64_t size : whole.sizes) whole.own.push_back({0, size});
  if (const auto matrix = matrices.find(first.output); matrix != matrices.end())
    std::tie(whole.stacked, whole.rows) = matrix->second;
  for (TensorKey key = first; tensors.count(key) > 0; ++key.step) {
    const Differences& d = tensors.at(key);
    const at::Tensor gradient = reference.at(key).to(at::kDouble).flatten();
    const auto there = static_cast<double>(
        std::max<std::int64_t>(1, gradient.count_nonzero().item<std::int64_t>()));
    const double each =
        2 * compare_factor *  // an element may err by twice the typical error
        (measured_error(d, a) + measured_error(d, b) + (a.roundoff + b.roundoff) * d.size) /
        std::sqrt(there);
    const at::Tensor off = gradient.ne(0).to(at::kDouble) * each;
    const double scale = clip_factor(losses[key.step].grad_norm, optimizer->clip());
    const at::Tensor gradients[] = {gradient.clone(), gradient + off, gradient - off};
    for (int i = 0; i < 3; ++i)
      update_whole(rule, whole, parameters[i], gradients[i], states[i], lr[key.step], key.step,
                   scale);
    const at::Tensor most =
        at::maximum((parameters[1] - parameters[0]).abs(), (parameters[2] - parameters[0]).abs());
    moved_[{key.step, key.output}] = at::linalg_vector_norm(most, 2).item<double>();
  }
}

TensorDifference Judge::difference_of(const TensorKey& key, const Differences& d,
                                      const JudgedRun& a, const JudgedRun& b) {
  TensorDifference t;
  t.key = key;
  const int op = op_of(graph_, key);
  t.op = op < 0 ? "" : graph_.ops()[op].name;
  t.value = graph_.value(value_of(graph_, key)).name;
  t.count = d.count;
  const double size = size_of(key, d);
  const Error error = error_of(key, d, size, a, b);
  double slack = slack_;
  if (key.kind == TensorKind::parameter) slack += moved_[{key.step, key.output}] / size;
  t.bound = compare_factor * (error.a + error.b) + slack;
  t.bound_a = compare_factor * error.a + slack;
  t.bound_b = compare_factor * error.b + slack;
  t.noise = std::max(error.a, error.b);
  t.error = d.apart / size;
  t.of_a = d.a_apart / size;
  t.of_b = d.b_apart / size;
  t.same_bits = d.same_bits;
  t.spread_a = d.spread_a / size;
  t.spread_b = d.spread_b / size;
  t.rank_a = d.rank_a;
  t.rank_b = d.rank_b;
  return t;
}

// The difference of an operand as its op reads it. Compares each run with one rank in fp64: a
// missing sum shows here at once, however little the op adds to what is computed next. Twice k, for
// a single run's error and not a difference of two.
TensorDifference Judge::read_of(const TensorKey& key, const Differences& d) const {
  TensorDifference t;
  t.key = key;
  t.op = graph_.ops()[op_of(graph_, key)].name;
  const int value = value_of(graph_, key);
  t.value = graph_.value(value).name;
  t.count = d.count;
  const double size = std::max(d.size, 1e-30);
  t.of_a = d.a_apart / size;
  t.of_b = d.b_apart / size;
  if (d.parameter) {                  // a parameter is read as a copy
    t.bound_a = t.bound_b = 0x1p-50;  // rounding of the mean over microbatches
  } else {
    const auto known = errors_.find({key.step, value});
    const Error error = known == errors_.end() ? Error{1, 1} : known->second;
    t.bound_a = 2 * compare_factor * error.a + slack_;
    t.bound_b = 2 * compare_factor * error.b + slack_;
  }
  const bool worse_a = ratio_of(t.of_a, t.bound_a) > ratio_of(t.of_b, t.bound_b);
  t.error = worse_a ? t.of_a : t.of_b;
  t.bound = worse_a ? t.bound_a : t.bound_b;
  t.same_bits = true;  // a and b were not compared with each other
  return t;
}

void Judge::take(CompareOutcome& outcome, const TensorDifference& t) const {
  ++outcome.tensors;
  // Copies of a parameter are moved, not computed, so not even rounding may differ.
  const bool copies_part =
      t.key.kind == TensorKind::parameter && (t.spread_a > 0 || t.spread_b > 0);
  if (!t.same_bits && !outcome.first_bits) outcome.first_bits = t;
  if (outcome.closest.op.empty() || t.ratio() > outcome.bound_ratio) {
    outcome.bound_ratio = t.ratio();
    outcome.closest = t;
  }
  const bool gradient = t.key.kind == TensorKind::gradient;
  if ((t.ratio() > 1 || copies_part) && !outcome.first) outcome.first = t;
  if (t.ratio() > 1 && gradient && !outcome.first_gradient) outcome.first_gradient = t;
  if (gradient && (!outcome.worst || t.ratio() > outcome.worst->ratio())) outcome.worst = t;
  if (t.of_a > t.bound_a && t.of_b > t.bound_b) outcome.both_off = true;
  if (t.key.read()) return;
  if (t.noise >= 1) return;  // the tensor is nothing but rounding
  if (gradient) outcome.gradients = std::max(outcome.gradients, t.error);
  if (t.key.kind == TensorKind::parameter)
    outcome.parameters = std::max(outcome.parameters, t.error);
}

// Judges the loss and the gradient norm that a step reports. Their bounds follow from those of
// tensors: a loss is an op's output, and | |x| - |y| | <= |x - y| over all gradients.
void Judge::judge_reports(CompareOutcome& outcome, const JudgedRun& a, const JudgedRun& b) const {
  const auto worse = [](ComparedScalar& known, const ComparedScalar& next) {
    if (known.bound == 0 || next.ratio() > known.ratio()) known = next;
  };
  for (std::size_t step = 0; step < a.outcomes.size(); ++step) {
    ComparedScalar loss, norm;
    for (const auto& [key, bound] : loss_bound_)
      if (key.first == static_cast<std::int64_t>(step)) loss.bound += bound;
    const StepOutcome &x = a.outcomes[step], &y = b.outcomes[step];
    const double of_loss = std::max(std::abs(losses[step].loss), 1e-30);
    loss.error = or_infinity(std::abs(x.loss - y.loss) / of_loss);
    loss.bound /= of_loss;
    double of_a = 0, of_b = 0;
    for (const auto& [key, d] : tensors) {
      if (key.step != static_cast<std::int64_t>(step) || key.kind != TensorKind::gradient) continue;
      if (graph_.value(key.output).counts || d.errors.empty()) continue;
      of_a += std::pow(measured_error(d, a), 2);
      of_b += std::pow(measured_error(d, b), 2);
    }
    const double size = std::max(losses[step].grad_norm, 1e-30);
    // The norm itself is a sum over all elements, in fp32 where the plan computes in less than
    // fp64.
    const auto elements = static_cast<double>(graph_.parameter_count());
    const auto parts = [&](const JudgedRun& side) {
      return std::sqrt(elements) * std::min(side.roundoff, 0x1p-24) +
             std::sqrt(static_cast<double>(side.ranks) * side.microbatches) * side.roundoff;
    };
    norm.error = or_infinity(std::abs(x.grad_norm - y.grad_norm) / size);
    norm.bound =
        compare_factor * ((std::sqrt(of_a) + std::sqrt(of_b)) / size + parts(a) + parts(b)) +
        slack_at_end_.at(static_cast<std::int64_t>(step));
    worse(outcome.reported_loss, loss);
    worse(outcome.reported_norm, norm);
    outcome.loss = std::max(outcome.loss, loss.error);
  }
}

CompareOutcome Judge::judge(const JudgedRun& a, const JudgedRun& b,
                            const std::map<TensorKey, at::Tensor>& reference) {
  CompareOutcome outcome;
  const std::vector<int> losses_of_graph = graph_.losses();
  std::int64_t step = 0;
  double moved = 0;  // largest relative move of a parameter with several dims; a bias adds little
  for (const auto& [key, d] : tensors) {
    if (key.step == 0 && key.kind == TensorKind::gradient && d.both &&
        !graph_.value(key.output).counts)
      follow(key, a, b, reference);
  }
  for (const auto& [key, d] : tensors) {
    if (key.step != step) slack_ += std::exchange(moved, 0);
    step = key.step;
    slack_at_end_[step] = slack_;
    if (key.read()) {
      take(outcome, read_of(key, d));
      continue;
    }
    if (!d.both) continue;
    if (d.index) {
      if (d.choices_apart == 0) continue;
      outcome.moved_choices += d.choices_apart;
      slack_ += 3 * std::sqrt(static_cast<double>(d.choices_apart) / static_cast<double>(d.count));
      continue;
    }
    const int value = value_of(graph_, key);
    const TensorDifference t = difference_of(key, d, a, b);
    if (key.kind == TensorKind::forward &&
        std::find(losses_of_graph.begin(), losses_of_graph.end(), value) != losses_of_graph.end())
      loss_bound_[{step, value}] = t.bound * size_of(key, d);
    if (key.kind == TensorKind::parameter && graph_.value(value).dims.size() > 1)
      moved = std::max(moved, moved_[{step, value}] / size_of(key, d));
    take(outcome, t);
  }
  judge_reports(outcome, a, b);
  const bool reports = outcome.reported_loss.ratio() <= 1 && outcome.reported_norm.ratio() <= 1;
  outcome.equal = !outcome.first && reports;
  outcome.same_bits = !outcome.first_bits && outcome.equal;
  if (outcome.first) {
    const TensorDifference& t = *outcome.first;
    const bool off_a =
        t.of_a > t.bound_a || (t.key.kind == TensorKind::parameter && t.spread_a > 0);
    const bool off_b =
        t.of_b > t.bound_b || (t.key.kind == TensorKind::parameter && t.spread_b > 0);
    outcome.suspect = off_a && off_b ? Suspect::both
                      : off_a        ? Suspect::a
                      : off_b        ? Suspect::b
                                     : Suspect::neither;
  }
  return outcome;
}

}  // namespace mw
