// Matrix products by the fastest library that is there for their sizes and this CPU.
#include "gemm.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <bit>
#include <exception>

#include "meshwright/threads.h"

// libtorch exports mkldnn_matmul, but no header declares it: the product by oneDNN, result = alpha
// a b + beta result.
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
  in_own_thread([&] {
    try {
      const at::Tensor one = at::ones({1, 1});
      at::native::mkldnn_matmul(one, one, at::ones({1, 1}), 0, 1);
    } catch (const std::exception&) {
      serves = false;
    }
  });
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

// Fewer operations are over before oneDNN has found its kernel (10 us).
constexpr double least_flops = 8e6;
// Products of fewer operations are computed in blocks; so are those of any size that hardly comes
// again.
constexpr double most_flops_in_blocks = 32e6;

bool rows_or_columns_lie_together(const at::Tensor& matrix) {
  return matrix.is_contiguous() || matrix.t().is_contiguous();
}

bool onednn_serves(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return onednn_is_faster() && out.is_cpu() && out.scalar_type() == at::kFloat &&
         a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat && out.is_contiguous() &&
         rows_or_columns_lie_together(a) && rows_or_columns_lie_together(b);
}

double flops_of(const at::Tensor& out, const at::Tensor& a) {
  return 2.0 * static_cast<double>(out.numel()) * static_cast<double>(a.size(1));
}

bool transposed(const at::Tensor& matrix) {
  return !matrix.is_contiguous();
}

// An fp32 operand in memory. The rows of a transposed view are columns of the memory.
struct Operand {
  const float* first;
  std::int64_t stride;
  bool is_transposed;

  explicit Operand(const at::Tensor& matrix)
      : first(matrix.const_data_ptr<float>()),
        stride(transposed(matrix) ? matrix.size(0) : matrix.size(1)),
        is_transposed(transposed(matrix)) {}
  const float* at(std::int64_t row, std::int64_t column) const {
    return is_transposed ? first + column * stride + row : first + row * stride + column;
  }
};

// to (rows, columns) = the transpose of from (columns, rows).
void transpose(float* to, const float* from, std::int64_t stride, std::int64_t rows,
               std::int64_t columns) {
  constexpr std::int64_t tile = 16;  // as many numbers as a line of the cache has
  for (std::int64_t r = 0; r < rows; r += tile) {
    const std::int64_t rows_end = std::min(r + tile, rows);
    for (std::int64_t c = 0; c < columns; ++c)
      for (std::int64_t row = r; row < rows_end; ++row)
        to[row * columns + c] = from[c * stride + row];
  }
}

// Computes a product in blocks, by oneDNN's kernels for these. They take no transposed operand: it
// is copied, a block at a time. libtorch compiles a kernel for each size of a block and each
// thread, in 0.1 ms. Where the size of a dim hardly comes again (`passing`), the rest beyond whole
// blocks is therefore cut into powers of two, which do come again.
class Blocks {
 public:
  Blocks(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add, bool passing)
      : m_(out.size(0)),
        n_(out.size(1)),
        k_(a.size(1)),
        a_(a),
        b_(b),
        out_(out.mutable_data_ptr<float>()),
        add_(add),
        rows_pass_(passing && !a_.is_transposed),
        inner_passes_(passing && a_.is_transposed) {}

  // Whether this serves: one thread computes all of it, and what is copied is used often enough.
  static bool serve(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
    constexpr std::int64_t least_uses = 64;
    const bool left = transposed(a), right = transposed(b);
    return out.numel() > 0 && a.size(1) > 0 && at::get_num_threads() == 1 && !(left && right) &&
           (!left || out.size(1) >= least_uses) && (!right || out.size(0) >= least_uses);
  }

  void run() {
    if (a_.is_transposed || b_.is_transposed) {
      const std::int64_t other =
          a_.is_transposed ? std::min(m_, most_rows) : std::min(n_, most_columns);
      const at::Tensor copy = at::empty({std::min(k_, most_inner) * other}, at::kFloat);
      copy_ = copy.mutable_data_ptr<float>();
      a_.is_transposed ? by_rows() : by_columns();
      return;
    }
    by_columns();
  }

 private:
  static constexpr std::int64_t most_rows = 64, most_columns = 128, most_inner = 512;

  static std::int64_t next(std::int64_t rest, std::int64_t most, bool passes) {
    if (rest >= most) return most;
    return passes ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rest)))
                  : rest;
  }

  // A block of b is copied once, and stays in the cache for all rows.
  void by_columns() {
    for (std::int64_t j = 0, columns = 0; j < n_; j += columns) {
      columns = std::min(most_columns, n_ - j);
      for (std::int64_t p = 0, inner = 0; p < k_; p += inner) {
        inner = next(k_ - p, most_inner, inner_passes_);
        const float* b = b_.at(p, j);
        if (b_.is_transposed) transpose(copy_, b, b_.stride, inner, columns);
        for (std::int64_t i = 0, rows = 0; i < m_; i += rows) {
          rows = next(m_ - i, most_rows, rows_pass_);
          multiply(i, j, p, rows, columns, inner, a_.at(i, p), a_.stride,
                   b_.is_transposed ? copy_ : b, b_.is_transposed ? columns : b_.stride);
        }
      }
    }
  }

  // A block of a is copied once for all columns.
  void by_rows() {
    for (std::int64_t p = 0, inner = 0; p < k_; p += inner) {
      inner = next(k_ - p, most_inner, inner_passes_);
      for (std::int64_t i = 0, rows = 0; i < m_; i += rows) {
        rows = next(m_ - i, most_rows, rows_pass_);
        transpose(copy_, a_.at(i, p), a_.stride, rows, inner);
        for (std::int64_t j = 0, columns = 0; j < n_; j += columns) {
          columns = std::min(most_columns, n_ - j);
          multiply(i, j, p, rows, columns, inner, copy_, inner, b_.at(p, j), b_.stride);
        }
      }
    }
  }

  void multiply(std::int64_t i, std::int64_t j, std::int64_t p, std::int64_t rows,
                std::int64_t columns, std::int64_t inner, const float* a, std::int64_t stride_a,
                const float* b, std::int64_t stride_b) {
    at::native::cpublas::brgemm(rows, columns, inner, stride_a, stride_b, n_, add_ || p > 0, a, b,
                                out_ + i * n_ + j, /*is_vnni=*/false);
  }

  const std::int64_t m_, n_, k_;
  const Operand a_, b_;
  float* const out_;
  const bool add_, rows_pass_, inner_passes_;
  float* copy_ = nullptr;
};

void product_by_blas(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (add) {
    out.addmm_(a, b);
  } else {
    at::mm_out(out, a, b);
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
  if (!onednn_serves(out, a, b)) return product_by_blas(out, a, b, add);
  const double flops = flops_of(out, a);
  if (flops < most_flops_in_blocks && Blocks::serve(out, a, b)) {
    Blocks(out, a, b, add, false).run();
  } else if (flops >= least_flops) {
    at::native::mkldnn_matmul(a, b, out, add ? 1 : 0, 1);
  } else {
    product_by_blas(out, a, b, add);
  }
}

void passing_product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add) {
  if (onednn_serves(out, a, b) && Blocks::serve(out, a, b)) {
    Blocks(out, a, b, add, true).run();
  } else {
    product_by_blas(out, a, b, add);
  }
}

}  // namespace mw
