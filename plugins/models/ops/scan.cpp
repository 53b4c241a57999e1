// A linear recurrence along the sequence whose state is a matrix of each head, in chunks: within
// a chunk by products over its pairs of tokens, from chunk to chunk by the state [Dao and Gu
// 2024, "Transformers are SSMs", section 6; Yang et al. 2024, "Parallelizing Linear Transformers
// with the Delta Rule", section 3.2]. Where the sequence is cut, each part first makes what it
// does to the state, from that each part gets the state before it, and the scan begins there
// [Sun et al. 2025, "LASP-2"]. And tensors whose dims become other dims.
#include "scan.h"

#include <algorithm>
#include <limits>

#include "heads.h"
#include "kernel.h"
#include "meshwright/autograd_op.h"
#include "meshwright/graph.h"
#include "token_order.h"

namespace mw {
namespace {

using namespace kernel;

// Operands: (batch, tokens, heads, …), those of a chunk (batch, heads, tokens, …).
struct ScanOperands {
  at::Tensor q, k, v, decay, rate;
  // A chunk is cut out before its dims change places, so that gradients lie as the operands do.
  ScanOperands chunk(std::int64_t first, std::int64_t count) const {
    const auto of = [&](const at::Tensor& all) {
      return all.defined() ? all.narrow(1, first, count).transpose(1, 2) : all;
    };
    return {of(q), of(k), of(v), of(decay), of(rate)};
  }
};

// The decays between the tokens of a chunk: `between` (…, i, j), what is left at token i of what
// token j brought, 0 for a later j; `since`, what is left at i of the state before the chunk.
// Decays are given as logarithms, which have one sign and are added, never subtracted: no digits
// cancel. A logarithm may be minus infinity (the state is forgotten), and no NaN comes of it.
struct ScanDecays {
  at::Tensor between, since;
  explicit ScanDecays(const at::Tensor& decay) {
    const std::int64_t tokens = decay.size(-1);
    const at::Tensor ones =
        at::ones({tokens, tokens}, decay.options().dtype(at::kBool).requires_grad(false));
    const at::Tensor none = at::zeros({}, decay.options().requires_grad(false));
    const at::Tensor sums = at::where(ones.tril(-1), decay.unsqueeze(-1), none).cumsum(-2);
    between = sums.masked_fill(ones.triu(1), -std::numeric_limits<double>::infinity()).exp();
    since = decay.cumsum(-1).exp().unsqueeze(-1);
  }
  at::Tensor until_end() const { return between.select(-2, between.size(-2) - 1).unsqueeze(-1); }
  at::Tensor of_all() const { return since.narrow(-2, since.size(-2) - 1, 1); }
};

// What each token adds to the state along its key: its value, or, with rates, the part of it that
// the state does not yet say: the solution u of u_i = b_i (v_i - k_i h_(i-1) decayed), where h has
// the u before i.
at::Tensor scan_news(const ScanOperands& c, const ScanDecays& decays, const at::Tensor& state) {
  if (!c.rate.defined()) return c.v;
  const at::Tensor rate = c.rate.unsqueeze(-1), keys = c.k * rate;
  at::Tensor right = c.v * rate;
  if (state.defined()) right = right - at::matmul(keys * decays.since, state);
  const at::Tensor system = at::matmul(keys, c.k.transpose(-1, -2)) * decays.between;
  return at::linalg_solve_triangular(system, right, /*upper=*/false, /*left=*/true,
                                     /*unitriangular=*/true);
}

// Turns the state (batch, heads, state, width) before a chunk into that after it. Undefined:
// there is nothing before the chunk.
void advance(const ScanOperands& c, const ScanDecays& decays, const at::Tensor& news,
             at::Tensor& state) {
  const at::Tensor brought = at::matmul((c.k * decays.until_end()).transpose(-1, -2), news);
  state = state.defined() ? state * decays.of_all() + brought : brought;
}

// The output of a chunk; `state` becomes that after the chunk.
at::Tensor scan_chunk(const ScanOperands& c, at::Tensor& state) {
  const ScanDecays decays(c.decay);
  const at::Tensor news = scan_news(c, decays, state);
  at::Tensor y = at::matmul(at::matmul(c.q, c.k.transpose(-1, -2)) * decays.between, news);
  if (state.defined()) y = y + at::matmul(c.q * decays.since, state);
  advance(c, decays, news, state);
  return y;
}

HeadMap heads_of(const Op& op, const LocalDims& dims, std::size_t input, std::size_t v) {
  return map_heads(dims.at(op.inputs[v].dims[2]), dims.at(op.inputs[input].dims[2]));
}

// Calls `scans` with each chunk of some tokens, in their order.
template <class Scans>
void each_chunk(const ScanOperands& all, const Range& tokens, std::int64_t size,
                const Scans& scans) {
  for (std::int64_t done = 0; done < tokens.size; done += size)
    scans(all.chunk(tokens.offset + done, std::min(size, tokens.size - done)));
}

// What each part of a sequence does to the state: (batch, parts, heads, state, width), what it
// makes of a state of zeros, and its change of any state before it: a factor for each head
// (batch, parts, heads), or, by the delta rule, a matrix (batch, parts, heads, state, state).
// inputs: k, v, decay [, rate], as those of a scan.
class PartStates final : public AutogradOp {
 public:
  explicit PartStates(const ScanOptions& options) : chunk_(options.chunk), delta_(options.delta) {}

  std::string kind() const override { return delta_ ? "delta_part_states" : "part_states"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    traits.fp32_outputs = {true, true};
    return traits;
  }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::ScalarType type = wide(inputs[1]);
    const at::Tensor k = spread(inputs[0].to(type), heads_of(op, dims, 0, 1));
    at::Tensor v = inputs[1].to(type);
    // By the delta rule, the change of a state is what becomes of the unit matrix without
    // values.
    if (delta_) v = at::constant_pad_nd(v, {0, k.size(3)});
    const ScanOperands all{
        {}, k, v, inputs[2].to(type), delta_ ? inputs[3].to(type) : at::Tensor()};
    std::vector<at::Tensor> states, changes;
    for (const Range& tokens :
         tokens_of_parts(dims.at(op.inputs[1].dims[1]), dims.at(op.output_dims[0][1]))) {
      at::Tensor state = state_of(all, tokens);
      if (delta_) {
        const std::int64_t width = inputs[1].size(3);
        changes.push_back(state.narrow(3, width, k.size(3)));
        state = state.narrow(3, 0, width);
      } else {
        changes.push_back(all.decay.narrow(1, tokens.offset, tokens.size).sum(1).exp());
      }
      states.push_back(state);
    }
    return {at::stack(states, 1), at::stack(changes, 1)};
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const Dims &k = op.inputs[0].dims, &v = op.inputs[1].dims;
    const std::int64_t rows = dims.count({v[0], v[1], v[2]}), state = dims.at(k[3]).size,
                       chunk = std::min(chunk_, dims.at(v[1]).size),
                       columns = dims.at(v[3]).size + (delta_ ? state : 0);
    const bool backward = piece != Piece::forward;
    const std::int64_t products =
        2 * state * columns * (delta_ ? 2 : 1) + (delta_ ? 2 * chunk * (state + columns) : 0);
    Cost cost = AutogradOp::cost(op, piece, dims, element);
    cost.flops = (backward ? 2.0 : 1.0) * static_cast<double>(rows * products);
    cost.executed = (backward ? 1.5 : 1.0) * cost.flops;
    const std::int64_t passes = 4 * chunk + 3 * (state + columns);
    cost.bytes +=
        (backward ? 3.0 : 1.0) * static_cast<double>(rows * passes * wide_element(element));
    const std::int64_t of_a_row = 3 * chunk + 2 * (state + columns);
    const std::int64_t kept = backward ? 2 * rows : rows / dims.at(v[1]).size * chunk;
    cost.accelerator_workspace =
        (kept * of_a_row + rows * (state + columns)) * wide_element(element);
    return cost;
  }

 private:
  // The state after a part, whose values have columns of zeros if its change is asked for.
  at::Tensor state_of(const ScanOperands& all, const Range& tokens) const {
    const std::int64_t rows = all.k.size(3);
    at::Tensor state = at::zeros({all.v.size(0), all.v.size(2), rows, all.v.size(3)},
                                 all.v.options().requires_grad(false));
    if (delta_) state.narrow(3, all.v.size(3) - rows, rows).diagonal(0, 2, 3).fill_(1);
    each_chunk(all, tokens, chunk_, [&](const ScanOperands& chunk) {
      const ScanDecays decays(chunk.decay);
      advance(chunk, decays, scan_news(chunk, decays, state), state);
    });
    return state;
  }

  const std::int64_t chunk_;
  const bool delta_;
};

// The state before each part, from what all parts do to it (PartStates): (batch, parts, heads,
// state, width). A rank reads all parts. A strategy may have stored parts out of the sequence's
// order.
class StatesBefore final : public AutogradOp {
 public:
  explicit StatesBefore(bool delta) : delta_(delta) {}

  std::string kind() const override { return delta_ ? "delta_states_before" : "states_before"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    traits.fp32_outputs = {true};
    return traits;
  }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const std::vector<std::int64_t> all = places_of_parts(dims.at(op.inputs[0].dims[1])),
                                    own = places_of_parts(dims.at(op.output_dims[0][1]));
    const std::int64_t last = *std::max_element(own.begin(), own.end());
    std::vector<at::Tensor> before(own.size());
    at::Tensor state = at::zeros_like(inputs[0].select(1, 0)).detach();
    for (std::int64_t place = 0; place <= last; ++place) {
      if (const auto at = std::find(own.begin(), own.end(), place); at != own.end())
        before[static_cast<std::size_t>(at - own.begin())] = state;
      if (place == last) break;
      const std::int64_t part = std::find(all.begin(), all.end(), place) - all.begin();
      const at::Tensor change = inputs[1].select(1, part);
      state = (delta_ ? at::matmul(change, state) : change.unsqueeze(-1).unsqueeze(-1) * state) +
              inputs[0].select(1, part);
    }
    return {at::stack(before, 1)};
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const Dims& states = op.inputs[0].dims;
    const bool backward = piece != Piece::forward;
    Cost cost = AutogradOp::cost(op, piece, dims, wide_element(element));
    const auto products =
        static_cast<double>(2 * dims.count(states) * (delta_ ? dims.at(states[3]).size : 1));
    cost.flops = (backward ? 2.0 : 1.0) * products;
    cost.executed = (backward ? 1.5 : 1.0) * cost.flops;
    return cost;
  }

 private:
  const bool delta_;
};

// The decays (batch, seq, heads) of a scan in which the first token of each document forgets the
// state.
class ForgetAtStarts final : public AutogradOp {
 public:
  std::string kind() const override { return "forget_at_starts"; }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const at::Tensor behind = places_in_documents(dims.at(op.inputs[0].dims[1]), inputs[1]);
    constexpr double forgets = -1e4;  // the exponential of it is 0 in all types
    return {inputs[0].masked_fill(behind.eq(0).unsqueeze(-1), forgets)};
  }
};

struct ScanKind {
  ScanOptions options;
  bool in_parts = false;  // the last input is the state before each part (StatesBefore)
  friend bool operator==(const ScanKind&, const ScanKind&) = default;
};

class Scan final : public AutogradOp {
 public:
  explicit Scan(const ScanKind& kind)
      : options_(kind.options),
        chunk_(kind.options.chunk),
        delta_(kind.options.delta),
        in_parts_(kind.in_parts) {}

  std::string kind() const override { return delta_ ? "delta_scan" : "scan"; }
  OpClass op_class() const override { return OpClass::attention; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits = AutogradOp::traits(op);
    if (!in_parts_) traits.divides = op.inputs[2].dims[1];
    return traits;
  }

  std::optional<Op> in_documents(const Op& op, int starts, Graph& graph) const override {
    if (!along_seq(op, 2, graph)) return op;
    const Dims decay = op.inputs[3].dims;
    Op forget = op_beside(op, ".starts", only<ForgetAtStarts>(),
                          {op.inputs[3], {starts, {decay[0], decay[1]}}}, {});
    forget.follows.clear();
    Op form = op;
    form.inputs[3].value = graph.add(std::move(forget), {{"", decay}})[0];
    return form;
  }

  std::optional<Op> in_parts(const Op& op, Dim parts, Graph& graph) const override {
    const Dims& v = op.inputs[2].dims;
    const Dim state = op.inputs[0].dims[3], all = all_parts(parts, graph),
              old(state.name() + "_before");
    if (delta_) graph.set_dim(old, graph.size(state), true, {}, state.name());
    Op states = op_beside(op, ".states", only_of<PartStates>(options_),
                          {op.inputs.begin() + 1, op.inputs.end()}, {state, v[3]});
    states.follows.emplace_back(parts, v[1]);
    const Dims of_part{v[0], parts, v[2], state, v[3]};
    Dims change{v[0], parts, v[2]};
    if (delta_) {
      change.insert(change.end(), {state, old});
      states.whole.push_back(old);
    }
    const std::string name = states.name;
    const std::vector<int> made =
        graph.add(std::move(states), {{"", of_part}, {name + ".change", change}});
    const auto of_all = [&](int value, Dims dims) {
      dims[1] = all;
      return Use{value, std::move(dims)};
    };
    Op before = op_beside(op, ".before", only_of<StatesBefore>(delta_),
                          {of_all(made[0], of_part), of_all(made[1], change)}, {all, state, v[3]});
    if (delta_) before.whole.push_back(old);
    before.follows.clear();
    const int begin = graph.add(std::move(before), {{"", of_part}})[0];
    Op scans = op;
    scans.type = only_of<Scan>(ScanKind{options_, true});
    scans.inputs.push_back({begin, of_part});
    scans.whole = {state, v[3]};
    scans.follows.emplace_back(parts, v[1]);
    return scans;
  }

  std::vector<at::Tensor> compute(const Op& op, const LocalDims& dims,
                                  const std::vector<at::Tensor>& inputs) const override {
    const LocalDim& seq = dims.at(op.inputs[2].dims[1]);
    const TokenOrder order(in_parts_ ? LocalDim() : seq, inputs[2]);
    const auto of_heads = [&](std::size_t i) {
      const at::Tensor sorted = order.sorted(inputs[i]).to(wide(inputs[i]));
      return i < 2 ? spread(sorted, heads_of(op, dims, i, 2)) : sorted;
    };
    const ScanOperands all{of_heads(0), of_heads(1), of_heads(2), of_heads(3),
                           delta_ ? of_heads(4) : at::Tensor()};
    std::vector<Range> parts{{0, seq.size}};
    if (in_parts_) parts = tokens_of_parts(seq, dims.at(op.inputs.back().dims[1]));
    std::vector<at::Tensor> made;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      at::Tensor state;
      if (in_parts_) state = inputs.back().select(1, static_cast<std::int64_t>(part));
      each_chunk(all, parts[part], chunk_, [&](const ScanOperands& chunk) {
        made.push_back(scan_chunk(chunk, state).transpose(1, 2));
      });
    }
    const at::Tensor y = order.as_they_lay(at::cat(made, 1));
    return {y.to(inputs[2].scalar_type()).contiguous()};
  }

  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    const Dims &q = op.inputs[0].dims, &v = op.inputs[2].dims;
    const std::int64_t rows = dims.count({v[0], v[1], v[2]});  // tokens of heads
    const std::int64_t chunk = std::min(chunk_, dims.at(v[1]).size), state = dims.at(q[3]).size,
                       width = dims.at(v[3]).size;
    const bool backward = piece != Piece::forward;
    // A token's products: with the tokens of its chunk, and with the state, which it reads and
    // writes. The delta rule's are twice as many.
    const std::int64_t products =
        (delta_ ? 2 : 1) * (2 * chunk * (state + width) + 4 * state * width);
    Cost cost = AutogradOp::cost(op, piece, dims, element);
    cost.flops = (backward ? 2.0 : 1.0) * static_cast<double>(rows) * static_cast<double>(products);
    cost.executed = (backward ? 1.5 : 1.0) * cost.flops;  // backward runs forward again
    // Passes over scores and decays, and over what is as wide as operands.
    const std::int64_t passes = 8 * chunk + 6 * (state + width);
    cost.bytes +=
        (backward ? 3.0 : 1.0) * static_cast<double>(rows * passes * wide_element(element));
    // Scores and decays of a chunk; backward keeps those of all chunks, and copies of operands.
    const std::int64_t of_a_row = 4 * chunk + 3 * (2 * state + 2 * width);
    const std::int64_t kept = backward ? 2 * rows : rows / dims.at(v[1]).size * chunk;
    cost.accelerator_workspace =
        (kept * of_a_row + rows * (2 * state + 2 * width)) * wide_element(element);
    return cost;
  }

 private:
  const ScanOptions options_;
  const std::int64_t chunk_;
  const bool delta_, in_parts_;
};

// The last `from` dims become the last `to` dims. Of each row, a rank's output has those of its
// elements that are in its input too, and zeros for the others: its term of a sum over ranks.
class Reshaped final : public OpType {
 public:
  explicit Reshaped(const std::pair<std::int64_t, std::int64_t>& counts)
      : from_(static_cast<std::size_t>(counts.first)),
        to_(static_cast<std::size_t>(counts.second)) {}

  std::string kind() const override { return "reshape"; }
  OpTraits traits(const Op& op) const override { return traits_without_reads(op); }

  void forward(const Op& op, OpCall& call) const override {
    const auto [in, out, both] = spans(op, call.dims);
    const std::vector<std::int64_t> shape = call.dims.shape(op.output_dims[0]);
    const at::Tensor rows =
        part_of(call.inputs[0].reshape({-1, in.size}), 1, both.offset - in.offset, both.size);
    const at::Tensor made = at::empty(shape, rows.options());
    copy({made.view({-1, out.size}), false}, both.offset - out.offset, rows);
    set_outputs(call, {made});
  }
  void backward(const Op& op, OpCall& call) const override {
    if (!wanted(call, 0)) return;
    const auto [in, out, both] = spans(op, call.dims);
    const at::Tensor& given = call.grad_outputs[0];
    const Target to = target(call, 0, call.dims.shape(op.inputs[0].dims), given.options());
    copy({to.tensor.view({-1, in.size}), to.add}, both.offset - in.offset,
         part_of(given.reshape({-1, out.size}), 1, both.offset - out.offset, both.size));
  }
  Cost cost(const Op& op, Piece, const LocalDims& dims, int element) const override {
    Cost cost;
    cost.bytes = 2.0 * static_cast<double>(dims.count(op.output_dims[0]) * element);
    cost.workspace = 0;
    return cost;
  }

 private:
  // Writes rows that begin at a column, or adds them; the other columns get zeros.
  static void copy(const Target& to, std::int64_t first, const at::Tensor& rows) {
    if (rows.size(1) < to.tensor.size(1) && !to.add) to.tensor.zero_();
    put(to, 1, first, rows.size(1), rows);
  }

  // The elements of a row of the whole that lie in the input, in the output, and in both.
  struct Spans {
    Range in, out, both;
  };
  static Range span(const Dims& dims, std::size_t last, const LocalDims& local) {
    std::int64_t rest = 1;
    for (std::size_t i = dims.size() - last + 1; i < dims.size(); ++i)
      rest *= local.at(dims[i]).size;
    const LocalDim& outer = local.at(dims[dims.size() - last]);
    return {outer.offset * rest, outer.size * rest};
  }
  static std::int64_t whole(const Dims& dims, std::size_t last, const LocalDims& local) {
    std::int64_t elements = 1;
    for (std::size_t i = dims.size() - last; i < dims.size(); ++i)
      elements *= local.at(dims[i]).global;
    return elements;
  }
  Spans spans(const Op& op, const LocalDims& dims) const {
    Spans spans{span(op.inputs[0].dims, from_, dims), span(op.output_dims[0], to_, dims), {}};
    TORCH_CHECK(whole(op.inputs[0].dims, from_, dims) == whole(op.output_dims[0], to_, dims),
                "the dims that it makes have another number of elements");
    const auto& [in, out, _] = spans;
    const std::int64_t first = std::max(in.offset, out.offset),
                       end = std::min(in.offset + in.size, out.offset + out.size);
    spans.both = {first, std::max<std::int64_t>(end - first, 0)};
    if (spans.both.size == 0) spans.both.offset = in.offset;
    return spans;
  }

  const std::size_t from_, to_;
};

}  // namespace

OpTypePtr scan(const ScanOptions& options) {
  return only_of<Scan>(ScanKind{options});
}
OpTypePtr reshaped(std::int64_t from, std::int64_t to) {
  return only_of<Reshaped>(std::pair(from, to));
}

}  // namespace mw
