#include "model/ops.h"
#include "model/ops/attend.h"
#include "model/ops/kernel.h"

namespace mw {
namespace {

using namespace kernel;

// Which of this rank's key heads its query heads read: query head i reads `first + i / repeat`, of
// `count`, if regular; else `index[i]`.
struct HeadMap {
  std::int64_t held = 0;  // key heads on this rank
  std::int64_t first = 0, count = 0, repeat = 1;
  bool regular = true;
  std::vector<std::int64_t> index;
  bool identity() const { return regular && repeat == 1 && first == 0 && count == held; }
  bool all() const { return regular && first == 0 && count == held; }
};

HeadMap map_heads(const LocalDim& heads, const LocalDim& kv_heads) {
  HeadMap map;
  map.held = kv_heads.size;
  const std::int64_t group = heads.global / kv_heads.global;
  for (std::int64_t i = 0; i < heads.size; ++i) {
    map.index.push_back((heads.offset + i) / group - kv_heads.offset);
  }
  if (map.index.empty()) return map;
  map.first = map.index.front();
  map.count = map.index.back() - map.first + 1;
  map.repeat = heads.size / map.count;
  map.regular = map.repeat * map.count == heads.size;
  for (std::int64_t i = 0; map.regular && i < heads.size; ++i) {
    map.regular = map.index[i] == map.first + i / map.repeat;
  }
  return map;
}

at::Tensor index_of(const HeadMap& map, const at::Tensor& like) {
  return at::tensor(map.index, at::kLong).to(like.device());
}

// One key head for each query head. A copy if a key head serves several and there is more than one:
// the kernel wants a fixed distance between heads.
at::Tensor spread(const at::Tensor& k, const HeadMap& map) {
  if (map.identity()) return k;
  if (!map.regular) return k.index_select(2, index_of(map, k));
  const at::Tensor picked = k.narrow(2, map.first, map.count);
  if (map.repeat == 1) return picked;
  const std::int64_t b = k.size(0), t = k.size(1), d = k.size(3);
  if (map.count == 1) return picked.expand({b, t, map.repeat, d});
  return picked.unsqueeze(3)
      .expand({b, t, map.count, map.repeat, d})
      .reshape({b, t, map.count * map.repeat, d});
}

bool copies(const HeadMap& map) {
  return !map.regular || (map.repeat > 1 && map.count > 1);
}

// The adjoint of spread: sums over the query heads of a key head.
void fold(OpCall& call, std::size_t input, const at::Tensor& gradient, const HeadMap& map,
          std::int64_t keys) {
  const std::int64_t b = gradient.size(0), t = gradient.size(1), d = gradient.size(3);
  if (t == keys && map.identity()) return deliver(call, input, gradient);
  const auto folded = [&] {
    if (map.repeat == 1) return gradient;
    return gradient.reshape({b, t, map.count, map.repeat, d}).sum(3);
  };
  if (t == keys && map.all()) return deliver(call, input, folded());
  Target to = target(call, input, {b, keys, map.held, d}, gradient.options());
  if (!to.add) to.tensor.zero_();
  at::Tensor part = to.tensor.narrow(1, 0, t);
  if (map.regular) {
    part.narrow(2, map.first, map.count).add_(folded());
  } else {
    part.index_add_(2, index_of(map, gradient), gradient);
  }
}

struct Shape {
  AttendSizes sizes;
  HeadMap map;
  std::int64_t all_keys = 0;
};

Shape shape_of(const Op& op, const LocalDims& dims) {
  const Dims& q = op.inputs[0].dims;
  const Dims& k = op.inputs[1].dims;
  const LocalDim& queries = dims.at(q[1]);
  Shape shape;
  shape.all_keys = dims.at(k[1]).size;
  // Queries see no key after them: keys beyond this rank's last query are never read.
  shape.sizes = {dims.at(q[0]).size, dims.at(q[2]).size,
                 queries.size,       queries.offset + queries.size,
                 dims.at(q[3]).size, queries.offset};
  if (const LocalDim& keys = dims.at(k[1]); keys.size < keys.global) {
    // A part of them, cut as the queries are: their own, one before them, or one that they do not see.
    shape.sizes.causal = keys.offset == queries.offset;
    shape.sizes.keys = keys.offset > queries.offset ? 0 : keys.size;
    shape.sizes.offset = 0;
  }
  shape.map = map_heads(dims.at(q[2]), dims.at(k[2]));
  return shape;
}

class Attention final : public OpType {
 public:
  std::string kind() const override { return "attention"; }

  OpTraits traits(const Op& op) const override {
    const Dims& q = op.inputs[0].dims;
    OpTraits traits;
    traits.backward_reads_input = {true, true, true};
    traits.backward_reads_output = {true};
    traits.saved = {{"lse", {q[0], q[2], q[1]}, 0, true}};
    traits.gradient_passes = {false, false, false};
    traits.gradients_apart = true;
    traits.rotates = op.inputs[1].dims[1];
    return traits;
  }

  void forward(const Op& op, OpCall& call) const override {
    const auto [sizes, map, all_keys] = shape_of(op, call.dims);
    if (sizes.keys == 0) return;  // of a later turn
    const at::Tensor k = spread(call.inputs[1].narrow(1, 0, sizes.keys), map);
    const at::Tensor v = spread(call.inputs[2].narrow(1, 0, sizes.keys), map);
    Attended made = sizes.causal ? attend(call.inputs[0], k, v, sizes.offset)
                                 : attend_all(call.inputs[0], k, v);
    if (call.turn > 0) {
      merge({call.outputs[0], call.saved[0]}, made);
      return;
    }
    set_outputs(call, {made.out});
    call.saved = {made.lse};
  }

  void backward(const Op& op, OpCall& call) const override {
    const auto [sizes, map, all_keys] = shape_of(op, call.dims);
    if (sizes.keys == 0) {
      for (const std::size_t i : {1, 2}) {
        if (wanted(call, i)) deliver(call, i, at::zeros_like(call.inputs[i]));
      }
      return;
    }
    at::Tensor dk, dv;
    {
      const at::Tensor k = spread(call.inputs[1].narrow(1, 0, sizes.keys), map);
      const at::Tensor v = spread(call.inputs[2].narrow(1, 0, sizes.keys), map);
      const Attended whole{call.outputs[0], call.saved[0]};
      AttendGradients made =
          sizes.causal
              ? attend_backward(call.grad_outputs[0], call.inputs[0], k, v, whole, sizes.offset)
              : attend_all_backward(call.grad_outputs[0], call.inputs[0], k, v, whole);
      if (wanted(call, 0)) deliver(call, 0, made.q);
      dk = made.k;
      dv = made.v;
    }
    if (wanted(call, 1)) fold(call, 1, dk, map, all_keys);
    dk = at::Tensor();
    if (wanted(call, 2)) fold(call, 2, dv, map, all_keys);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const auto [sizes, map, all_keys] = shape_of(op, dims);
    const bool backward = piece != Piece::forward;
    const std::int64_t q = dims.count(op.inputs[0].dims), k = dims.count(op.inputs[1].dims);
    const std::int64_t lse = sizes.batch * sizes.heads * sizes.queries * wide_element(element);
    const std::int64_t spread = sizes.batch * sizes.keys * sizes.heads * sizes.head_dim * element;
    Cost cost;
    cost.flops = (backward ? 8.0 : 4.0) * static_cast<double>(all_keys) * static_cast<double>(q);
    cost.executed = attend_executed(sizes, backward);
    cost.bytes = static_cast<double>((backward ? 4 * q + 4 * k : 2 * q + 2 * k) * element + lse);
    if (sizes.keys == 0) {  // keys that no query here sees
      cost.flops = cost.executed = 0;
      cost.bytes = backward ? static_cast<double>(2 * k * element) : 0;
      return cost;
    }
    cost.workspace = attend_workspace(sizes, element, backward);
    // What a later turn sees is merged: its output, and the shares of both.
    if (!backward && !sizes.causal) cost.workspace += q * element + 3 * lse;
    const std::int64_t copied = copies(map) ? 2 * spread : 0;
    if (!backward) {
      cost.workspace += copied;
    } else {
      // While the kernel runs there are the copies, and key gradients that are not yet the op's
      // own; after it those of k are folded, then those of v. What stays is counted as output.
      if (map.identity() && sizes.keys == all_keys) return cost;
      const std::int64_t kept = k * element;
      const bool in_part = !map.all() || sizes.keys < all_keys;
      const std::int64_t sum = in_part && map.regular && map.repeat > 1 ? spread / map.repeat : 0;
      cost.workspace = std::max(
          {cost.workspace + copied + 2 * (spread - kept), 2 * spread - kept + sum, spread + sum});
    }
    return cost;
  }
};

}  // namespace

OpTypePtr attention() {
  static const OpTypePtr type = std::make_shared<Attention>();
  return type;
}

}  // namespace mw
