// Attention of a block of queries to a block of keys: by loops of our own on CPUs, by ATen's fused
// kernels on accelerators.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace mw::kernel {

// Tensors in this header are (batch, tokens, heads, width), with as many heads in k and v as in q;
// values may have another width than queries and keys.

// The rule by which a query sees keys. `all`: every query sees every key. `same`: queries and keys
// are the same tokens, and no query sees a later token. `band`: the i-th query sees the j-th key
// where j - i >= diagonal; each query sees at least one key.
struct Sight {
  enum class Kind : std::uint8_t { all, same, band };
  Kind kind = Kind::all;
  std::int64_t diagonal = 0;
  bool causal() const { return kind == Kind::same; }
};

struct Attended {
  at::Tensor out;  // shaped as q, with v's width
  at::Tensor lse;  // (batch, heads, queries): log of the sum of exp(scores), fp32 at least
};
// `into`: where the results go on CPUs; undefined: new tensors.
Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Sight sight,
                const Attended& into = {});
// Adds to `sum`, in place, what the same queries see in further keys, `more` [Milakov and
// Gimelshein 2018; Dao 2023, "FlashAttention-2", section 3.1].
void merge(const Attended& sum, const Attended& more);

struct AttendGradients {
  at::Tensor q, k, v;
};
// `made`: the result of forward for these keys, or for more keys that include these.
AttendGradients attend_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const Attended& made, Sight sight,
                                const AttendGradients& into = {});

// The sizes of a call of attend().
struct AttendSizes {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0;
  std::int64_t head_dim = 0, value_dim = 0;
  Sight::Kind sight = Sight::Kind::same;
};
// The floating-point operations that the loops really do on a CPU: a block of queries computes
// scores with all keys that one of the queries sees.
double attend_executed(const AttendSizes& sizes, bool backward);
// The bytes that a flash kernel takes beside operands and results. Its backward adds up the
// gradient of the queries in fp32 (Dao 2023, "FlashAttention-2", algorithm 2).
std::int64_t attend_on_accelerator(const AttendSizes& sizes, int element, bool backward);

}  // namespace mw::kernel
