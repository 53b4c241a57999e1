// Causal attention of a run of queries over the keys before them, by ATen's fused kernels.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace mw::kernel {

// Tensors are (batch, tokens, heads, head_dim), as many heads in k and v as in q. `offset` is the
// position of the first query, so that query i sees keys 0 ... offset + i; there are exactly
// offset + queries keys.
struct Attended {
  at::Tensor out;  // as q
  at::Tensor lse;  // (batch, heads, queries): log of the sum of exp(scores), fp32 at least
};
Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::int64_t offset);
// Every query sees every key; any number of them.
Attended attend_all(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
// Brings `sum` up to date, in place, with what its queries see in more keys [Milakov and Gimelshein
// 2018; Dao 2023, "FlashAttention-2", section 3.1].
void merge(const Attended& sum, const Attended& more);

struct AttendGradients {
  at::Tensor q, k, v;
};
AttendGradients attend_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const Attended& made, std::int64_t offset);
// Of some of the keys that `made` is of.
AttendGradients attend_all_backward(const at::Tensor& dout, const at::Tensor& q,
                                    const at::Tensor& k, const at::Tensor& v, const Attended& made);

// What ATen's CPU kernels do for these sizes. The block sizes are ATen's own (its
// FlashAttentionKernel.cpp): they decide how much of a causal score matrix is computed.
struct AttendSizes {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0, offset = 0;
  bool causal = true;  // else attend_all
};
double attend_executed(const AttendSizes& sizes, bool backward);
std::int64_t attend_workspace(const AttendSizes& sizes, int element, bool backward);

}  // namespace mw::kernel
