// Runs an optimizer's ops on elements in another order, on parts of them, and on matrices alone.
#include "prove/lemmas/updates.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "prove/lemmas/parts.h"

namespace mw::lemmas {
namespace {

constexpr Bound rounding{1e-12, 1e-15};  // kernels round the last elements otherwise
// A step at which an update is tried: the first one, where averages begin, or a later one, in which
// an op may treat elements otherwise.
struct UpdatePoint {
  std::int64_t step = 0;
  double lr = 0, grad_scale = 1;
};
constexpr UpdatePoint points[] = {{3, 1e-2, 1}, {0, 1e-1, 1}, {1000, 1e-3, 0.5}};

at::Tensor drawn(at::IntArrayRef shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

void run(const ElementOp& op, const UpdateOperands& operands, const UpdatePoint& point,
         const MatrixSize& size, std::int64_t from = 0, std::int64_t to = -1) {
  UpdateCall call = operands.call(point.step, from, to);
  call.lr = point.lr;
  call.grad_scale = point.grad_scale;
  call.rows = size.rows;
  call.columns = size.columns;
  op.run(call);
}

const char* const names[] = {"the parameter", "the gradient", "a state"};

std::string unlike(const UpdateOperands& found, const UpdateOperands& needed, bool direction) {
  for (std::size_t i = 0; i < needed.tensors.size(); ++i) {
    if (i == 1 && !direction) continue;
    double error = 0;
    // An op may give NaN for what is drawn: a power of a negative number.
    const at::Tensor nan = found.tensors[i].isnan().logical_and(needed.tensors[i].isnan());
    const std::string text = difference(found.tensors[i].masked_fill(nan, 0),
                                        needed.tensors[i].masked_fill(nan, 0), 0, rounding, error);
    if (!text.empty()) return fmt::format("{}: {}", names[std::min<std::size_t>(i, 2)], text);
  }
  return "";
}

std::string crosses_at(const ElementOp& op, const UpdateRule& rule, std::int64_t elements,
                       bool direction, const UpdatePoint& point, const MatrixSize& size) {
  const at::NoGradGuard no_grad;
  const UpdateOperands begin(elements, rule, 1);
  UpdateOperands once(begin), parts(begin), moved(begin);
  run(op, once, point, size);
  const std::int64_t cut = elements / 2;
  run(op, parts, point, size, 0, cut);
  run(op, parts, point, size, cut, elements);
  std::string text = unlike(parts, once, direction);
  if (!text.empty())
    return "two halves give other numbers than the whole, so another shard would; " + text;
  const at::Tensor order =
      at::randperm(elements, at::detail::createCPUGenerator(2), at::TensorOptions(at::kLong));
  for (at::Tensor& tensor : moved.tensors) tensor = tensor.index_select(0, order);
  run(op, moved, point, size);
  for (at::Tensor& tensor : once.tensors) tensor = tensor.index_select(0, order);
  text = unlike(moved, once, direction);
  if (!text.empty())
    return "elements in another order give other numbers, so their places would matter; " + text;
  return "";
}

// The terms of a sum, as an op that writes them where a direction is written.
class Terms final : public ElementOp {
 public:
  Terms(const UpdateTerms& op, std::size_t sum) : op_(op), sum_(sum) {}
  std::string name() const override { return op_.name(); }
  void run(const UpdateCall& call) const override { call.gradient.copy_(op_.terms(sum_, call)); }

 private:
  const UpdateTerms& op_;
  const std::size_t sum_;
};

}  // namespace

UpdateOperands::UpdateOperands(std::int64_t count, const UpdateRule& rule, std::uint64_t seed)
    : states(rule.states.size()), sums(rule.sums.size()) {
  auto generator = at::detail::createCPUGenerator(seed);
  const std::size_t of_matrix = rule.whole != nullptr ? 0 : rule.of_matrix.size();
  for (std::size_t i = 0; i < 2 + states + sums + of_matrix; ++i)
    tensors.push_back(at::randn({count}, generator, at::kDouble).mul_(i < 2 ? 1.0 : 1e-2));
  for (std::size_t i = 2; i < tensors.size(); ++i) tensors[i].abs_();
}

UpdateOperands::UpdateOperands(const UpdateOperands& other)
    : states(other.states), sums(other.sums) {
  for (const at::Tensor& tensor : other.tensors) tensors.push_back(tensor.clone());
}

UpdateCall UpdateOperands::call(std::int64_t step, std::int64_t from, std::int64_t to) const {
  const auto part = [&](const at::Tensor& tensor) {
    return to < 0 ? tensor : tensor.narrow(0, from, to - from);
  };
  UpdateCall call{part(tensors[0]), part(tensors[1])};
  for (std::size_t i = 2; i < tensors.size(); ++i) {
    std::vector<at::Tensor>& list = i < 2 + states          ? call.state.tensors
                                    : i < 2 + states + sums ? call.sums
                                                            : call.state.of_matrix;
    list.push_back(part(tensors[i]));
  }
  call.lr = 1e-2;
  call.step = step;
  return call;
}

std::string crosses_elements(const ElementOp& op, const UpdateRule& rule, std::int64_t elements,
                             bool direction, const MatrixSize& size) {
  for (const UpdatePoint& point : points) {
    const std::string text = crosses_at(op, rule, elements, direction, point, size);
    if (!text.empty())
      return fmt::format("{} (in step {}, with lr = {} and gradients times {})", text, point.step,
                         point.lr, point.grad_scale);
  }
  return "";
}

std::vector<at::Tensor> kept_of(const UpdateRule& rule, std::int64_t matrices,
                                const MatrixSize& size) {
  std::vector<at::Tensor> kept;
  for (const MatrixState& state : rule.of_matrix) {
    const auto [rows, columns] = state.shape(size.rows, size.columns);
    kept.push_back(at::zeros({matrices, rows, columns}, at::kDouble));
  }
  return kept;
}

std::string crosses_matrices(const UpdateRule& rule, std::int64_t matrices,
                             const MatrixSize& size) {
  const at::NoGradGuard no_grad;
  const MatrixOp& op = *rule.whole;
  const at::Tensor begin = drawn({matrices, size.rows, size.columns}, 1);
  const at::Tensor together = op.run(begin.clone(), kept_of(rule, matrices, size));
  if (!together.defined()) return "it makes nothing";
  if (together.sizes() != begin.sizes())
    return fmt::format("what it makes of a stack of the shape [{}] has the shape [{}]",
                       fmt::join(begin.sizes(), ", "), fmt::join(together.sizes(), ", "));
  for (std::int64_t m = 0; m < matrices; ++m) {
    const at::Tensor alone = op.run(begin.narrow(0, m, 1).clone(), kept_of(rule, 1, size));
    double error = 0;
    const std::string text =
        difference(together.narrow(0, m, 1), alone, 0, Bound{1e-9, 1e-14}, error);
    if (!text.empty()) {
      return fmt::format("matrix {} of {} is another one in their stack than alone: {}", m,
                         matrices, text);
    }
  }
  return "";
}

std::string crosses_shards(const MatrixOp& op, std::int64_t matrices, const MatrixSize& size) {
  const at::NoGradGuard no_grad;
  const at::Tensor begin = drawn({matrices, size.rows, size.columns}, 1);
  const at::Tensor whole = op.run(begin.clone(), {});
  for (const bool rows : {true, false}) {
    const int cut = rows ? 1 : 2;
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : begin.chunk(3, cut)) parts.push_back(part.contiguous());
    for (int step = 0; step < op.gram_steps(); ++step) {
      at::Tensor gram;
      for (const at::Tensor& x : parts) {
        const at::Tensor turned = x.transpose(1, 2);
        const at::Tensor own = rows ? turned.matmul(x) : x.matmul(turned);
        gram = gram.defined() ? gram + own : own;
      }
      for (at::Tensor& part : parts) part = op.gram_step(step, part, gram.clone(), rows);
    }
    double error = 0;
    const std::string text = difference(at::cat(parts, cut), whole, 0, Bound{1e-9, 1e-14}, error);
    if (!text.empty())
      return fmt::format(
          "its steps on parts of {} make something else than it makes of whole "
          "matrices: {}",
          rows ? "rows" : "columns", text);
  }
  return "";
}

std::string keeps_across(const UpdateRule& rule, std::int64_t matrices, const MatrixSize& size) {
  const at::NoGradGuard no_grad;
  const auto call_of = [&](std::int64_t first, std::int64_t count) {
    UpdateCall call;
    call.lr = points[0].lr;
    call.step = points[0].step;
    std::uint64_t seed = 1;
    const auto some = [&](std::int64_t number, std::int64_t rows, std::int64_t columns) {
      const at::Tensor all = drawn({number, rows, columns}, seed++).abs();
      return number == 1 ? all : all.narrow(0, first, count).clone();
    };
    for (const UpdateSum& sum : rule.sums) {
      const auto [number, m, n] = sum.shape(matrices, size.rows, size.columns);
      call.sums.push_back(some(number, m, n));
    }
    for (const MatrixState& state : rule.of_matrix) {
      const auto [m, n] = state.shape(size.rows, size.columns);
      call.state.of_matrix.push_back(some(matrices, m, n));
    }
    return call;
  };
  const UpdateCall together = call_of(0, matrices);
  rule.summing->keep(together);
  for (std::int64_t m = 0; m < matrices; ++m) {
    const UpdateCall alone = call_of(m, 1);
    rule.summing->keep(alone);
    for (std::size_t k = 0; k < rule.of_matrix.size(); ++k) {
      double error = 0;
      const std::string text = difference(together.state.of_matrix[k].narrow(0, m, 1),
                                          alone.state.of_matrix[k], 0, rounding, error);
      if (!text.empty())
        return fmt::format(
            "its state {} of matrix {} of {} is another one among the others than "
            "alone: {}",
            rule.of_matrix[k].name, m, matrices, text);
    }
  }
  return "";
}

std::vector<std::string> update_faults(const UpdateRule& rule) {
  std::vector<std::string> faults;
  const auto look = [&](const UpdateOp& op, const auto& crosses) {
    std::string text;
    try {
      text = crosses();
    } catch (...) {
      text = "it fails: " + words_of_thrown();
    }
    if (!text.empty()) faults.push_back(fmt::format("the update {}: {}", op.name(), text));
  };
  struct Sizes {
    std::int64_t elements, matrices;
    MatrixSize matrix;
  };
  // Small sizes, and sizes beyond the thresholds at which kernels change their way.
  for (const auto& [elements, matrices, matrix] :
       {Sizes{30, 3, {6, 5}}, Sizes{4099, 9, {68, 65}}}) {
    if (!faults.empty()) break;
    const MatrixSize size = rule.of_matrices() ? matrix : MatrixSize{};
    if (rule.direction != nullptr) {
      const UpdateRule directed{.states = rule.states};
      look(*rule.direction,
           [&] { return crosses_elements(*rule.direction, directed, elements, true, size); });
    }
    if (rule.whole != nullptr)
      look(*rule.whole, [&] { return crosses_matrices(rule, matrices, matrix); });
    if (rule.matrices == MatrixRanks::shards)
      look(*rule.whole, [&] { return crosses_shards(*rule.whole, matrices, matrix); });
    if (rule.apply != nullptr) {
      look(*rule.apply, [&] { return crosses_elements(*rule.apply, rule, elements, false, size); });
    }
    for (std::size_t k = 0; k < rule.sums.size(); ++k) {
      const Terms terms(*rule.summing, k);
      look(terms, [&] { return crosses_elements(terms, rule, elements, true, size); });
    }
    if (rule.summing != nullptr && !rule.of_matrix.empty())
      look(*rule.summing, [&] { return keeps_across(rule, matrices, size); });
  }
  return faults;
}

}  // namespace mw::lemmas
