// Matrix products by the fastest library that is there for their sizes and this CPU.
#include "gemm.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <exception>
#include <memory>
#include <thread>

// libtorch exports it, but ships no header that declares it: the product by oneDNN,
// result = alpha a b + beta result.
namespace at::native {
TORCH_API void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                             float alpha);
}  // namespace at::native

namespace mw {
namespace {

// Whether libtorch's product by oneDNN serves here: it refuses a CPU that lacks AVX-512, or where
// ONEDNN_MAX_CPU_ISA says less. Tried in a thread of its own, whose memory no ledger counts.
bool onednn_multiplies() {
  bool serves = true;
  std::thread([&] {
    try {
      const at::Tensor one = at::ones({1, 1});
      at::native::mkldnn_matmul(one, one, at::ones({1, 1}), 0, 1);
    } catch (const std::exception&) {
      serves = false;
    }
  }).join();
  return serves;
}

// MKL runs AVX2 kernels on AMD's CPUs whatever they have. oneDNN, which libtorch brings too, uses
// AVX-512 there: 101 to 109 GFLOP/s a core against 94 to 100 on Zen 4, and 227 to 256 against 108
// to 115 on Zen 5, whose units are twice as wide (fp32, 256 to 2752 wide, weight gradients, sums).
bool onednn_is_faster() {
#if defined(__x86_64__)
  static const bool is =
      __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f") && onednn_multiplies();
  return is;
#else
  return false;
#endif
}

// Below that, a product is over before oneDNN has found its kernel.
constexpr double least_flops = 8e6;

// Within its scope what the thread allocates is not counted: oneDNN's buffers for parts of operands
// that it packs, up to half a megabyte a thread, which are there during the call alone. MKL takes
// such buffers from where nobody counts them, so that a rank's memory is the same on every CPU.
class Uncounted {
 public:
  Uncounted() : guard_(c10::DebugInfoKind::PROFILER_STATE, nobody()) {}

 private:
  struct Nobody final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
    bool memoryProfilingEnabled() const override { return false; }
  };
  static const std::shared_ptr<Nobody>& nobody() {
    static const auto one = std::make_shared<Nobody>();
    return one;
  }
  c10::DebugInfoGuard guard_;
};

bool rows_or_columns_lie_together(const at::Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous();
}

bool onednn_serves(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return onednn_is_faster() && out.is_cpu() && out.scalar_type() == at::kFloat &&
         a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && out.is_contiguous() &&
         rows_or_columns_lie_together(a) && rows_or_columns_lie_together(b) &&
         2.0 * static_cast<double>(out.numel()) * static_cast<double>(a.size(1)) >= least_flops;
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
        y = linear_product(a, b.t(), bias);
      };
    default:
      return [=, y = at::zeros({m, n}, type)] { product_into(y, a, b, into == Into::added); };
  }
}

}  // namespace

at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cpu()) {
    at::Tensor y = at::empty({x.size(0), weight.size(0)}, x.options());
    if (bias.defined()) y.copy_(bias.expand_as(y));
    product_into(y, x, weight.t(), bias.defined());
    return y;
  }
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
}

void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (onednn_serves(out, a, b)) {
    const Uncounted packing;
    at::native::mkldnn_matmul(a, b, out, add ? 1 : 0, 1);
  } else {
    passing_product_into(std::move(out), a, b, add);
  }
}

void passing_product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

LibraryCall product_call(Into into, Turned turned, std::int64_t m, std::int64_t n, std::int64_t k) {
  LibraryCall call;
  call.name = "gemm";
  call.sizes = {m, n, k, static_cast<std::int64_t>(into), static_cast<std::int64_t>(turned)};
  call.prepare = prepare_product;
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
             inner = static_cast<double>(k);
  // A number moved counts as many.
  call.flops = 2 * rows * columns * inner + 16 * (rows * columns + (rows + columns) * inner);
  return call;
}

}  // namespace mw
