// Differentiates an op's forward numerically, and calls its pieces in each way in which a program
// may call them.
#include "prove/lemmas/parts.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "meshwright/autograd_op.h"

namespace mw::lemmas {
namespace {

constexpr double slope_tolerance = 1e-6;  // relative to the gradient's norm
constexpr std::int64_t most_moved = 512;  // elements of an input that a direction moves
// Rounding of a sum, relative to its size. A difference quotient divides it by the step.
constexpr double noise = 1e-13;

// The slope of sum(seed * output) along a direction in which one input is moved.
class Slopes {
 public:
  Slopes(const WholeOp& whole, std::size_t input, at::Tensor direction)
      : case_(whole.whole()),
        seeds_(whole.seeds()),
        input_(input),
        start_(case_.inputs[input]),
        direction_(std::move(direction)) {}

  // The central difference quotient of the fourth order.
  double by(double step) {
    const double near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
    return (8 * near - far) / (12 * step);
  }
  double size() const { return size_; }  // largest sum of absolute values so far

 private:
  double at(double distance) {
    case_.inputs[input_] = start_ + direction_ * distance;
    const Made made = lemmas::forward(case_);
    double sum = 0, absolute = 0;
    for (std::size_t k = 0; k < seeds_.size(); ++k) {
      if (!seeds_[k].defined()) continue;
      const at::Tensor product = made.outputs.at(k) * seeds_[k];
      sum += product.sum().item<double>();
      absolute += product.abs().sum().item<double>();
    }
    size_ = std::max(size_, absolute);
    return sum;
  }

  OpCase case_;
  const Tensors& seeds_;
  const std::size_t input_;
  const at::Tensor start_, direction_;
  double size_ = 0;
};

std::string slope_fault(const std::string& name, double backward, double differences) {
  std::string text = fmt::format(
      "the gradient of {} is not the derivative of forward: along a random direction differences "
      "of forward give {:.8g}, backward gives {:.8g}",
      name, differences, backward);
  if (differences != 0 && std::isfinite(backward))
    text += fmt::format(", {:.6g} times that", backward / differences);
  return text;
}

}  // namespace

bool is_straight_through(const Op& op) {
  return dynamic_cast<const StraightThrough*>(op.type.get()) != nullptr;
}

std::vector<Fault> check_adjoint(WholeOp& whole) {
  std::vector<Fault> faults;
  const Op& op = whole.op();
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!whole.wants(i) && !whole.passes(i)) continue;
    if (whole.graph().value(op.inputs[i].value).counts) continue;
    const at::Tensor& gradient = whole.passes(i) ? whole.seeds()[0] : whole.made().inputs[i];
    const Piece piece = piece_of(whole.traits(), i);
    if (whole.passes(i) && !gradient.defined()) continue;  // the output gets no gradient
    if (!gradient.defined()) {
      faults.push_back({piece, "it makes no gradient of " + whole.input_name(i)});
      continue;
    }
    if (gradient.sizes() != whole.whole().inputs[i].sizes()) {
      double error = 0;
      faults.push_back(
          {piece, fmt::format("the gradient of {} is of another shape: {}", whole.input_name(i),
                              difference(gradient, whole.whole().inputs[i], 0, Bound{}, error))});
      continue;
    }
    at::Tensor direction = whole.normal(gradient.sizes());
    // Among many elements, some lie at a bend of forward (of a ReLU), so only few are moved.
    if (direction.numel() > most_moved) {
      const double share = static_cast<double>(most_moved) / static_cast<double>(direction.numel());
      direction.mul_(at::empty_like(direction).bernoulli_(share, whole.generator()));
    }
    const double backward = (gradient * direction).sum().item<double>();
    const double norm = gradient.norm().item<double>();
    Slopes slopes(whole, i, std::move(direction));
    double first = 0;
    bool agrees = false;
    for (const double step : {1e-3, 1e-4, 1e-5}) {
      const double differences = slopes.by(step);
      if (step == 1e-3) first = differences;
      agrees =
          std::abs(differences - backward) <= slope_tolerance * norm + noise * slopes.size() / step;
      if (agrees) break;
    }
    if (agrees) continue;
    const double error = std::abs(first - backward) / std::max({norm, std::abs(first), 1e-300});
    faults.push_back({piece, slope_fault(whole.input_name(i), backward, first), error});
  }
  return faults;
}

std::vector<Fault> check_constant(WholeOp& whole) {
  constexpr double distance = 1e-7;  // so small that a rounding op jumps for hardly any element
  std::vector<Fault> faults;
  const Op& op = whole.op();
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!whole.graph().value(op.inputs[i].value).needs_grad) continue;
    OpCase c = whole.whole();
    c.inputs[i] = c.inputs[i] + distance * whole.normal(c.inputs[i].sizes());
    const Made made = lemmas::forward(c);
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      if (!whole.graph().value(op.outputs[k]).needs_grad ||
          at::equal(made.outputs.at(k), whole.made().outputs[k]))
        continue;
      faults.push_back({Piece::backward,
                        fmt::format("its traits say that it is not differentiable, and output {} "
                                    "changes with {}, whose gradient would be lost",
                                    k, whole.input_name(i))});
    }
  }
  return faults;
}

namespace {

class Contract {
 public:
  Contract(WholeOp& whole, const Bound& bound) : whole_(whole), bound_(bound) {}

  std::vector<Fault> check() {
    attempt(Piece::forward, "as forward is called", [&] { leaves_inputs(); });
    if (whole_.traits().forward_in_place >= 0)
      attempt(Piece::forward, "in place", [&] { in_place(); });
    const auto& wants = whole_.whole().wants;
    if (std::find(wants.begin(), wants.end(), true) == wants.end()) return std::move(faults_);
    const Piece back = piece_of(whole_.traits(), 0);
    attempt(back, "where backward is called", [&] { leaves_operands(); });
    attempt(back, "where tensors are given for gradients", [&] { into_given(); });
    attempt(back, "where gradients are added to what is there", [&] { accumulates(); });
    if (whole_.traits().backward_may_overwrite_saved)
      attempt(back, "where gradients lie on saved inputs", [&] { over_saved(); });
    if (whole_.seeds().size() > 1) attempt(back, "where a gradient is missing", [&] { missing(); });
    const bool several = std::count(wants.begin(), wants.end(), true) > 1;
    for (std::size_t i = 0; several && i < wants.size(); ++i) {
      if (wants[i]) attempt(piece_of(whole_.traits(), i), "alone", [&] { alone(i); });
    }
    return std::move(faults_);
  }

 private:
  template <class Body>
  void attempt(Piece piece, const std::string& where, const Body& body) {
    try {
      body();
    } catch (...) {
      faults_.push_back({piece, fmt::format("it fails {}: {}", where, words_of_thrown())});
    }
  }

  void same(const at::Tensor& found, const at::Tensor& needed, Piece piece,
            const std::string& what) {
    double error = 0;
    const std::string text = difference(found, needed, 0, bound_, error);
    if (!text.empty()) faults_.push_back({piece, fmt::format("{}: {}", what, text), error});
  }

  Tensors copies(const Tensors& of) const {
    Tensors copies;
    for (const at::Tensor& tensor : of)
      copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
    return copies;
  }

  // The op with copies of its inputs, so that what a kernel spoils is not used again.
  OpCase fresh_case() const {
    OpCase c = whole_.whole();
    c.inputs = copies(c.inputs);
    return c;
  }

  void leaves_inputs() {
    const OpCase c = fresh_case();
    lemmas::forward(c);
    unchanged(c.inputs, whole_.whole().inputs, Piece::forward, "input", "forward");
  }

  void unchanged(const Tensors& now, const Tensors& then, Piece piece, const char* what,
                 const char* by) {
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (!now[i].defined() || at::equal(now[i], then[i])) continue;
      faults_.push_back(
          {piece, fmt::format("{} overwrites {} {}, which it may only read", by, what, i)});
    }
  }

  void leaves_operands() {
    const OpCase c = fresh_case();
    const Tensors seeds = copies(whole_.seeds());
    run(c, seeds, Into::fresh);
    const Piece piece = piece_of(whole_.traits(), 0);
    unchanged(c.inputs, whole_.whole().inputs, piece, "input", name_of(piece));
    unchanged(seeds, whole_.seeds(), piece, "the gradient of output", name_of(piece));
  }

  void in_place() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const OpCase c = fresh_case();
    const at::Tensor& target = c.inputs[static_cast<std::size_t>(whole_.traits().forward_in_place)];
    OpCall call = call_of(c, c.inputs);
    call.in_place = true;
    c.op.type->forward(c.op, call);
    if (!call.outputs.at(0).defined() || call.outputs[0].data_ptr() != target.data_ptr()) {
      faults_.push_back({Piece::forward, fmt::format("forward in place leaves its result elsewhere "
                                                     "than in {}",
                                                     whole_.input_name(static_cast<std::size_t>(
                                                         whole_.traits().forward_in_place)))});
    }
    same(call.outputs[0], whole_.made().outputs[0], Piece::forward,
         "forward in place makes something else");
  }

  void replaced(const Made& made) {
    for (const std::size_t i : made.replaced) {
      faults_.push_back(
          {piece_of(whole_.traits(), i),
           fmt::format("the gradient of {} is not written into the tensor that was given for it",
                       whole_.input_name(i))});
    }
  }
  bool was_replaced(const Made& made, std::size_t i) const {
    return std::find(made.replaced.begin(), made.replaced.end(), i) != made.replaced.end();
  }

  void into_given() {
    const Made made = run(fresh_case(), copies(whole_.seeds()), Into::given);
    replaced(made);
    for (std::size_t i = 0; i < made.inputs.size(); ++i) {
      if (!whole_.wants(i) || was_replaced(made, i)) continue;
      same(made.inputs[i], whole_.made().inputs[i], piece_of(whole_.traits(), i),
           fmt::format("the gradient of {}, written over what a given tensor holds, is another "
                       "one",
                       whole_.input_name(i)));
    }
  }

  void accumulates() {
    Tensors before(whole_.op().inputs.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!whole_.wants(i)) continue;
      const at::Tensor& gradient = whole_.made().inputs[i];
      const double size = largest(gradient);
      before[i] = whole_.normal(gradient.sizes()) * (size > 0 ? size : 1.0);
    }
    const Made made = run(fresh_case(), copies(whole_.seeds()), Into::added, before);
    for (std::size_t i = 0; i < made.inputs.size(); ++i) {
      if (!whole_.wants(i)) continue;
      if (was_replaced(made, i)) continue;  // into_given() reports it
      const at::Tensor sum = before[i] + whole_.made().inputs[i];
      double error = 0;
      const std::string text = difference(made.inputs[i], sum, largest(before[i]), bound_, error);
      if (text.empty()) continue;
      const bool ignores = at::allclose(made.inputs[i], whole_.made().inputs[i], 1e-9, 1e-14);
      faults_.push_back(
          {piece_of(whole_.traits(), i),
           fmt::format("the gradient of {} is not added to what is there{}: {}",
                       whole_.input_name(i), ignores ? ", but overwrites it" : "", text),
           error});
    }
  }

  void over_saved() {
    const Made made = run(fresh_case(), copies(whole_.seeds()), Into::saved);
    for (std::size_t i = 0; i < made.inputs.size(); ++i) {
      if (!whole_.wants(i)) continue;
      same(made.inputs[i], whole_.made().inputs[i], piece_of(whole_.traits(), i),
           fmt::format("the gradient of {} is another one where it overwrites the saved input",
                       whole_.input_name(i)));
    }
  }

  // An undefined gradient of one result must count as zeros.
  void missing() {
    for (std::size_t k = 0; k < whole_.seeds().size(); ++k) {
      if (!whole_.seeds()[k].defined()) continue;
      Tensors some = copies(whole_.seeds()), zeros = copies(whole_.seeds());
      some[k] = at::Tensor();
      zeros[k].zero_();
      if (std::none_of(some.begin(), some.end(), [](const at::Tensor& s) { return s.defined(); }))
        continue;
      const Made made = run(fresh_case(), some, Into::fresh),
                 needed = run(fresh_case(), zeros, Into::fresh);
      for (std::size_t i = 0; i < made.inputs.size(); ++i) {
        if (!whole_.wants(i)) continue;
        same(made.inputs[i], needed.inputs[i], piece_of(whole_.traits(), i),
             fmt::format("the gradient of {} is another one where that of output {} did not come "
                         "than where it is 0",
                         whole_.input_name(i), k));
      }
    }
  }

  // Only one gradient is asked for, as where a weight is not trained.
  void alone(std::size_t i) {
    OpCase c = fresh_case();
    c.wants.assign(c.wants.size(), false);
    c.wants[i] = true;
    const Made made = run(c, copies(whole_.seeds()), Into::fresh);
    same(made.inputs[i], whole_.made().inputs[i], piece_of(whole_.traits(), i),
         fmt::format("the gradient of {} alone is another one than beside the others",
                     whole_.input_name(i)));
  }

  WholeOp& whole_;
  const Bound bound_;
  std::vector<Fault> faults_;
};

}  // namespace

std::vector<Fault> check_contract(WholeOp& whole, const Bound& bound) {
  return Contract(whole, bound).check();
}

}  // namespace mw::lemmas
