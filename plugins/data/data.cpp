// The sources of tokens that are built in, and rows of samples.
#include "data.h"

#include "shard_data.h"
#include "synthetic_data.h"
#include "text_data.h"

namespace mw {

void TokenSource::sample_rows(std::int64_t first, const at::Tensor& inputs,
                              const at::Tensor& labels) const {
  TORCH_INTERNAL_ASSERT(inputs.dim() == 2 && inputs.sizes() == labels.sizes() &&
                        inputs.is_contiguous() && labels.is_contiguous());
  const std::int64_t rows = inputs.size(0), sequence = inputs.size(1);
  auto* input = inputs.data_ptr<std::int64_t>();
  auto* label = labels.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row)
    sample(first + row, sequence, input + row * sequence, label + row * sequence);
}

std::vector<Registration> built_in_data() {
  return {text_data, shard_data, synthetic_data};
}

}  // namespace mw
