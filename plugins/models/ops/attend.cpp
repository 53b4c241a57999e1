// Calls ATen's fused attention for one block of queries and keys, merges blocks by log-sum-exp,
// and says what the kernel computes and allocates.
#include "attend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kernel.h"

namespace mw::kernel {
namespace {

enum class Way { cpu, flash, efficient, plain };

Way way_of(const at::Tensor& q, const at::Tensor& v, Sight sight) {
  if (q.is_cpu()) return Way::cpu;
  if (sight.kind == Sight::Kind::band) return Way::plain;  // small blocks
  const std::int64_t width = q.size(-1), values = v.size(-1);
  if (is_half(q) && width % 8 == 0 && width <= 256 && values == width) return Way::flash;
  if (q.scalar_type() != at::kDouble && width % 8 == 0 && values % 8 == 0) return Way::efficient;
  return Way::plain;  // fp64 on an accelerator: nothing fused
}

at::Tensor heads_first(const at::Tensor& t) {
  return t.transpose(1, 2);
}

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

// The CPU kernel takes one width: the narrower operands are filled up with zeros, which change
// neither scores nor results, and what it makes of them is cut off again.
at::Tensor padded(const at::Tensor& t, std::int64_t width) {
  return t.size(-1) == width ? t : at::constant_pad_nd(t, {0, width - t.size(-1)});
}
at::Tensor cut(const at::Tensor& t, std::int64_t width) {
  return t.size(-1) == width ? t : t.narrow(-1, 0, width).contiguous();
}

// Minus infinity where a query does not see a key; undefined if all see all.
at::Tensor mask_of(const at::Tensor& q, const at::Tensor& k, Sight sight) {
  if (sight.kind == Sight::Kind::all) return {};
  at::Tensor mask =
      at::full({q.size(1), k.size(1)}, -std::numeric_limits<double>::infinity(), q.options());
  return sight.causal() ? mask.triu_(1) : mask.tril_(sight.diagonal - 1);
}

at::Tensor scores(const at::Tensor& q, const at::Tensor& k, Sight sight) {
  at::Tensor s = at::matmul(heads_first(q), k.permute({0, 2, 3, 1})).mul_(scale_of(q));
  if (const at::Tensor mask = mask_of(q, k, sight); mask.defined()) s.add_(mask);
  return s;
}

// What the CPU kernel is told by a mask; what is merely causal it knows itself.
std::optional<at::Tensor> band_of(const at::Tensor& q, const at::Tensor& k, Sight sight) {
  if (sight.kind != Sight::Kind::band) return std::nullopt;
  return mask_of(q, k, sight);
}

}  // namespace

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Sight sight) {
  const bool causal = sight.causal();
  const at::Tensor qh = heads_first(q), kh = heads_first(k), vh = heads_first(v);
  switch (way_of(q, v, sight)) {
    case Way::cpu: {
      const std::int64_t width = std::max(q.size(-1), v.size(-1));
      const auto wide = [&](const at::Tensor& t) { return heads_first(padded(t, width)); };
      auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
          wide(q), wide(k), wide(v), 0.0, causal, band_of(q, k, sight), scale_of(q));
      return {cut(out.transpose(1, 2), v.size(-1)), lse};
    }
    case Way::flash: {
      auto result = at::_scaled_dot_product_flash_attention(qh, kh, vh, 0.0, causal, false);
      return {std::get<0>(result).transpose(1, 2), std::get<1>(result)};
    }
    case Way::efficient: {  // mask type 1: causal from the top left
      auto result =
          at::_efficient_attention_forward(q, k, v, {}, {}, {}, {}, {}, 0.0, causal ? 1 : 0, true);
      // The kernel pads the rows of its log-sum-exp.
      return {std::get<0>(result), std::get<1>(result).narrow(2, 0, q.size(1)).contiguous()};
    }
    case Way::plain:
      break;
  }
  at::Tensor s = scores(q, k, sight);
  const at::Tensor lse = s.logsumexp(-1);
  s.sub_(lse.unsqueeze(-1)).exp_();
  return {at::matmul(s, vh).transpose(1, 2).contiguous(), lse};
}

AttendGradients attend_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const Attended& made, Sight sight) {
  const bool causal = sight.causal();
  const at::Tensor qh = heads_first(q), kh = heads_first(k), vh = heads_first(v);
  const at::Tensor gh = heads_first(dout), oh = heads_first(made.out);
  const auto back = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return AttendGradients{a.transpose(1, 2), b.transpose(1, 2), c.transpose(1, 2)};
  };
  switch (way_of(q, v, sight)) {
    case Way::cpu: {
      const std::int64_t width = std::max(q.size(-1), v.size(-1));
      const auto wide = [&](const at::Tensor& t) { return heads_first(padded(t, width)); };
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          wide(dout), wide(q), wide(k), wide(v), wide(made.out), made.lse, 0.0, causal,
          band_of(q, k, sight), scale_of(q));
      const AttendGradients whole = back(dq, dk, dv);
      return {cut(whole.q, q.size(-1)), cut(whole.k, q.size(-1)), cut(whole.v, v.size(-1))};
    }
    case Way::flash: {
      const at::Tensor unused = at::zeros({2}, q.options().dtype(at::kUInt64));
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          gh, qh, kh, vh, oh, made.lse.contiguous(), {}, {}, q.size(1), k.size(1), 0.0, causal,
          unused, unused);
      return back(dq, dk, dv);
    }
    case Way::efficient: {
      const std::int64_t n = q.size(1), padded = (n + 31) / 32 * 32;
      const at::Tensor lse =
          at::constant_pad_nd(made.lse, {0, padded - n}, std::numeric_limits<double>::infinity());
      const at::Tensor unused = at::zeros({}, q.options().dtype(at::kLong));
      auto result =
          at::_efficient_attention_backward(dout, q, k, v, {}, made.out, {}, {}, n, k.size(1), lse,
                                            0.0, unused, unused, causal ? 1 : 0, false);
      return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
    }
    case Way::plain:
      break;
  }
  at::Tensor p = scores(q, k, sight).sub_(made.lse.unsqueeze(-1)).exp_();
  const at::Tensor dv = at::matmul(p.transpose(2, 3), gh);
  at::Tensor d_probs = at::matmul(gh, vh.transpose(2, 3));
  d_probs.sub_(gh.mul(oh).sum(-1, true)).mul_(p).mul_(scale_of(q));
  return back(at::matmul(d_probs, kh), at::matmul(d_probs.transpose(2, 3), qh), dv);
}

void merge(const Attended& sum, const Attended& more) {
  const at::Tensor both = at::logaddexp(sum.lse, more.lse);
  const auto share = [&](const at::Tensor& lse) {
    return (lse - both).exp_().transpose(1, 2).unsqueeze(-1);
  };
  sum.out.mul_(share(sum.lse));
  sum.out.addcmul_(more.out, share(more.lse).to(more.out.scalar_type()));
  sum.lse.copy_(both);
}

namespace {
constexpr std::int64_t key_block = 512;
std::int64_t query_block(std::int64_t queries) {
  return std::min<std::int64_t>(queries, queries >= 768 ? 256 : queries >= 192 ? 64 : 32);
}

// How many scores a causal kernel computes: it compares each block of queries with the keys up to
// the block's last query, and backward with the whole of every block of keys that it touches.
double causal_scores(std::int64_t queries, std::int64_t keys, bool backward) {
  const std::int64_t block = query_block(queries), full = queries / block;
  const std::int64_t step = backward ? std::max(key_block, block) : block, in_step = step / block;
  // Blocks that end before the last key do, in a series; the others see all keys.
  const std::int64_t growing = std::min(full, keys / step * in_step);
  const std::int64_t last = std::min(backward ? (queries + step - 1) / step * step : queries, keys);
  const std::int64_t whole = growing / in_step;
  const auto steps = static_cast<double>(whole);
  const double series =
      static_cast<double>(step) * (static_cast<double>(in_step) * steps * (steps + 1) / 2 +
                                   static_cast<double>(growing % in_step) * (steps + 1));
  return static_cast<double>(block) *
             (series + static_cast<double>(full - growing) * static_cast<double>(keys)) +
         static_cast<double>(queries % block) * static_cast<double>(last);
}
}  // namespace

double attend_executed(const AttendSizes& sizes, bool backward) {
  if (sizes.queries == 0 || sizes.keys == 0) return 0;
  const double scores = sizes.sight == Sight::Kind::same
                            ? causal_scores(sizes.queries, sizes.keys, backward)
                            : static_cast<double>(sizes.queries) * static_cast<double>(sizes.keys);
  const double products = backward ? 5 : 2;
  const std::int64_t width = std::max(sizes.head_dim, sizes.value_dim);
  return 2 * products * scores * static_cast<double>(sizes.batch * sizes.heads * width);
}

namespace {

// What the kernel allocates, as its source has it, where it packs nothing and calls no
// other library.
std::int64_t estimate_attend(const AttendSizes& sizes, int element, int threads, bool backward) {
  const std::int64_t rows = query_block(sizes.queries), keys = std::min(key_block, sizes.keys);
  const std::int64_t sum = wide_element(element), half = element < 4 ? element : 0;
  const std::int64_t width = std::max(sizes.head_dim, sizes.value_dim);
  std::int64_t kernel = rows * (keys + 2 + width) * sum + rows * keys * half;
  if (backward) kernel = (2 * rows * keys + rows) * sum + 2 * rows * keys * half;
  kernel *= threads;
  if (sizes.sight == Sight::Kind::band) kernel += sizes.queries * sizes.keys * element;  // mask
  if (sizes.apart && sizes.value_dim == width)  // a narrower one is copied to be filled up
    kernel += sizes.batch * sizes.heads * sizes.queries * width * element;
  if (sizes.head_dim == sizes.value_dim) return kernel;
  // Bytes of the copies that are filled up to `width`: operands,
  // and results before and after the cut.
  const std::int64_t column = sizes.batch * sizes.heads * element;
  const std::int64_t q = column * sizes.queries, k = column * sizes.keys;
  std::int64_t operands = 0, wide = 0, cut = 0;
  if (width > sizes.value_dim) {
    operands = backward ? k + 2 * q : k;
    wide = (backward ? k : q) * width;
    cut = (backward ? k : q) * sizes.value_dim;
  } else {
    operands = q + k;
    wide = backward ? (q + k) * width : 0;
    cut = backward ? (q + k) * sizes.head_dim : 0;
  }
  return std::max(kernel + operands * width + wide - cut, wide);
}

AttendSizes sizes_of(const std::vector<std::int64_t>& s) {
  return {s[0], s[1], s[2], s[3], s[4], s[5], static_cast<Sight::Kind>(s[6]), s[7] != 0};
}

template <bool backward>
std::int64_t estimate(const std::vector<std::int64_t>& sizes, int element, int threads) {
  return estimate_attend(sizes_of(sizes), element, threads, backward);
}

template <bool backward>
std::function<void()> prepare(const std::vector<std::int64_t>& list, at::ScalarType type) {
  const AttendSizes s = sizes_of(list);
  const auto tensor = [&](std::int64_t tokens, std::int64_t width) {
    return at::zeros({s.batch, tokens, s.heads, width}, type);
  };
  const at::Tensor q = tensor(s.queries, s.head_dim), k = tensor(s.keys, s.head_dim),
                   v = tensor(s.keys, s.value_dim);
  const Sight sight{s.sight, 0};
  if (!backward) return [=, made = Attended()]() mutable { made = attend(q, k, v, sight); };
  const Attended whole{tensor(s.queries, s.value_dim),
                       at::zeros({s.batch, s.heads, s.queries}, wide(q))};
  const at::Tensor dout = tensor(s.queries + (s.apart ? 1 : 0), s.value_dim);
  return [=, made = AttendGradients()]() mutable {
    made = attend_backward(dout.narrow(1, 0, s.queries), q, k, v, whole, sight);
  };
}

}  // namespace

LibraryCall attend_call(const AttendSizes& sizes, bool backward, std::int64_t beside) {
  LibraryCall call;
  call.name = backward ? "attention backward" : "attention";
  call.sizes = {sizes.batch,
                sizes.heads,
                sizes.queries,
                sizes.keys,
                sizes.head_dim,
                sizes.value_dim,
                static_cast<std::int64_t>(sizes.sight),
                backward && sizes.apart ? 1 : 0};
  call.prepare = backward ? prepare<true> : prepare<false>;
  call.estimate = backward ? estimate<true> : estimate<false>;
  const double elements = static_cast<double>(sizes.batch * sizes.heads) *
                          static_cast<double>(sizes.queries + sizes.keys) *
                          static_cast<double>(sizes.head_dim + sizes.value_dim);
  call.flops = attend_executed(sizes, backward) + 16 * elements;
  call.beside = beside;
  return call;
}

}  // namespace mw::kernel
