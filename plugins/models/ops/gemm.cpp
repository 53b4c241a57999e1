// Matrix products by the fastest library that is there for their sizes and this CPU.
#include "gemm.h"

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

// Sizes: m, n, k, how it is called.
std::function<void()> prepare_product(const std::vector<std::int64_t>& sizes, at::ScalarType type) {
  const std::int64_t m = sizes[0], n = sizes[1], k = sizes[2];
  const auto into = static_cast<Into>(sizes[3]);
  const auto turned = static_cast<Turned>(sizes[4]);
  const at::Tensor a =
      turned == Turned::left ? at::zeros({k, m}, type).t() : at::zeros({m, k}, type);
  const at::Tensor b =
      turned == Turned::right ? at::zeros({n, k}, type).t() : at::zeros({k, n}, type);
  switch (into) {
    case Into::fresh:
      return [=, y = at::Tensor()]() mutable { y = linear_product(a, b.t()); };
    case Into::biased:
      return [=, y = at::Tensor(), bias = at::zeros({n}, type)]() mutable {
        y = at::addmm(bias, a, b);
      };
    default:
      return [=, y = at::zeros({m, n}, type)] { product_into(y, a, b, into == Into::added); };
  }
}

}  // namespace

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight) {
  const bool fits = x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous() &&
                    2 * x.size(0) * x.size(1) * weight.size(0) >= least_flops;
  if (fits && onednn_is_faster()) return onednn_linear(x, weight);
  return at::mm(x, weight.t());
}

void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

LibraryCall product_call(Into into, Turned turned, std::int64_t m, std::int64_t n, std::int64_t k) {
  LibraryCall call;
  call.name = "product";
  call.sizes = {m, n, k, static_cast<std::int64_t>(into), static_cast<std::int64_t>(turned)};
  call.prepare = prepare_product;
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
             inner = static_cast<double>(k);
  // A number moved counts as many.
  call.flops = 2 * rows * columns * inner + 16 * (rows * columns + (rows + columns) * inner);
  return call;
}

}  // namespace mw
