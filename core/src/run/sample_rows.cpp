// Reads rows of samples from a source, in the order in which a step has them.
#include <numeric>

#include "meshwright/data.h"

namespace mw {
namespace {

std::vector<std::int64_t> numbers_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

void TokenSource::sample_rows(const std::vector<std::int64_t>& numbers, const at::Tensor& inputs,
                              const at::Tensor& labels) const {
  TORCH_INTERNAL_ASSERT(inputs.dim() == 2 && inputs.sizes() == labels.sizes() &&
                        inputs.is_contiguous() && labels.is_contiguous() &&
                        inputs.size(0) == static_cast<std::int64_t>(numbers.size()));
  const std::int64_t sequence = inputs.size(1);
  auto* input = inputs.data_ptr<std::int64_t>();
  auto* label = labels.data_ptr<std::int64_t>();
  for (const std::int64_t number : numbers) {
    sample(number, sequence, input, label);
    input += sequence;
    label += sequence;
  }
}

void TokenSource::sample_rows(std::int64_t first, const at::Tensor& inputs,
                              const at::Tensor& labels) const {
  sample_rows(numbers_from(first, inputs.size(0)), inputs, labels);
}

std::vector<std::int64_t> TokenSource::samples_of_step(std::int64_t first,
                                                       const std::vector<std::int64_t>& groups,
                                                       std::int64_t sequence) const {
  std::vector<std::int64_t> numbers = order_of_rows(first, groups, sequence);
  if (numbers.empty())
    return numbers_from(first, std::accumulate(groups.begin(), groups.end(), std::int64_t{0}));
  for (std::int64_t& number : numbers) number += first;
  return numbers;
}

at::Tensor input_rows(const InputSource& source, const DataInput& input,
                      const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> shape = input.shape;
  shape.insert(shape.begin(), static_cast<std::int64_t>(numbers.size()));
  const at::Tensor rows = at::empty(shape, input.below > 0 ? at::kLong : at::kFloat);
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    const at::Tensor into = rows.select(0, static_cast<std::int64_t>(row));
    input.below > 0 ? source.indices(input, numbers[row], into.data_ptr<std::int64_t>())
                    : source.reals(input, numbers[row], into.data_ptr<float>());
  }
  return rows;
}

}  // namespace mw
