#include "model/ops/gemm.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace mw {
namespace {

// MKL runs AVX2 kernels on AMD's CPUs whatever they have. oneDNN, which libtorch brings too, uses
// AVX-512 there: 104 to 108 GFLOP/s a core against 93 to 99 (Zen 4, fp32, 256 to 1376 wide). Not
// for weight gradients, whose long contraction it does worse (85 against 95).
bool onednn_is_faster() {
#if defined(__x86_64__)
  static const bool is = __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
  return is;
#else
  return false;
#endif
}

// Below that, a product is over before oneDNN has found its kernel.
constexpr std::int64_t least_flops = 8'000'000;

at::Tensor onednn_linear(const at::Tensor& x, const at::Tensor& weight) {
  using Signature = at::Tensor(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
      c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  return op.call(x, weight, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

}  // namespace

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight) {
  const bool fits = x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous() &&
                    2 * x.size(0) * x.size(1) * weight.size(0) >= least_flops;
  if (fits && onednn_is_faster()) return onednn_linear(x, weight);
  return at::mm(x, weight.t());
}

}  // namespace mw
