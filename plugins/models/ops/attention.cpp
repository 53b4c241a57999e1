// Attention as an op: causal or over a window, with grouped keys, whole or with keys that arrive
// in ring steps from other ranks. Where rows hold several documents, each sample has blocks of its
// own, those that its tokens see.
#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>

#include "attend.h"
#include "blocks.h"
#include "heads.h"
#include "kernel.h"
#include "meshwright/engine/host.h"
#include "meshwright/ops.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

struct Shape {
  std::vector<Block> blocks;
  HeadMap map;
  std::int64_t batch = 0, queries = 0, heads = 0;
  std::int64_t head_dim = 0, value_dim = 0;
  // keys that are present; keys up to the last one that some query sees
  std::int64_t keys = 0, read = 0;
  int ring_step = 0;
  bool documents = false;  // kernels compute one sample at a time
  bool sorts = false;      // each sample's keys and values are first brought into their order

  // Whether one call of the kernel computes everything.
  bool one() const {
    return !documents && blocks.size() == 1 && blocks[0].queries.size == queries &&
           blocks[0].keys.size == read;
  }
  // Whether one call's result is the op's own output, and is not added to that of earlier ring
  // steps.
  bool alone() const { return one() && ring_step == 0; }
  // Whether every query's own token is among the keys that are present.
  bool own() const {
    std::int64_t seen = 0;
    for (const Block& block : blocks) seen += block.sight.causal() ? block.queries.size : 0;
    return seen == queries;
  }
  // Whether the block's queries have seen other keys before. Each query's own token is in the block
  // that comes first, but in a ring beside another axis that cuts the queries it may lie in a shard
  // of a later step.
  bool merges(const Block& block) const { return !block.sight.causal() || ring_step > 0; }
  AttendSizes sizes(const Block& block) const {
    return {samples(), heads,     block.queries.size, block.keys.size,
            head_dim,  value_dim, block.sight.kind};
  }
  std::int64_t samples() const { return documents ? 1 : batch; }  // samples in a kernel's call
};

struct AttentionOptions {
  std::int64_t window = 0;
  bool documents = false;  // a further input has the places of documents (batch, seq)
  int parts = 1;  // documents are parted, and two more inputs have the places of queries and keys
  friend bool operator==(const AttentionOptions&, const AttentionOptions&) = default;
};

// Tokens of a row in the order in which they lie if its documents are parted. Keys that are all
// present are read in the order of their places.
LocalDim parted(const LocalDim& tokens, const std::vector<std::int64_t>& documents, int parts) {
  LocalDim dim = tokens;
  if (parts > 1 && dim.size < dim.global)
    dim.runs = lying_at(parted_by_documents(documents, dim.global, parts), {dim.offset, dim.size});
  return dim;
}

std::vector<Block> blocks_of(const Op& op, const LocalDims& dims, const AttentionOptions& options,
                             const std::vector<std::int64_t>& documents) {
  const LocalDim &q = dims.at(op.inputs[0].dims[1]), &k = dims.at(op.inputs[1].dims[1]);
  return causal_blocks(parted(q, documents, options.parts), parted(k, documents, options.parts),
                       options.window, options.documents ? documents : std::vector<std::int64_t>());
}

Shape shape_of(const Op& op, const LocalDims& dims, const AttentionOptions& options) {
  const Dims& q = op.inputs[0].dims;
  const Dims& k = op.inputs[1].dims;
  Shape shape;
  shape.blocks = blocks_of(op, dims, options, {0});
  shape.documents = options.documents;
  shape.map = map_heads(dims.at(q[2]), dims.at(k[2]));
  shape.batch = dims.at(q[0]).size;
  shape.queries = dims.at(q[1]).size;
  shape.heads = dims.at(q[2]).size;
  shape.head_dim = dims.at(q[3]).size;
  shape.value_dim = dims.at(op.inputs[2].dims[3]).size;
  shape.keys = dims.at(k[1]).size;
  shape.ring_step = dims.ring_step();
  for (const Block& block : shape.blocks) {
    shape.read = std::max(shape.read, block.keys.offset + block.keys.size);
  }
  if (options.parts > 1) {  // documents say which keys a query sees
    shape.read = shape.keys;
    shape.sorts = shape.keys == dims.at(k[1]).global;
    if (shape.blocks.empty())
      shape.blocks = {{{0, shape.queries}, {0, shape.keys}, {Sight::Kind::all, 0}}};
  }
  return shape;
}

at::Tensor part(const at::Tensor& tokens, const Range& range) {
  return tokens.narrow(1, range.offset, range.size);
}
Attended part(const Attended& whole, const Range& queries) {
  return {part(whole.out, queries), whole.lse.narrow(2, queries.offset, queries.size)};
}

Attended sample(const Attended& all, std::int64_t b) {
  return {all.out.narrow(0, b, 1), all.lse.narrow(0, b, 1)};
}

class Attention final : public OpType {
 public:
  explicit Attention(const AttentionOptions& options) : options_(options) {}

  std::string kind() const override { return "attention"; }
  OpClass op_class() const override { return OpClass::attention; }

  OpTraits traits(const Op& op) const override {
    const Dims& q = op.inputs[0].dims;
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), true);
    traits.backward_reads_output = {true};
    traits.saved = {{"lse", {q[0], q[2], q[1]}, 0, true}};
    traits.gradient_passes.assign(op.inputs.size(), false);
    traits.rotates = op.inputs[1].dims[1];
    return traits;
  }

  std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const override {
    return attention_in_documents(
        op, starts, graph, only_of<Attention>(AttentionOptions{options_.window, true}), false);
  }
  std::optional<Op> in_parted_documents(const Op& op, int places, int ways,
                                        Graph& graph) const override {
    if (!options_.documents) return OpType::in_parted_documents(op, places, ways, graph);
    return attention_in_parted_documents(
        op, places, only_of<Attention>(AttentionOptions{options_.window, true, ways}));
  }

  void forward(const Op& op, OpCall& call) const override {
    const Shape shape = shape_of(op, call.dims, options_);
    if (shape.blocks.empty() && shape.ring_step > 0) return;
    const at::Tensor& q = call.inputs[0];
    const at::Tensor k = spread(part_of(call.inputs[1], 1, 0, shape.read), shape.map);
    const at::Tensor v = spread(part_of(call.inputs[2], 1, 0, shape.read), shape.map);
    if (shape.alone()) {
      Attended made = attend(q, k, v, shape.blocks[0].sight);
      set_outputs(call, {made.out});
      call.saved = {made.lse};
      return;
    }
    if (shape.ring_step == 0) {
      set_outputs(call, {at::empty(call.dims.shape(op.output_dims[0]), q.options())});
      call.saved = {
          at::empty({shape.batch, shape.heads, shape.queries}, q.options().dtype(wide(q)))};
      if (!shape.own()) {  // some query's own token comes in a later ring step
        call.outputs[0].zero_();
        call.saved[0].fill_(-std::numeric_limits<double>::infinity());
      }
    }
    const Attended whole{call.outputs[0], call.saved[0]};
    if (!shape.documents) return add_blocks(shape, shape.blocks, q, k, v, whole);
    each_sample(op, call,
                [&](std::int64_t b, const std::vector<Block>& blocks, const TokenOrder& keys) {
                  add_blocks(shape, blocks, q.narrow(0, b, 1), keys.sorted(k.narrow(0, b, 1)),
                             keys.sorted(v.narrow(0, b, 1)), sample(whole, b));
                });
  }

  void backward(const Op& op, OpCall& call) const override {
    const Shape shape = shape_of(op, call.dims, options_);
    if (shape.blocks.empty()) {
      for (const std::size_t i : {1, 2}) {
        if (wanted(call, i)) deliver(call, i, at::zeros_like(call.inputs[i]));
      }
      // Later ring steps add to the queries' gradient.
      if (shape.ring_step == 0 && wanted(call, 0)) deliver(call, 0, at::zeros_like(call.inputs[0]));
      return;
    }
    AttendGradients made = gradients(op, call, shape);
    if (wanted(call, 0) && made.q.defined()) deliver(call, 0, made.q);
    made.q = at::Tensor();
    if (wanted(call, 1)) fold(call, 1, made.k, shape.map, shape.keys);
    made.k = at::Tensor();
    if (wanted(call, 2)) fold(call, 2, made.v, shape.map, shape.keys);
  }

  double share_executed(const Op& op, const LocalDims& dims,
                        const DocumentsOfRows& documents) const override {
    const Shape shape = shape_of(op, dims, options_);
    const auto executed = [&](const std::vector<Block>& blocks) {
      double sum = 0;
      for (const Block& block : blocks) sum += attend_executed(shape.sizes(block), false);
      return sum;
    };
    const double all = executed(shape.blocks) * static_cast<double>(documents.size());
    if (!options_.documents || all == 0) return 1;
    double sum = 0;
    for (const auto& of_row : documents) sum += executed(blocks_of(op, dims, options_, of_row));
    return sum / all;
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const Shape shape = shape_of(op, dims, options_);
    const bool backward = piece != Piece::forward;
    const std::int64_t q = dims.count(op.inputs[0].dims), out = dims.count(op.output_dims[0]);
    const std::int64_t kept_k = dims.count(op.inputs[1].dims) * element,
                       kept_v = dims.count(op.inputs[2].dims) * element;
    // times a head's width: numbers of a token in all sequences and heads
    const std::int64_t row = shape.samples() * shape.heads;
    const std::int64_t wide = row * shape.head_dim * element,
                       deep = row * shape.value_dim * element;
    Cost cost;
    cost.flops =
        (backward ? 4.0 : 2.0) * static_cast<double>(shape.keys) * static_cast<double>(q + out);
    if (shape.blocks.empty()) {
      if (backward) cost.bytes = static_cast<double>(kept_k + kept_v);
      cost.workspace = 0;
      return cost;
    }
    cost.kernels = static_cast<int>(shape.blocks.size());
    const std::int64_t calls = shape.batch / shape.samples();
    const std::int64_t spread_k = calls * shape.read * wide, spread_v = calls * shape.read * deep;
    cost.kernels *= static_cast<int>(calls);
    const std::int64_t copied = copies(shape.map) ? spread_k + spread_v : 0;
    // Bytes held while backward's kernel runs: the copies, and the gradients of keys and values
    // that are not yet the op's own. What stays is counted as output.
    const bool own = shape.map.identity() && shape.read == shape.keys;
    const std::int64_t sorted = shape.sorts ? (spread_k + spread_v) / calls : 0;
    const std::int64_t around = copied + (backward ? 2 : 1) * sorted +
                                (backward && !own ? spread_k + spread_v - kept_k - kept_v : 0);
    cost.bytes += static_cast<double>((backward ? 4 : 2) * calls * sorted);
    std::int64_t most = 0;
    for (const Block& block : shape.blocks) {
      const AttendSizes sizes = shape.sizes(block);
      const std::int64_t queries = sizes.queries * wide, made = sizes.queries * deep,
                         keys = sizes.keys * (wide + deep),
                         lse = row * sizes.queries * wide_element(element);
      cost.executed += static_cast<double>(calls) * attend_executed(sizes, backward);
      cost.bytes +=
          static_cast<double>(calls * ((backward ? 2 : 1) * (queries + made + keys) + lse));
      std::int64_t results = 0;  // results that are not the op's own outputs or gradients
      if (backward && shape.one()) {
        results = shape.alone() ? 0 : queries;
      } else if (backward) {
        results = queries + keys;
      } else if (!shape.alone()) {
        results = made + lse;
        // Merging then makes the shares of both. A half type's output is weighted in fp32: a copy
        // and its product.
        const std::int64_t weighted = element < 4 ? 2 * made * wide_element(element) / element : 0;
        if (shape.merges(block))
          most = std::max(most, copied + sorted + results + 2 * lse + weighted);
      }
      most = std::max(most, around + results + attend_on_accelerator(sizes, element, backward));
    }
    if (backward && !own) {  // after the kernel, gradients of k are folded, then those of v
      most = std::max(
          most, fold_workspace(shape.map, spread_k, spread_v, kept_v, shape.read == shape.keys));
    }
    cost.accelerator_workspace = most;
    return cost;
  }

 private:
  // Calls `compute` with each sample, the blocks of queries and keys that its documents see, and
  // the order in which these blocks have the keys.
  template <class Compute>
  void each_sample(const Op& op, const OpCall& call, const Compute& compute) const {
    const std::size_t first = call.inputs.size() - (options_.parts > 1 ? 3 : 1);
    std::array<at::Tensor, 3> read;  // the places of documents, queries and keys
    for (std::size_t i = first; i < call.inputs.size(); ++i)
      read[i - first] = on_host(call.inputs[i]);
    LocalDim queries = call.dims.at(op.inputs[0].dims[1]),
             keys = call.dims.at(op.inputs[1].dims[1]);
    for (std::int64_t b = 0; b < read[0].size(0); ++b) {
      const std::span<const std::int64_t> starts = row(read[0], b);
      std::vector<std::int64_t> begins;
      std::unique_copy(starts.begin(), starts.end(), std::back_inserter(begins));
      std::sort(begins.begin(), begins.end());
      begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
      TokenOrder order;
      if (options_.parts > 1) {
        queries.runs = runs_in(row(read[1], b), queries);
        keys.runs.clear();
        if (keys.size < keys.global) {
          keys.runs = runs_in(row(read[2], b), keys);
        } else {
          order = TokenOrder(call.inputs[first + 2].narrow(0, b, 1));
        }
      }
      compute(b, causal_blocks(queries, keys, options_.window, begins), order);
    }
  }
  static at::Tensor on_host(const at::Tensor& places) {
    if (places.is_cpu()) return places.contiguous();
    const HostWait waits("the places of documents");
    return places.cpu().contiguous();
  }
  static std::span<const std::int64_t> row(const at::Tensor& places, std::int64_t b) {
    const auto tokens = static_cast<std::size_t>(places.size(1));
    return {places.const_data_ptr<std::int64_t>() + static_cast<std::size_t>(b) * tokens, tokens};
  }
  // The runs of tokens that are neighbours in their row. In a trial (engine/scratch.h) all places
  // are zeros, and stand for a row that is one document.
  std::vector<Range> runs_in(std::span<const std::int64_t> places, const LocalDim& tokens) const {
    if (places.size() > 1 && places[0] == places[1]) {
      LocalDim whole = tokens;
      whole.runs.clear();
      return parted(whole, {0}, options_.parts).runs;
    }
    std::vector<Range> runs;
    for (const std::int64_t place : places) {
      if (!runs.empty() && runs.back().offset + runs.back().size == place) {
        ++runs.back().size;
      } else {
        runs.push_back({place, 1});
      }
    }
    return runs;
  }

  static void add_blocks(const Shape& shape, const std::vector<Block>& blocks, const at::Tensor& q,
                         const at::Tensor& k, const at::Tensor& v, const Attended& whole) {
    for (const Block& block : blocks) {
      const auto of_block = [&](const Attended& into) {
        return attend(part(q, block.queries), part(k, block.keys), part(v, block.keys), block.sight,
                      into);
      };
      const Attended sum = part(whole, block.queries);
      if (shape.merges(block)) {
        merge(sum, of_block({}));
      } else if (const Attended made = of_block(sum); !made.out.is_same(sum.out)) {
        sum.out.copy_(made.out);
        sum.lse.copy_(made.lse);
      }
    }
  }

  // Adds gradients to `sum`; on a CPU, writes them there if `alone`: the blocks have no query or
  // key in common.
  static void add_gradients(const std::vector<Block>& blocks, const at::Tensor& dout,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Attended& whole, const AttendGradients& sum, bool alone) {
    for (const Block& block : blocks) {
      const AttendGradients own{part(sum.q, block.queries), part(sum.k, block.keys),
                                part(sum.v, block.keys)};
      const AttendGradients made =
          attend_backward(part(dout, block.queries), part(q, block.queries), part(k, block.keys),
                          part(v, block.keys), part(whole, block.queries), block.sight,
                          alone ? own : AttendGradients{});
      if (made.q.is_same(own.q)) continue;
      own.q.add_(made.q);
      own.k.add_(made.k);
      own.v.add_(made.v);
    }
  }

  // The gradients of q (undefined if it is written already), and of the keys and values that are
  // read, with one head for each query head.
  AttendGradients gradients(const Op& op, OpCall& call, const Shape& shape) const {
    const at::Tensor& q = call.inputs[0];
    const at::Tensor& dout = call.grad_outputs[0];
    const at::Tensor k = spread(part_of(call.inputs[1], 1, 0, shape.read), shape.map);
    const at::Tensor v = spread(part_of(call.inputs[2], 1, 0, shape.read), shape.map);
    const Attended whole{call.outputs[0], call.saved[0]};
    if (shape.one()) return attend_backward(dout, q, k, v, whole, shape.blocks[0].sight);
    const Target dq = target(call, 0, q.sizes(), q.options());
    if (!dq.add) dq.tensor.zero_();
    const at::Tensor dk = at::zeros(k.sizes(), k.options()), dv = at::zeros(v.sizes(), v.options());
    if (shape.documents) {
      each_sample(
          op, call, [&](std::int64_t b, const std::vector<Block>& blocks, const TokenOrder& keys) {
            const auto one = [&](const at::Tensor& all) { return all.narrow(0, b, 1); };
            const auto sum_of = [&](const at::Tensor& all) {
              return shape.sorts ? at::zeros_like(one(all)) : one(all);
            };
            const at::Tensor dk_here = sum_of(dk), dv_here = sum_of(dv);
            const bool alone =
                !dq.add && std::all_of(blocks.begin(), blocks.end(),
                                       [](const Block& block) { return block.sight.causal(); });
            add_gradients(blocks, one(dout), one(q), keys.sorted(one(k)), keys.sorted(one(v)),
                          sample(whole, b), {one(dq.tensor), dk_here, dv_here}, alone);
            if (!shape.sorts) return;
            one(dk).copy_(keys.as_they_lay(dk_here));
            one(dv).copy_(keys.as_they_lay(dv_here));
          });
    } else {
      add_gradients(shape.blocks, dout, q, k, v, whole, {dq.tensor, dk, dv}, false);
    }
    return {{}, dk, dv};
  }

  const AttentionOptions options_;
};

}  // namespace

OpTypePtr attention(std::int64_t window) {
  return only_of<Attention>(AttentionOptions{std::max<std::int64_t>(window, 0)});
}

}  // namespace mw
