// Attention of one block of queries and keys: on CPUs by loops of our own (vector/attention.h),
// head by head, on accelerators by ATen's fused kernels. Merges blocks by log-sum-exp, and says
// what the loops compute and allocate.
#include "attend.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel.h"
#include "on_threads.h"
#include "vector/vector.h"

namespace mw::kernel {
namespace {

enum class Way { cpu, flash, efficient, plain };

Way way_of(const at::Tensor& q, const at::Tensor& v, Sight sight) {
  if (q.is_cpu()) return Way::cpu;
  if (sight.kind == Sight::Kind::band) return Way::plain;  // bands occur in small blocks only
  const std::int64_t width = q.size(-1), values = v.size(-1);
  if (is_half(q) && width % 8 == 0 && width <= 256 && values == width) return Way::flash;
  if (q.scalar_type() != at::kDouble && width % 8 == 0 && values % 8 == 0) return Way::efficient;
  return Way::plain;  // no fused kernel takes it: fp64 on an accelerator, for one
}

at::Tensor heads_first(const at::Tensor& t) {
  return t.transpose(1, 2);
}

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

// What is added to scores: minus infinity where a query does not see a key. Undefined if all see
// all.
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

// The tensor with rows of adjacent numbers, as the loops read them.
at::Tensor in_rows(const at::Tensor& t) {
  return t.stride(-1) == 1 ? t : t.contiguous();
}

// The operands of the loops for all heads of all sequences; forward leaves the gradients undefined.
struct Operands {
  at::Tensor q, k, v, out, lse, dout, dq, dk, dv;
  Operands sequence(std::int64_t b) const {
    const auto one = [&](const at::Tensor& t) { return t.defined() ? t.narrow(0, b, 1) : t; };
    return {one(q), one(k), one(v), one(out), one(lse), one(dout), one(dq), one(dk), one(dv)};
  }
};

// The loops' sizes for one head of a call. `diagonal` is that of a band.
template <class T>
vector::Attention<T> shape_of(const AttendSizes& sizes, std::int64_t diagonal) {
  vector::Attention<T> shape;
  shape.queries = sizes.queries;
  shape.keys = sizes.keys;
  shape.width = sizes.head_dim;
  shape.value_width = sizes.value_dim;
  shape.from = sizes.sight == Sight::Kind::band ? diagonal : -sizes.queries;
  shape.to = sizes.sight == Sight::Kind::same ? 1 : sizes.keys;
  return shape;
}

template <class T>
void run_heads(const Operands& o, Sight sight) {
  auto shape = shape_of<T>(
      {o.q.size(0), o.q.size(2), o.q.size(1), o.k.size(1), o.q.size(-1), o.v.size(-1), sight.kind},
      sight.diagonal);
  shape.scale = static_cast<T>(scale_of(o.q));
  const bool backward = o.dout.defined();
  const std::int64_t heads = o.q.size(2), all = o.q.size(0) * heads;
  const std::int64_t room = vector::attention_room<T>(shape, backward);
  const at::Tensor buffer = at::empty({at::get_num_threads(), room}, o.lse.options());
  const auto run = backward ? vector::loops<T>().attend_backward : vector::loops<T>().attend;
  on_threads(all, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      const auto rows = [&](const at::Tensor& t) -> vector::Rows<T> {
        if (!t.defined()) return {};
        return {t.data_ptr<T>() + n / heads * t.stride(0) + n % heads * t.stride(2), t.stride(1)};
      };
      vector::Attention<T> head = shape;
      head.q = rows(o.q), head.k = rows(o.k), head.v = rows(o.v), head.out = rows(o.out);
      head.lse = o.lse.data_ptr<T>() + n / heads * o.lse.stride(0) + n % heads * o.lse.stride(1);
      head.dout = rows(o.dout), head.dq = rows(o.dq), head.dk = rows(o.dk), head.dv = rows(o.dv);
      head.buffer = buffer.data_ptr<T>() + at::get_thread_num() * room;
      run(head);
    }
  });
}

// Runs the loops; for half types sequence by sequence, on fp32 copies.
void run_on_cpu(const Operands& o, Sight sight) {
  if (o.q.numel() == 0) return;
  TORCH_CHECK(o.k.size(1) > 0, "each query must see a key");
  if (o.q.scalar_type() == at::kDouble) return run_heads<double>(o, sight);
  if (!is_half(o.q)) return run_heads<float>(o, sight);
  const bool backward = o.dout.defined();
  const auto wide = [](const at::Tensor& t) { return t.to(at::kFloat); };
  const auto room = [](const at::Tensor& t) {
    return at::empty(t.sizes(), t.options().dtype(at::kFloat));
  };
  for (std::int64_t b = 0; b < o.q.size(0); ++b) {
    const Operands half = o.sequence(b);
    Operands full{wide(half.q), wide(half.k), wide(half.v), {}, half.lse, {}, {}, {}, {}};
    full.out = backward ? wide(half.out) : room(half.out);
    if (backward) {
      full.dout = wide(half.dout);
      full.dq = room(half.dq), full.dk = room(half.dk), full.dv = room(half.dv);
    }
    run_heads<float>(full, sight);
    if (!backward) half.out.copy_(full.out);
    if (backward) half.dq.copy_(full.dq), half.dk.copy_(full.dk), half.dv.copy_(full.dv);
  }
}

at::Tensor like(const at::Tensor& t, std::int64_t width) {
  return at::empty({t.size(0), t.size(1), t.size(2), width}, t.options());
}

}  // namespace

Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Sight sight,
                const Attended& into) {
  const bool causal = sight.causal();
  const at::Tensor qh = heads_first(q), kh = heads_first(k), vh = heads_first(v);
  switch (way_of(q, v, sight)) {
    case Way::cpu: {
      Attended made = into;
      if (!made.out.defined()) {
        made = {like(q, v.size(-1)),
                at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(wide(q)))};
      }
      run_on_cpu({in_rows(q), in_rows(k), in_rows(v), made.out, made.lse, {}, {}, {}, {}}, sight);
      return made;
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
                                const at::Tensor& v, const Attended& made, Sight sight,
                                const AttendGradients& into) {
  const bool causal = sight.causal();
  const at::Tensor qh = heads_first(q), kh = heads_first(k), vh = heads_first(v);
  const at::Tensor gh = heads_first(dout), oh = heads_first(made.out);
  const auto back = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    return AttendGradients{a.transpose(1, 2), b.transpose(1, 2), c.transpose(1, 2)};
  };
  switch (way_of(q, v, sight)) {
    case Way::cpu: {
      AttendGradients gradients = into;
      if (!gradients.q.defined())
        gradients = {like(q, q.size(-1)), like(k, k.size(-1)), like(v, v.size(-1))};
      run_on_cpu({in_rows(q), in_rows(k), in_rows(v), in_rows(made.out), made.lse, in_rows(dout),
                  gradients.q, gradients.k, gradients.v},
                 sight);
      return gradients;
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

double attend_executed(const AttendSizes& sizes, bool backward) {
  if (sizes.queries == 0 || sizes.keys == 0) return 0;
  // The diagonal of a band is not known here: this is as if each query saw all keys.
  const auto scores =
      static_cast<double>(vector::scores_of(shape_of<float>(sizes, -sizes.queries)));
  const auto products = static_cast<double>(backward ? 3 * sizes.head_dim + 2 * sizes.value_dim
                                                     : sizes.head_dim + sizes.value_dim);
  return 2 * products * scores * static_cast<double>(sizes.batch * sizes.heads);
}

std::int64_t attend_on_accelerator(const AttendSizes& s, int element, bool backward) {
  // Where values have another width, the narrower operands are copied, filled up to the wider
  // width.
  const std::int64_t wide = std::max(s.head_dim, s.value_dim);
  const std::int64_t filled = wide > s.value_dim ? 1 : s.head_dim < s.value_dim ? 2 : 0;
  const std::int64_t heads = s.batch * s.heads;
  const std::int64_t copies = filled * heads * std::max(s.queries, s.keys) * wide * element;
  // backward also holds an fp32 gradient of q and a sum for each row
  return copies + (backward ? 4 * heads * s.queries * (wide + 1) : 0);
}

}  // namespace mw::kernel
