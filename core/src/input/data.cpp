// The kinds of data that a script can name, by name.
#include "meshwright/data.h"

#include "input/synthetic_data.h"
#include "input/text_data.h"

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

const std::vector<const DataKind*>& data_kinds() {
  static const std::vector<const DataKind*> kinds{&text_data_kind(), &synthetic_data_kind()};
  return kinds;
}

const DataKind* find_data_kind(const std::string& name) {
  for (const DataKind* kind : data_kinds())
    if (kind->name() == name) return kind;
  return nullptr;
}

}  // namespace mw
