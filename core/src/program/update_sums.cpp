// Brings sums over parameters to the elements of a rank, adds up their terms, and updates a whole
// parameter.
#include "meshwright/engine/update_sums.h"

#include <algorithm>
#include <numeric>

#include "meshwright/program.h"

namespace mw {
namespace {

std::int64_t product(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

std::vector<std::int64_t> sizes_of(const std::vector<Range>& ranges) {
  std::vector<std::int64_t> sizes;
  for (const Range& range : ranges) sizes.push_back(range.size);
  return sizes;
}

}  // namespace

std::array<std::int64_t, 3> UpdatedPart::matrices() const {
  const MatrixSizes made = as_matrices(sizes, stacked, rows);
  return {made.stacked, made.rows, made.columns};
}

std::array<std::int64_t, 3> UpdatedPart::shape(const UpdateSum& sum) const {
  const auto [number, m, n] = matrices();
  return sum.shape(number, m, n);
}

std::int64_t UpdatedPart::summed(const UpdateSum& sum) const {
  const auto [number, m, n] = shape(sum);
  return product(sizes) / (number * m * n);
}

std::vector<std::int64_t> UpdatedPart::by_dims(const at::Tensor& numbers) const {
  std::vector<std::int64_t> shape;
  const auto [number, m, n] = matrices();
  const bool all = numbers.size(0) == number;
  for (int d = 0; d < static_cast<int>(sizes.size()); ++d) {
    const int side = d < stacked ? 0 : d < stacked + rows ? 1 : 2;
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t size = side == 0 && !all ? own[at].size : sizes[at];
    shape.push_back(numbers.size(side) == 1 ? 1 : size);
  }
  return shape;
}

at::Tensor UpdatedPart::spread(const at::Tensor& numbers) const {
  if (numbers.numel() == 1) return numbers.reshape({1});
  at::Tensor spread = numbers.reshape(by_dims(numbers));
  for (std::size_t d = 0; d < own.size(); ++d) {
    if (spread.size(static_cast<std::int64_t>(d)) == sizes[d])
      spread = spread.narrow(static_cast<std::int64_t>(d), own[d].offset, own[d].size);
  }
  return spread.expand(sizes_of(own)).reshape(-1).narrow(0, elements.offset, elements.size);
}

at::Tensor UpdatedPart::of_own_matrices(const at::Tensor& numbers) const {
  if (numbers.size(0) == 1) return numbers;
  at::Tensor some = numbers.reshape(by_dims(numbers));
  for (int d = 0; d < stacked; ++d) {
    const Range& range = own[static_cast<std::size_t>(d)];
    some = some.narrow(d, range.offset, range.size);
  }
  return some.reshape({-1, numbers.size(1), numbers.size(2)});
}

void UpdatedPart::add(const at::Tensor& terms, const at::Tensor& sum) const {
  if (sum.numel() == 1) {
    sum.add_(terms.sum(at::kDouble));
    return;
  }
  const std::vector<std::int64_t> shape = sizes_of(own);
  at::Tensor all = terms;
  if (elements.size != product(shape)) {
    all = at::zeros({product(shape)}, terms.options());
    all.narrow(0, elements.offset, elements.size).copy_(terms);
  }
  at::Tensor to = sum.view(by_dims(sum));
  std::vector<std::int64_t> over;
  for (std::size_t d = 0; d < own.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d);
    if (to.size(dim) == 1) {
      over.push_back(dim);
    } else {
      to = to.narrow(dim, own[d].offset, own[d].size);
    }
  }
  to.add_(all.view(shape).sum(over, /*keepdim=*/true, at::kDouble));
}

void update_whole(const UpdateRule& rule, const UpdatedPart& whole, const at::Tensor& parameter,
                  const at::Tensor& gradient, OptimizerState& state, double lr, std::int64_t step,
                  double grad_scale) {
  const auto [number, m, n] = whole.matrices();
  if (state.of_matrix.empty()) {
    for (const MatrixState& kept : rule.of_matrix) {
      const auto [rows, columns] = kept.shape(m, n);
      state.of_matrix.push_back(at::zeros({number, rows, columns}, parameter.options()));
    }
  }
  UpdateCall call{.parameter = parameter,
                  .gradient = gradient,
                  .state = state,
                  .lr = lr * rule.lr_scale,
                  .step = step,
                  .grad_scale = grad_scale,
                  .rows = rule.of_matrices() ? m : 0,
                  .columns = rule.of_matrices() ? n : 0};
  if (rule.whole != nullptr) {
    rule.direction->run(call);
    call.gradient = rule.whole->run(gradient.view({number, m, n}), state.of_matrix).reshape(-1);
    rule.apply->run(call);
    return;
  }
  UpdateCall vectors{.state = state, .lr = call.lr, .step = step};
  for (at::Tensor& kept : call.state.of_matrix) kept = whole.spread(kept);
  for (std::size_t k = 0; k < rule.sums.size(); ++k) {
    const at::Tensor sum =
        at::zeros(whole.shape(rule.sums[k]), parameter.options().dtype(at::kDouble));
    whole.add(rule.summing->terms(k, call), sum);
    if (rule.sums[k].mean) sum.div_(static_cast<double>(whole.summed(rule.sums[k])));
    vectors.sums.push_back(sum.to(parameter.scalar_type()));
    call.sums.push_back(whole.spread(vectors.sums.back()));
  }
  rule.apply->run(call);
  if (rule.summing != nullptr && !rule.of_matrix.empty()) rule.summing->keep(vectors);
}

}  // namespace mw
