// Brings a tensor whose dim lies in another order (zigzag) into that order, and back into its
// own.
#include "run/token_permutation.h"

#include "meshwright/engine/run.h"

namespace mw {

at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs) {
  if (runs.size() == 1) return whole.narrow(at, runs[0].offset, runs[0].size);
  std::vector<at::Tensor> parts;
  parts.reserve(runs.size());
  for (const Range& run : runs) parts.push_back(whole.narrow(at, run.offset, run.size));
  return at::cat(parts, at);
}

at::Tensor in_own_order(const Program& program, at::Tensor whole, const Dims& dims) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto order = program.token_permutation.find(dims[d]);
    if (order == program.token_permutation.end()) continue;
    const auto at = static_cast<std::int64_t>(d);
    at::Tensor own = at::empty_like(whole);
    std::int64_t lies = 0;
    for (const Range& range : order->second) {
      own.narrow(at, range.offset, range.size).copy_(whole.narrow(at, lies, range.size));
      lies += range.size;
    }
    whole = own;
  }
  return whole;
}

}  // namespace mw
