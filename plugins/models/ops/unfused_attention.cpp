// Attention in parts, whose scores exist: a product of queries and keys, its softmax, and the
// product with the values. Backward reads the softmax, so it is kept, and what is kept grows with
// the square of the sequence [Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
// Transformer Models", equation 2].
#include <algorithm>
#include <cmath>
#include <limits>

#include "heads.h"
#include "kernel.h"
#include "meshwright/ops.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

// One sequence's (tokens, heads, width), as its heads' matrices (heads, tokens, width).
at::Tensor matrices(const at::Tensor& sequence) {
  return sequence.transpose(0, 1);
}
at::Tensor turned(const at::Tensor& matrices) {
  return matrices.transpose(1, 2);
}

// The product of each head's matrices, times `scale`.
at::Tensor scaled_product(const at::Tensor& a, const at::Tensor& b, double scale) {
  at::Tensor product = at::empty({a.size(0), a.size(1), b.size(2)}, a.options());
  return product.baddbmm_(a, b, 0, scale);
}

double score_scale(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

// (queries, keys): true where a query does not see a key, one after it or before its window.
at::Tensor unseen(const at::Tensor& queries, const at::Tensor& keys, std::int64_t window) {
  const at::Tensor query = queries.unsqueeze(1), key = keys.unsqueeze(0);
  at::Tensor mask = key.gt(query);
  if (window > 0) mask.logical_or_(key.le(query - window));
  return mask;
}

struct UnfusedShape {
  HeadMap map;
  std::int64_t batch = 0, queries = 0, heads = 0, keys = 0, head_dim = 0, value_dim = 0;
  std::int64_t scores() const { return heads * queries * keys; }  // scores of one sequence
};

UnfusedShape unfused_shape(const Op& op, const LocalDims& dims) {
  const Dims& q = op.inputs[0].dims;
  const Dims& k = op.inputs[1].dims;
  return {map_heads(dims.at(q[2]), dims.at(k[2])),
          dims.at(q[0]).size,
          dims.at(q[1]).size,
          dims.at(q[2]).size,
          dims.at(k[1]).size,
          dims.at(q[3]).size,
          dims.at(op.inputs[2].dims[3]).size};
}

class UnfusedAttention final : public OpType {
 public:
  explicit UnfusedAttention(const AttentionLimits& limits)
      : limits_(limits),
        bias_(limits.bias ? 3 : 0),
        sinks_(limits.sinks ? 3 + (limits.bias ? 1 : 0) : 0) {}

  std::string kind() const override { return "unfused_attention"; }
  OpClass op_class() const override { return OpClass::attention; }

  OpTraits traits(const Op& op) const override {
    const Dims& q = op.inputs[0].dims;
    OpTraits traits;
    traits.backward_reads_input = {true, true, true};
    traits.backward_reads_input.resize(op.inputs.size(), false);
    traits.backward_reads_output = {false};
    traits.saved = {{"softmax", {q[0], q[2], q[1], op.inputs[1].dims[1]}}};
    // In fp32, as a share of a thousandth is lost beside a sum of nearly 1.
    if (sinks_ > 0) traits.saved.push_back({"share of sinks", {q[0], q[2], q[1]}, 0, true});
    traits.gradient_passes.assign(op.inputs.size(), false);
    return traits;
  }

  std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const override {
    AttentionLimits limits = limits_;
    limits.documents = true;
    return attention_in_documents(op, starts, graph, only_of<UnfusedAttention>(limits),
                                  !limits_.causal);
  }
  // A bias lies in the order of the keys' places, which is another for each row.
  std::optional<Op> in_parted_documents(const Op& op, int places, int,
                                        Graph& graph) const override {
    if (!limits_.documents) return OpType::in_parted_documents(op, places, 0, graph);
    if (bias_ > 0) return {};
    if (!limits_.causal) return op;
    AttentionLimits limits = limits_;
    limits.parted = true;
    return attention_in_parted_documents(op, places, only_of<UnfusedAttention>(limits));
  }

  void forward(const Op& op, OpCall& call) const override {
    const UnfusedShape shape = unfused_shape(op, call.dims);
    const at::Tensor& q = call.inputs[0];
    const at::Tensor k = spread(call.inputs[1], shape.map), v = spread(call.inputs[2], shape.map);
    set_outputs(call, {at::empty(call.dims.shape(op.output_dims[0]), q.options())});
    call.saved = {at::empty({shape.batch, shape.heads, shape.queries, shape.keys}, q.options())};
    if (sinks_ > 0) {
      call.saved.push_back(at::empty({shape.batch, shape.heads, shape.queries}, wide_options(q)));
    }
    at::Tensor hidden, bias;
    if (bias_ > 0) bias = as_keys_lie(op, call.dims, by_scores(op, call.inputs[bias_]));
    if (limits_.causal && !limits_.parted) {
      hidden = unseen(places_of(call.dims.at(op.inputs[0].dims[1]), q),
                      places_of(call.dims.at(op.inputs[1].dims[1]), q), limits_.window);
    }
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      at::Tensor softmax = call.saved[0][i];
      at::Tensor scores = scaled_product(matrices(q[i]), turned(matrices(k[i])), score_scale(q));
      if (limits_.softcap > 0) capped(scores).mul_(limits_.softcap);
      if (bias_ > 0) scores.add_(of_sample(bias, i));
      const at::Tensor unseen =
          limits_.documents ? of_other_documents(op, call, hidden, i) : hidden;
      if (unseen.defined()) scores.masked_fill_(unseen, -std::numeric_limits<double>::infinity());
      if (sinks_ > 0) {
        const at::Tensor all = beside_sinks(scores, call.inputs[sinks_]);
        softmax.copy_(all.narrow(-1, 0, shape.keys));
        call.saved[1][i].copy_(all.select(-1, shape.keys));
      } else {
        at::_softmax_out(softmax, scores, -1, false);
      }
      scores = at::Tensor();
      call.outputs[0][i].copy_(matrices(scaled_product(softmax, matrices(v[i]), 1)));
    }
  }

  void backward(const Op& op, OpCall& call) const override {
    const UnfusedShape shape = unfused_shape(op, call.dims);
    const at::Tensor& q = call.inputs[0];
    const at::Tensor k = spread(call.inputs[1], shape.map), v = spread(call.inputs[2], shape.map);
    Target dq;
    at::Tensor dk, dv, dbias, dsinks;
    if (bias_ > 0 && wanted(call, bias_)) {
      dbias = at::zeros(call.dims.shape(op.inputs[bias_].dims), wide_options(q));
    }
    if (sinks_ > 0 && wanted(call, sinks_)) dsinks = at::zeros({shape.heads}, wide_options(q));
    if (wanted(call, 0)) dq = target(call, 0, q.sizes(), q.options());
    if (wanted(call, 1)) dk = at::empty(k.sizes(), q.options());
    if (wanted(call, 2)) dv = at::empty(v.sizes(), q.options());
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      const at::Tensor softmax = call.saved[0][i], dout = matrices(call.grad_outputs[0][i]);
      if (dv.defined()) dv[i].copy_(matrices(scaled_product(turned(softmax), dout, 1)));
      if (!dq.tensor.defined() && !dk.defined() && !dbias.defined() && !dsinks.defined()) continue;
      at::Tensor scores = scaled_product(dout, turned(matrices(v[i])), 1);
      // A sink's own gradient is 0: what is left is that of the others, which its share takes away.
      if (dsinks.defined()) {
        const at::Tensor given = (softmax * scores).sum(-1, false, dsinks.scalar_type());
        dsinks.sub_(given.mul_(call.saved[1][i]).sum(-1));
      }
      scores = at::_softmax_backward_data(scores, softmax, -1, q.scalar_type());
      if (dbias.defined())
        add_gradient_of_bias(op, call.dims, of_sample(by_scores(op, dbias), i), scores);
      if (!dq.tensor.defined() && !dk.defined()) continue;
      if (limits_.softcap > 0) {  // the derivative is 1 - tanh(s / cap)^2
        at::Tensor s = scaled_product(matrices(q[i]), turned(matrices(k[i])), score_scale(q));
        scores.mul_(capped(s).square_().neg_().add_(1));
      }
      if (dq.tensor.defined()) {
        put({dq.tensor[i], dq.add},
            matrices(scaled_product(scores, matrices(k[i]), score_scale(q))));
      }
      if (!dk.defined()) continue;
      dk[i].copy_(matrices(scaled_product(turned(scores), matrices(q[i]), score_scale(q))));
    }
    if (dbias.defined()) deliver(call, bias_, dbias.to(q.scalar_type()));
    if (dsinks.defined()) deliver(call, sinks_, dsinks.to(q.scalar_type()));
    dbias = dsinks = at::Tensor();
    if (dk.defined()) fold(call, 1, dk, shape.map, shape.keys);
    dk = at::Tensor();
    if (dv.defined()) fold(call, 2, dv, shape.map, shape.keys);
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const UnfusedShape shape = unfused_shape(op, dims);
    const bool backward = piece != Piece::forward;
    const std::int64_t q = dims.count(op.inputs[0].dims), out = dims.count(op.output_dims[0]);
    const std::int64_t row = shape.batch * shape.heads * shape.keys * element;
    const Spread keys{row * shape.head_dim, row * shape.value_dim,
                      dims.count(op.inputs[1].dims) * element,
                      dims.count(op.inputs[2].dims) * element};
    Cost cost;
    cost.flops =
        (backward ? 4.0 : 2.0) * static_cast<double>(shape.keys) * static_cast<double>(q + out);
    cost.executed = cost.flops;
    if (limits_.softcap > 0 && backward)
      cost.executed += 2.0 * static_cast<double>(shape.keys) * static_cast<double>(q);
    // Passes over scores: forward writes the product, masks it in place, reads it for the softmax,
    // writes and reads that; backward writes and reads each of two, and reads the softmax twice.
    // A soft cap is two more passes, and in backward another product and six.
    const double passes = (backward ? 7 : 6) + (limits_.softcap > 0 ? backward ? 6 : 2 : 0);
    cost.bytes =
        static_cast<double>(element) * (passes * static_cast<double>(shape.batch * shape.scores()) +
                                        (backward ? 2.0 : 1.0) * static_cast<double>(q + out)) +
        (backward ? 2.0 : 1.0) * static_cast<double>(keys.k + keys.v);
    cost.accelerator_workspace =
        backward ? in_backward(shape, keys, element) : in_forward(shape, keys, element);
    if (sinks_ > 0) {  // scores with a column more and their softmax; backward a product
      cost.bytes += (backward ? 3.0 : 4.0) * wide_element(element) *
                    static_cast<double>(shape.batch * shape.scores());
      *cost.accelerator_workspace += shape.scores() * (element + wide_element(element));
    }
    if (bias_ > 0) {  // added, and its gradient summed
      const std::int64_t bias = dims.count(op.inputs[bias_].dims);
      cost.bytes += 2.0 * element * static_cast<double>(shape.batch * shape.scores());
      *cost.accelerator_workspace += bias * (backward ? wide_element(element) : element);
    }
    return cost;
  }

 private:
  // Bytes of keys and values: with one head for each query head, and as this rank holds them.
  struct Spread {
    std::int64_t k = 0, v = 0, kept_k = 0, kept_v = 0;
  };

  std::int64_t in_forward(const UnfusedShape& shape, const Spread& keys, int element) const {
    const std::int64_t copied = copies(shape.map) ? keys.k + keys.v : 0;
    // Bytes of masks: of all samples, and of one.
    const std::int64_t mask = shape.queries * shape.keys;
    const std::int64_t seen = (limits_.causal ? mask : 0) + (limits_.documents ? mask : 0);
    const std::int64_t scores = shape.scores() * element;
    const std::int64_t made = shape.heads * shape.queries * shape.value_dim * element;
    // While the mask is made, the tokens' places (8 bytes each) exist, and with a window another
    // mask.
    const std::int64_t places = !limits_.causal
                                    ? 0
                                    : 8 * (shape.queries + shape.keys) +
                                          (limits_.window > 0 ? mask + 8 * shape.queries : 0);
    return copied + seen + std::max({places, scores, made});
  }

  std::int64_t in_backward(const UnfusedShape& shape, const Spread& keys, int element) const {
    const auto& [map, batch, queries, heads, all, head_dim, value_dim] = shape;
    const std::int64_t copied = copies(map) ? keys.k + keys.v : 0;
    // Copies, and the gradients of keys and values that are not yet the op's own.
    const std::int64_t around =
        copied + (map.identity() ? 0 : keys.k + keys.v - keys.kept_k - keys.kept_v);
    const std::int64_t scores = shape.scores() * element, row = heads * element;
    const std::int64_t dv = row * all * value_dim, dq = row * queries * head_dim,
                       dk = row * all * head_dim;
    const std::int64_t most = around + std::max({2 * scores, scores + dq, scores + dk, dv});
    if (map.identity()) return most;
    return std::max(most, fold_workspace(map, keys.k, keys.v, keys.kept_v, /*whole=*/true));
  }

  // (queries, keys): what sample i's queries do not see; `hidden`: what queries of no sample see.
  at::Tensor of_other_documents(const Op& op, const OpCall& call, const at::Tensor& hidden,
                                std::int64_t i) const {
    const std::size_t first = call.inputs.size() - (limits_.parted ? 3 : limits_.causal ? 1 : 2);
    const at::Tensor start = call.inputs[first][i].unsqueeze(1);
    if (!limits_.causal) return start.ne(call.inputs[first + 1][i].unsqueeze(0));
    if (limits_.parted) {
      const at::Tensor key = call.inputs[first + 2][i];
      return unseen(call.inputs[first + 1][i], key, limits_.window)
          .logical_or_(key.unsqueeze(0).lt(start));
    }
    const at::Tensor key = places_of(call.dims.at(op.inputs[1].dims[1]), start);
    return key.unsqueeze(0).lt(start).logical_or_(hidden);
  }

  at::Tensor& capped(at::Tensor& scores) const { return scores.div_(limits_.softcap).tanh_(); }

  static at::TensorOptions wide_options(const at::Tensor& like) {
    return like.options().dtype(wide(like));
  }

  // A view of the bias as (batch, heads, queries, keys), of size 1 where it has no such dim.
  at::Tensor by_scores(const Op& op, const at::Tensor& bias) const {
    const Dims& dims = op.inputs[bias_].dims;
    std::vector<std::int64_t> order;
    std::vector<bool> there;
    for (Dim dim : dims_of_scores(op)) {
      const auto found = std::find(dims.begin(), dims.end(), dim);
      there.push_back(found != dims.end());
      if (found != dims.end()) order.push_back(found - dims.begin());
    }
    at::Tensor view = bias.permute(order);
    for (std::size_t d = 0; d < there.size(); ++d)
      if (!there[d]) view = view.unsqueeze(static_cast<std::int64_t>(d));
    return view;
  }
  static Dims dims_of_scores(const Op& op) {
    const Dims& q = op.inputs[0].dims;
    return {q[0], q[2], q[1], op.inputs[1].dims[1]};
  }
  static at::Tensor of_sample(const at::Tensor& bias, std::int64_t i) {
    return bias[bias.size(0) == 1 ? 0 : i];
  }

  // A bias has its keys in the order of their places; scores have them as they lie.
  static at::Tensor as_keys_lie(const Op& op, const LocalDims& dims, const at::Tensor& bias) {
    const LocalDim& keys = dims.at(op.inputs[1].dims[1]);
    if (keys.runs.empty() || bias.size(3) == 1) return bias;
    return bias.index_select(3, places_of(keys, bias));
  }

  // `view`: the gradient of a sample's bias, to which the gradient of scores is added.
  static void add_gradient_of_bias(const Op& op, const LocalDims& dims, at::Tensor view,
                                   const at::Tensor& dscores) {
    std::vector<std::int64_t> summed;
    for (std::int64_t d = 0; d < 3; ++d)
      if (view.size(d) == 1 && dscores.size(d) != 1) summed.push_back(d);
    const at::Tensor made =
        summed.empty() ? dscores : dscores.sum(summed, /*keepdim=*/true, view.scalar_type());
    const LocalDim& keys = dims.at(op.inputs[1].dims[1]);
    if (keys.runs.empty() || view.size(2) == 1) {
      view.add_(made);
    } else {
      view.index_add_(2, places_of(keys, made), made.to(view.scalar_type()));
    }
  }

  // The softmax (heads, queries, keys + 1) of scores, in fp32 at least, with one more score in each
  // row, that of the head's sink.
  static at::Tensor beside_sinks(const at::Tensor& scores, const at::Tensor& sinks) {
    const at::Tensor column = sinks.view({-1, 1, 1}).expand({-1, scores.size(1), 1});
    return at::softmax(at::cat({scores, column}, -1), -1, wide(scores));
  }

  const AttentionLimits limits_;
  const std::size_t bias_, sinks_;  // which inputs they are; 0: there is none
};

}  // namespace

OpTypePtr unfused_attention(const AttentionLimits& limits) {
  return only_of<UnfusedAttention>(limits);
}

}  // namespace mw
