// Ring attention on paper becomes: blocks by the library's flash kernel, merged by log-sum-exp, K
// and V handed round with send and recv; backward block by block with the merged output and
// log-sum-exp, dK and dV handed round with K and V (Liu et al. 2023, "Ring Attention"; Dao 2023,
// "FlashAttention-2"). This is the expansion that the architecture describes,
// on real ranks and a real communicator.
#include <catch2/catch.hpp>

#include <mutex>

#include "meshwright/world.h"

using namespace mw;

namespace {

struct Block {
  at::Tensor out, lse;  // (batch, heads, seq, dim), (batch, heads, seq)
};

Block attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal) {
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal);
  return {out, lse};
}

void merge(Block& sum, const Block& more) {
  const at::Tensor lse = at::logaddexp(sum.lse, more.lse);
  sum.out = sum.out * (sum.lse - lse).exp().unsqueeze(-1) +
            more.out * (more.lse - lse).exp().unsqueeze(-1);
  sum.lse = lse;
}

// Hands `tensor` to the next rank of the ring; returns the previous one's.
at::Tensor shift(Communicator& ring, const at::Tensor& tensor, int tag) {
  static const std::string label = "ring";
  const int n = ring.ways(), next = (ring.index() + 1) % n, before = (ring.index() + n - 1) % n;
  const at::Tensor out = tensor.contiguous();
  at::Tensor in = at::empty_like(out);
  Pending sent = ring.send(out, next, tag, {"forward", &label});
  Pending received = ring.recv(in, before, tag, {"forward", &label});
  received.wait();
  sent.wait();
  return in;
}

struct Gradients {
  at::Tensor out, q, k, v;
};

Gradients ring_attention(Communicator& ring, const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const at::Tensor& grad) {
  const int n = ring.ways(), me = ring.index();
  at::Tensor keys = k, values = v;
  Block all;
  for (int step = 0; step < n; ++step) {
    const int from = (me + n - step) % n;  // whose keys these are; later ones are masked out whole
    if (from <= me) {
      const Block block = attend(q, keys, values, from == me);
      if (step == 0)
        all = block;
      else
        merge(all, block);
    }
    keys = shift(ring, keys, 2 * step);
    values = shift(ring, values, 2 * step + 1);
  }
  at::Tensor dq = at::zeros_like(q), dk = at::zeros_like(k), dv = at::zeros_like(v);
  for (int step = 0; step < n; ++step) {  // keys are home again after n shifts
    const int from = (me + n - step) % n;
    if (from <= me) {
      auto [bq, bk, bv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          grad, q, keys, values, all.out, all.lse, 0.0, from == me);
      dq += bq;
      dk += bk;
      dv += bv;
    }
    int tag = 100 + 4 * step;
    for (at::Tensor* t : {&keys, &values, &dk, &dv}) *t = shift(ring, *t, tag++);
  }
  return {all.out, dq, dk, dv};
}

}  // namespace

TEST_CASE("Ring attention over ranks equals attention, forward and backward") {
  const int n = GENERATE(1, 2, 3, 4);
  at::manual_seed(1);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  auto make = [&] { return at::randn({2, 3, 12, 8}, options); };
  const at::Tensor q = make(), k = make(), v = make(), grad = make();
  const Block whole = attend(q, k, v, true);
  const auto gradients = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, q, k, v, whole.out, whole.lse, 0.0, true);
  const auto& dq = std::get<0>(gradients);
  const auto& dk = std::get<1>(gradients);
  const auto& dv = std::get<2>(gradients);
  std::mutex mutex;
  double worst = 0;
  run_ranks(n, [&](RankContext& context) {
    std::vector<int> group;
    for (int r = 0; r < n; ++r) group.push_back(r);
    const auto ring = make_communicator(*context.source, "cp", group, context.rank, nullptr);
    auto part = [&](const at::Tensor& t) { return t.chunk(n, 2)[context.rank].contiguous(); };
    const Gradients own = ring_attention(*ring, part(q), part(k), part(v), part(grad));
    auto error = [&](const at::Tensor& x, const at::Tensor& full) {
      return ((x - part(full)).norm() / part(full).norm()).item<double>();
    };
    std::lock_guard lock(mutex);
    worst = std::max(
        {worst, error(own.out, whole.out), error(own.q, dq), error(own.k, dk), error(own.v, dv)});
  });
  INFO("ranks " << n << ", worst " << worst);
  CHECK(worst < 1e-12);
}
