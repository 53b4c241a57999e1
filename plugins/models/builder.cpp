// Adds the parts that all models share (embedding, linears, norms, attention, residual adds,
// loss) to a graph, with parameters and names, and refuses operands whose dims do not fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "meshwright/builder.h"
#include "meshwright/engine/text.h"
#include "meshwright/ops.h"
#include "ops/expression.h"

namespace mw {
namespace {

// Throws Error (options, "model.dims") unless it fits. `why` is asked only then: a graph's time
// would else go into messages.
template <class Why>
void require(bool fits, const std::string& name, const Why& why, const char* hint = "") {
  if (!fits) throw Error(Stage::options, "model.dims", "", name + ": " + why(), hint);
}

// Refuses an op that would mix samples.
void refuse_batch(const std::string& name, Dim along) {
  require(
      along != Dim("batch"), name,
      [] { return std::string("what it makes along batch depends on a step's microbatches"); },
      "take another dim; a loss is summed over the batch");
}

// Refuses to split or to lengthen a dim whose size an experiment says.
void refuse_run(const std::string& name, Dim along) {
  refuse_batch(name, along);
  require(
      along != Dim("seq") && along != Dim("keys"), name,
      [&] { return along.name() + " is as long as an experiment's sequence"; }, "take another dim");
}

// Refuses a dim that x lacks.
void require_dim(const std::string& name, const char* x, const Dims& dims, Dim dim) {
  if (contains(dims, dim)) return;
  std::vector<std::string> names;
  for (const Dim one : dims) names.push_back(one.name());
  throw Error(Stage::options, "model.dims", "",
              fmt::format("{}: {} {} has no dim {}", name, x, text_of(dims), quote(dim.name())),
              did_you_mean(dim.name(), names));
}

// The dims of `all` that `other` has (or lacks), in their order.
Dims shared(const Dims& all, const Dims& other, bool has) {
  Dims some;
  std::copy_if(all.begin(), all.end(), std::back_inserter(some),
               [&](Dim dim) { return contains(other, dim) == has; });
  return some;
}

bool ends_with(const Dims& all, const Dims& last) {
  return all.size() >= last.size() && std::equal(last.rbegin(), last.rend(), all.rbegin());
}

// Refuses too many tiles: attention over a window is cut into tiles of queries (ops/blocks.h), each
// priced by itself.
void check_window(const Graph& graph, std::int64_t window) {
  constexpr std::int64_t tile = 512, most_tiles = 1 << 22;
  if (window == 0) return;
  const std::int64_t sequence = graph.size("seq"), layers = std::max(graph.layers, 1);
  const std::int64_t tiles = sequence / std::min(window, tile) * layers;
  if (tiles <= most_tiles) return;
  const std::int64_t least = (sequence * layers + most_tiles - 1) / most_tiles;
  throw Error(Stage::options, "plan.size", "window",
              fmt::format("{} tokens of a sequence of {} are {} tiles in {} layers, "
                          "more than a plan can hold ({})",
                          window, sequence, tiles, layers, most_tiles),
              least <= tile ? fmt::format("nearest: window = {}", least)
                            : fmt::format("a sequence of {} at most", most_tiles / layers * tile));
}

}  // namespace

HfName bias_beside(const HfName& weight) {
  constexpr std::string_view end = ".weight";
  HfName bias;
  if (!weight.name.ends_with(end)) return bias;
  bias = weight;
  bias.name.replace(bias.name.size() - end.size(), end.size(), ".bias");
  bias.transposed = false;
  return bias;
}

std::string text_of(const Dims& dims) {
  std::string text;
  for (Dim dim : dims) text += (text.empty() ? "" : ", ") + dim.name();
  return "(" + text + ")";
}

Builder::Builder(std::string family, std::int64_t batch, std::int64_t sequence,
                 std::int64_t tokens_per_step)
    : tokens_per_step_(tokens_per_step) {
  graph.family = std::move(family);
  graph.set_dim("batch", batch, true, {}, "sequences of a microbatch");
  graph.set_dim("seq", sequence, false, {}, "sequence");
  graph.set_dim("keys", sequence, false, {}, "seq, as attention calls that of keys and values");
  graph.set_dim("stat", 2, true, {}, "what the loss sums of each token");
  tokens = graph.add_data("tokens", {"batch", "seq"}, Scalar::index);
  labels = graph.add_data("labels", {"batch", "seq"}, Scalar::index);
  positions = graph.add_data("positions", {"seq"}, Scalar::index);
  below_[positions] = sequence;
}

void Builder::dim(Dim dim, std::int64_t size, bool even, Dim like, std::string from) {
  const auto known = graph.dims().find(dim);
  if (known != graph.dims().end() && known->second.size != size) {
    throw Error(Stage::options, "model.twice", "",
                fmt::format("{} is {} and is to be {} too: a dim has one size in a model",
                            dim.name(), known->second.size, size),
                "give one of them another name");
  }
  if (known == graph.dims().end()) graph.set_dim(dim, size, even, like, std::move(from));
  if (dim == Dim("vocab")) below_[tokens] = below_[labels] = size;
}

void Builder::decoder_dims(std::int64_t vocab, std::int64_t hidden, std::int64_t heads,
                           std::int64_t kv_heads, std::int64_t ffn, std::int64_t head_dim) {
  dim("vocab", vocab, false, {}, "vocab");
  dim("hidden", hidden, true, {}, "hidden");
  dim("heads", heads, true, {}, "heads");
  dim("kv_heads", kv_heads, true, {}, "kv_heads");
  if (head_dim > 0) {
    dim("head_dim", head_dim, true, {}, "head_dim");
  } else {
    dim("head_dim", hidden / heads, true, {}, "hidden / heads");
  }
  dim("ffn", ffn, false, {}, "ffn");
}

std::string Builder::name(const std::string& local) const {
  return layer < 0 || layer >= graph.layers ? local : fmt::format("layers.{}.{}", layer, local);
}

std::int64_t Builder::size_of(const std::string& name, Dim dim) const {
  if (graph.dims().count(dim) > 0) return graph.size(dim);
  std::vector<std::string> names;
  for (const auto& [one, info] : graph.dims()) names.push_back(one.name());
  const std::string near = did_you_mean(dim.name(), names);
  throw Error(Stage::options, "model.dims", "",
              fmt::format("{}: the model has no dim {}", name, quote(dim.name())),
              near.empty() ? "give it a size in dims" : near);
}

Op Builder::op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
               Dims whole) const {
  Op op;
  op.type = std::move(type);
  op.name = name;
  op.layer = layer;
  op.inputs = std::move(inputs);
  op.whole = std::move(whole);
  return op;
}

std::vector<int> Builder::append(Op op, const std::vector<Graph::Output>& outputs) {
  for (const Graph::Output& output : outputs) {
    for (Dim dim : output.dims) {
      require(
          std::count(output.dims.begin(), output.dims.end(), dim) == 1, op.name,
          [&] {
            return fmt::format("its result {} has {} twice", text_of(output.dims), dim.name());
          },
          "give one of the two a dim of another name");
    }
  }
  check_rows(op);
  claim_name(op.name, "an op");
  return graph.add(std::move(op), outputs);
}

// Rows of experts are no tensor of their dims: those of all experts lie one after the other.
void Builder::check_rows(const Op& op) const {
  static const std::set<std::string> computes_rows{
      "swiglu", "gelu", "add", "combine", "expert_linear", "expert_bias", "dispatch"};
  const Dims& sparse = graph.sparse.dims;
  if (sparse.empty() || computes_rows.count(op.kind()) > 0) return;
  const bool any = std::any_of(op.inputs.begin(), op.inputs.end(),
                               [&](const Use& use) { return graph.sparse.has(use.dims); });
  if (!any) return;
  require(
      op.kind() == "map", op.name, [&] { return op.kind() + " does not compute rows of experts"; },
      "between route and combine stand maps, expert_linear and swiglu");
  for (const Use& use : op.inputs) {
    require(
        graph.sparse.has(use.dims) || shared(use.dims, sparse, true).empty(), op.name,
        [&] { return fmt::format("{} is no value of the rows of experts", text_of(use.dims)); },
        "rows and their weights have the dims experts, batch and seq; other values have none of "
        "them");
  }
}

void Builder::claim_name(const std::string& name, const char* what) {
  if (names_.insert(name).second) return;
  throw Error(Stage::options, "model.twice", "",
              fmt::format("the model has {} {} already", what, quote(name)),
              "give one of them another name");
}

Use Builder::real(int value, const std::string& name) const {
  require(
      graph.value(value).scalar == Scalar::real, name,
      [&] { return fmt::format("{} are indices, not numbers", graph.value(value).name); },
      "indices:lookup(weight) gives rows of a weight");
  return use(value);
}

int Builder::parameter(const std::string& name, Dims dims, Init init, HfName hf) {
  for (Dim dim : dims) {
    size_of(name, dim);
    const bool of_run = dim == Dim("batch") || dim == Dim("seq") || dim == Dim("keys");
    require(
        !of_run, name,
        [&] {
          return fmt::format("a weight of the dim {} would be of another size in another run",
                             dim.name());
        },
        "weights have the model's dims: hidden, ffn, …");
  }
  claim_name(name, "a parameter");
  if (hf.name.empty()) hf.name = name;
  return graph.add_parameter(name, std::move(dims), init, std::move(hf), frozen);
}

int Builder::input(const std::string& name, const Dims& of, std::int64_t below) {
  claim_name(name, "an input");
  const int value = graph.add_data(name, of, below > 0 ? Scalar::index : Scalar::real);
  if (below > 0) below_[value] = below;
  return value;
}

// Refuses indices of an input that go beyond the rows that they name.
void Builder::check_below(const std::string& name, int indices, Dim rows) const {
  if (rows == Dim("seq") && graph.size(rows) == 1) return;  // built to look at, not to run
  const auto known = below_.find(indices);
  require(
      known == below_.end() || known->second <= graph.size(rows), name,
      [&] {
        return fmt::format("{} has indices below {}, and there are {} = {} rows",
                           graph.value(indices).name, known->second, rows.name(), graph.size(rows));
      },
      "give the dim as many rows, or the indices a smaller below");
}

void Builder::require_indices(const std::string& name, int value) const {
  require(
      graph.value(value).scalar == Scalar::index, name,
      [&] { return fmt::format("{} are numbers, not indices", graph.value(value).name); },
      "an input with below, or m.tokens: inputs = { places = { \"batch\", \"seq\", below = 16 } }");
}

int Builder::gather(const std::string& name, int x, int indices) {
  require_indices(name, indices);
  const Dims &from = dims(x), &to = dims(indices);
  require(from.size() >= 2 && to.size() >= 2 && from[0] == Dim("batch") && to[0] == Dim("batch"),
          name, [&] {
            return fmt::format("x {} and indices {} are not (batch, from, …) and (batch, to, …)",
                               text_of(from), text_of(to));
          });
  check_below(name, indices, from[1]);
  Dims out = to;
  out.insert(out.end(), from.begin() + 2, from.end());
  Use all = real(x, name);
  all.linear = true;
  return append(op(name, mw::gather(), {all, use(indices)}, {from[1]}), {{"", out}})[0];
}

int Builder::scatter(const std::string& name, int rows, int indices, Dim to) {
  require_indices(name, indices);
  refuse_batch(name, to);
  require(
      to != Dim("keys"), name, [] { return std::string("keys are what attention reads"); },
      "scatter to seq");
  size_of(name, to);
  const Dims &all = dims(rows), &from = dims(indices);
  require(from.size() >= 2 && from[0] == Dim("batch") && all.size() >= from.size() &&
              std::equal(from.begin(), from.end(), all.begin()),
          name, [&] {
            return fmt::format(
                "rows {} and indices {} are not (batch, from, …, …) and "
                "(batch, from, …)",
                text_of(all), text_of(from));
          });
  check_below(name, indices, to);
  Dims out{from[0], to}, whole(from.begin() + 1, from.end());
  out.insert(out.end(), all.begin() + static_cast<std::ptrdiff_t>(from.size()), all.end());
  if (!contains(whole, to)) whole.push_back(to);
  Use added = real(rows, name);
  added.linear = true;
  return append(op(name, mw::scatter(), {added, use(indices)}, whole), {{"", out}})[0];
}

int Builder::pool(const std::string& name, int x, Dim to, Dim of, bool max) {
  refuse_batch(name, of);
  refuse_run(name, to);
  const std::int64_t groups = size_of(name, to);
  Dims out = dims(x);
  require_dim(name, "x", out, of);
  require(
      !contains(out, to), name,
      [&] {
        return fmt::format("x {} has the dim {} of the groups already", text_of(out), to.name());
      },
      "give the groups a dim of their own in dims");
  const bool is_run = of != Dim("seq") || graph.size(of) > 1;  // else built to look at, not to run
  require(
      !is_run || graph.size(of) % groups == 0, name,
      [&] {
        return fmt::format("{} = {} elements cannot be {} groups of one size: {} = {}", of.name(),
                           graph.size(of), groups, to.name(), groups);
      },
      "a number of groups that divides the number of elements");
  std::replace(out.begin(), out.end(), of, to);
  Use all = real(x, name);
  all.linear = !max;
  return append(op(name, mw::pool(max), {all}, {of, to}), {{"", out}})[0];
}

int Builder::lookup(const std::string& name, int indices, int weight) {
  require_indices(name, indices);
  require(dims(weight).size() == 2, name,
          [&] { return fmt::format("weight {} is not (rows, width)", text_of(dims(weight))); });
  for (const Dim dim : dims(weight)) refuse_batch(name, dim);
  const Dim rows = dims(weight)[0];
  check_below(name, indices, rows);
  Dims out = dims(indices);
  out.push_back(dims(weight).back());
  return append(op(name, mw::embedding(), {use(indices), use(weight)}), {{"", out}})[0];
}

int Builder::linear(const std::string& name, int x, int weight, int bias) {
  const Dims &in = dims(x), &w = dims(weight);
  const Dims contracted = shared(in, w, true);
  require(!contracted.empty() && ends_with(in, contracted) && ends_with(w, contracted), name, [&] {
    return fmt::format("x {} and weight {} do not end in the same dims", text_of(in), text_of(w));
  });
  for (const Dim dim : contracted) refuse_batch(name, dim);
  Dims out = shared(in, w, false);
  const Dims made_dims = shared(w, in, false);
  out.insert(out.end(), made_dims.begin(), made_dims.end());
  std::vector<Use> inputs{real(x, name), real(weight, name)};
  if (bias >= 0) {
    inputs.push_back(use(bias));
    inputs.back().additive = true;
  }
  return append(op(name, mw::linear(), std::move(inputs)), {{"", out}})[0];
}

int Builder::linear_to(const std::string& name, int x, Dims to, Dims from, bool bias, Init init,
                       const HfName& hf) {
  const Dims& in = dims(x);
  if (from.empty()) from = shared(in, {"batch", "seq"}, false);
  require(!from.empty() && ends_with(in, from), name, [&] {
    return fmt::format("x {} does not end in {}, which is to be contracted", text_of(in),
                       text_of(from));
  });
  for (Dim dim : to) {
    require(
        !contains(in, dim), name,
        [&] {
          return fmt::format("from {} to {}: {} is in both, and a dim is either contracted or made",
                             text_of(in), text_of(to), dim.name());
        },
        "give the result a dim of another name, of the same size if need be");
  }
  Dims both = to;
  both.insert(both.end(), from.begin(), from.end());
  HfName of_weight = hf;
  of_weight.out_dims = static_cast<int>(to.size());
  const int weight = parameter(name + ".weight", std::move(both), init, of_weight);
  int shift = -1;
  if (bias)
    shift = parameter(name + ".bias", std::move(to), {Init::Kind::zeros, 0}, bias_beside(hf));
  return linear(name, x, weight, shift);
}

int Builder::rms_norm(const std::string& name, int x, HfName hf, double eps, double plus) {
  const Dim width = dims(x).back();
  const Init::Kind init = plus == 0 ? Init::Kind::ones : Init::Kind::zeros;
  int weight = parameter(name + ".weight", {width}, {init, 0}, std::move(hf));
  if (plus != 0) weight = map(name + ".scale", fmt::format("a + {}", plus), {weight});
  return append(op(name, mw::rms_norm(eps), {real(x, name), use(weight)}, {width}),
                {{"", dims(x)}})[0];
}

int Builder::layer_norm(const std::string& name, int x, const std::string& hf, double eps) {
  const Dim width = dims(x).back();
  constexpr std::string_view end = ".weight";
  const std::string both = hf.ends_with(end) ? hf.substr(0, hf.size() - end.size()) : hf;
  const auto theirs = [&](const char* which) { return HfName{both.empty() ? "" : both + which}; };
  const int weight = parameter(name + ".weight", {width}, {Init::Kind::ones, 0}, theirs(".weight"));
  const int bias = parameter(name + ".bias", {width}, {Init::Kind::zeros, 0}, theirs(".bias"));
  return append(op(name, mw::layer_norm(eps), {real(x, name), use(weight), use(bias)}, {width}),
                {{"", dims(x)}})[0];
}

int Builder::add_positions(const std::string& name, int x, int weight) {
  const Dims &in = dims(x), &w = dims(weight);
  require(in.size() == 3 && in[1] == Dim("seq") && w.size() == 2 && in[2] == w[1], name, [&] {
    return fmt::format("x {} is not (batch, seq, hidden), or positions {} not (positions, hidden)",
                       text_of(in), text_of(w));
  });
  const std::int64_t rows = graph.size(w[0]), sequence = graph.size("seq");
  if (rows < sequence) {
    throw Error(Stage::options, "option.range", w[0].name(),
                fmt::format("{} learned positions are fewer than sequence = {}", rows, sequence),
                fmt::format("{} = {} or more, or a shorter sequence", w[0].name(), sequence));
  }
  return append(op(name, mw::add_positions(), {real(x, name), use(positions), use(weight)}, {w[0]}),
                {{"", in}})[0];
}

std::vector<int> Builder::rope_table(const std::string& name, const RopeAngles& angles, Dim width) {
  if (graph.size(width) % 2 != 0) {
    throw Error(Stage::options, "model.odd", "",
                fmt::format("{}: {} = {} is odd; rotary positions turn the dims of a head in pairs",
                            name, width.name(), graph.size(width)),
                "make it even");
  }
  const auto pairs = static_cast<std::size_t>(graph.size(width) / 2);
  require(angles.angles.empty() || angles.angles.size() == pairs, name, [&] {
    return fmt::format("{} angles, and {} = {} has {} pairs", angles.angles.size(), width.name(),
                       graph.size(width), pairs);
  });
  const Dims dims{"seq", width};
  return append(
      op(name, mw::rope_table(angles), {use(positions)}, {width}),
      {{name + ".cos", dims, Scalar::real, false}, {name + ".sin", dims, Scalar::real, false}});
}

int Builder::rope(const std::string& name, int x, const std::vector<int>& table, RopePairs pairs,
                  bool first) {
  const Dims& in = dims(x);
  const Dim width = dims(table[0]).back();
  require((in.size() == 3 || in.size() == 4) && in[1] == Dim("seq"), name,
          [&] { return fmt::format("x {} is not (batch, seq, [heads,] head_dim)", text_of(in)); });
  require(graph.size(width) <= graph.size(in.back()), name, [&] {
    return fmt::format("the angles are of {} = {}, more than {} = {}", width.name(),
                       graph.size(width), in.back().name(), graph.size(in.back()));
  });
  return append(op(name, mw::rope(pairs, first), {real(x, name), use(table[0]), use(table[1])},
                   {in.back(), width}),
                {{"", in}})[0];
}

int Builder::attention(const std::string& name, int q, int k, int v, const AttentionLimits& limits,
                       bool unfused, const std::vector<int>& more) {
  const Dims &dq = dims(q), &dk = dims(k), &dv = dims(v);
  require(dq.size() == 4 && dk.size() == 4 && dv.size() == 4 && dq[3] == dk[3] && dk[2] == dv[2],
          name, [&] {
            return fmt::format(
                "q {}, k {}, v {} are not (batch, seq, heads, head_dim), (batch, seq, "
                "kv_heads, head_dim), (batch, seq, kv_heads, width)",
                text_of(dq), text_of(dk), text_of(dv));
          });
  require(graph.size(dq[2]) % graph.size(dk[2]) == 0, name, [&] {
    return fmt::format("{} = {} key heads cannot share {} = {} heads evenly", dk[2].name(),
                       graph.size(dk[2]), dq[2].name(), graph.size(dq[2]));
  });
  check_window(graph, limits.window);
  // Keys have a name of their own for the dim along which they lie, as queries may have the same.
  const Dim lie = dk[1], key = keys_of(lie);
  refuse_batch(name, lie);
  require(dv[1] == lie, name, [&] {
    return fmt::format("k {} and v {} lie along different dims", text_of(dk), text_of(dv));
  });
  require(
      lie == dq[1] || !limits.causal, name,
      [&] {
        return fmt::format("a query of q {} has no place among the keys of k {}", text_of(dq),
                           text_of(dk));
      },
      "attention to another sequence is not causal: causal = false");
  const auto keys = [&](int value) {
    Use renamed = real(value, name);
    std::replace(renamed.dims.begin(), renamed.dims.end(), lie, key);
    return renamed;
  };
  Dims out = dq;
  unfused = unfused || limits.softcap > 0 || !limits.causal || limits.bias || limits.sinks;
  std::vector<Use> uses{real(q, name), keys(k), keys(v)};
  if (limits.bias) uses.push_back(real(more.at(0), name));
  if (limits.sinks) uses.push_back(real(more.at(limits.bias ? 1 : 0), name));
  require(!limits.bias || shared(uses[3].dims, {dq[0], dq[2], dq[1], key}, false).empty(), name,
          [&] {
            return fmt::format("bias {} has other dims than {}, {}, {}, {}", text_of(uses[3].dims),
                               dq[0].name(), dq[2].name(), dq[1].name(), key.name());
          });
  require(!limits.sinks || uses.back().dims == Dims{dq[2]}, name, [&] {
    return fmt::format("sinks {} are not ({})", text_of(uses.back().dims), dq[2].name());
  });
  Op attends = op(name, unfused ? unfused_attention(limits) : mw::attention(limits.window),
                  std::move(uses), {key, out.back(), dv[3]});
  if (dk[2] != dq[2]) attends.follows = {{dk[2], dq[2]}};
  out.back() = dv[3];
  return append(std::move(attends), {{"", out}})[0];
}

int Builder::positions_of(Dim dim) {
  if (dim == Dim("seq")) return positions;
  const auto known = positions_.find(dim);
  if (known != positions_.end()) return known->second;
  refuse_batch("positions_of", dim);
  const std::int64_t size = size_of("positions_of", dim);
  const int value = graph.add_data("positions of " + dim.name(), {dim}, Scalar::index);
  below_[value] = size;
  return positions_[dim] = value;
}

int Builder::distance(const std::string& name, int of_positions, const DistanceBuckets& options) {
  const auto is_it = [&](const auto& known) { return known.second == of_positions; };
  require(
      of_positions == positions || std::any_of(positions_.begin(), positions_.end(), is_it), name,
      [&] { return fmt::format("{} are no positions", graph.value(of_positions).name); },
      "m.positions:distance(), or m:positions_of \"dim\":distance()");
  const Dim lie = dims(of_positions).front(), key = keys_of(lie);
  const Scalar scalar = options.buckets > 0 ? Scalar::index : Scalar::real;
  const int made = append(op(name, mw::distance(options), {use(of_positions)}, {key}),
                          {{"", {lie, key}, scalar, false}})[0];
  if (options.buckets > 0) below_[made] = options.buckets;
  return made;
}

int Builder::softmax(const std::string& name, int x, Dim over) {
  refuse_batch(name, over);
  require_dim(name, "x", dims(x), over);
  return append(op(name, mw::softmax(over), {real(x, name)}, {over}), {{"", dims(x)}})[0];
}

int Builder::largest(const std::string& name, int x, const Dims& over) {
  for (Dim dim : over) {
    refuse_batch(name, dim);
    require_dim(name, "x", dims(x), dim);
  }
  return append(op(name, mw::largest(), {real(x, name)}, over),
                {{"", shared(dims(x), over, false)}})[0];
}

Dim Builder::keys_of(Dim lie) {
  if (lie == Dim("seq")) return "keys";
  const Dim key("keys of " + lie.name());
  dim(key, graph.size(lie), false, {}, lie.name() + ", as attention calls that of keys and values");
  return key;
}

std::pair<int, int> Builder::split(const std::string& name, int x, Dim first, Dim second, Dim of) {
  Dims one = dims(x), two = one;
  const Dim whole = of.valid() ? of : one.back();
  refuse_run(name, whole);
  require_dim(name, "x", one, whole);
  for (Dim part : {first, second}) size_of(name, part);
  require(graph.size(first) + graph.size(second) == graph.size(whole), name, [&] {
    return fmt::format("{} = {} and {} = {} are not {} = {} together", first.name(),
                       graph.size(first), second.name(), graph.size(second), whole.name(),
                       graph.size(whole));
  });
  std::replace(one.begin(), one.end(), whole, first);
  std::replace(two.begin(), two.end(), whole, second);
  const std::vector<int> both =
      append(op(name, mw::split(), {real(x, name)}, {whole, first, second}),
             {{name + "." + first.name(), one}, {name + "." + second.name(), two}});
  return {both[0], both[1]};
}

std::pair<int, int> Builder::latent_keys(const std::string& name, int kv, int turned, Dim width,
                                         Dim value) {
  Dims keys = dims(kv), values = keys;
  const Dims whole{keys.back(), dims(turned).back(), width, value};
  require(graph.size(whole[0]) - graph.size(value) + graph.size(whole[1]) == graph.size(width),
          name, [&] {
            return fmt::format(
                "kv {} with {} = {} and what is turned {} do not make keys of {} = {}",
                text_of(keys), value.name(), graph.size(value), text_of(dims(turned)), width.name(),
                graph.size(width));
          });
  keys.back() = width;
  values.back() = value;
  const std::vector<int> both = append(op(name, mw::latent_keys(), {use(kv), use(turned)}, whole),
                                       {{name + ".k", keys}, {name + ".v", values}});
  return {both[0], both[1]};
}

int Builder::swiglu(const std::string& name, int gate, int up, int weights) {
  require(dims(gate) == dims(up), name, [&] {
    return fmt::format("gate {} and up {} differ", text_of(dims(gate)), text_of(dims(up)));
  });
  std::vector<Use> inputs{real(gate, name), real(up, name)};
  if (weights >= 0) {
    inputs.push_back(use(weights));
    Dims rows = dims(gate);
    rows.pop_back();
    require(dims(weights) == rows, name, [&] {
      return fmt::format("weights {} are not one for each row of {}", text_of(dims(weights)),
                         text_of(dims(gate)));
    });
  }
  return append(op(name, mw::swiglu(), std::move(inputs)), {{"", dims(gate)}})[0];
}

int Builder::gelu(const std::string& name, int x) {
  return append(op(name, mw::gelu(), {real(x, name)}), {{"", dims(x)}})[0];
}

int Builder::add(const std::string& name, int stream, int branch) {
  require(dims(stream) == dims(branch), name, [&] {
    return fmt::format("{} and {} differ", text_of(dims(stream)), text_of(dims(branch)));
  });
  return append(op(name, mw::add(), {real(stream, name), real(branch, name)}),
                {{"", dims(stream)}})[0];
}

Dims Builder::map_dims(const std::vector<int>& operands) const {
  Dims out;
  for (int operand : operands) {
    if (dims(operand).size() > out.size()) out = dims(operand);
  }
  for (int operand : operands) {
    for (Dim dim : dims(operand)) {
      if (!contains(out, dim)) out.push_back(dim);
    }
  }
  return out;
}

int Builder::map(const std::string& name, const std::string& f, const std::vector<int>& operands) {
  // Each value is an operand once, and only if the expression depends on it.
  Expressions given, kept;
  const int root = given.parse(f);
  require(given.operands(root) <= static_cast<int>(operands.size()), name, [&] {
    return fmt::format("{} has operands that are not among the {} given", quote(f),
                       operands.size());
  });
  std::vector<Use> uses;
  std::vector<int> values, places;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto found = std::find(values.begin(), values.end(), operands[i]);
    const auto place = static_cast<int>(found - values.begin());
    const bool depends = given.mentions(root, static_cast<int>(i));
    places.push_back(kept.operand(depends ? place : 0));
    if (found != values.end() || !depends) continue;
    values.push_back(operands[i]);
    uses.push_back(real(operands[i], name));
  }
  require(!values.empty(), name,
          [&] { return fmt::format("{} does not depend on its operands", quote(f)); });
  const std::string text = kept.text(kept.copy(given, root, places));
  const Dims out = map_dims(values);
  if (given.draws_in(root)) uses.push_back(numbers_of(name, out));
  if (uses.size() == 1) uses[0].linear = is_linear_map(text);
  return append(op(name, mw::map(text), std::move(uses)), {{"", out}})[0];
}

// The numbers of tokens, by which an op draws for a value of the dims `out`.
Use Builder::numbers_of(const std::string& name, const Dims& out) {
  const Dims of_token{"batch", "seq"};
  require(
      contains(out, of_token[0]) && contains(out, of_token[1]) && !graph.sparse.has(out), name,
      [&] {
        return fmt::format("it draws for each token, and {} is no value of tokens", text_of(out));
      },
      "a draw is of a value with the dims batch and seq; rows of experts have none of their own");
  int numbers = graph.find(numbers_of_tokens);
  if (numbers < 0) numbers = graph.add_data(numbers_of_tokens, of_token, Scalar::index);
  return {numbers, of_token};
}

int Builder::sum(const std::string& name, int x, const Dims& over) {
  for (Dim dim : over) {
    refuse_batch(name, dim);
    require(std::count(over.begin(), over.end(), dim) == 1, name,
            [&] { return fmt::format("{} is given twice", dim.name()); });
    require_dim(name, "x", dims(x), dim);
  }
  Use all = real(x, name);
  all.linear = true;
  return append(op(name, mw::sum(), {all}), {{"", shared(dims(x), over, false)}})[0];
}

int Builder::as(const std::string& name, int x, const Dims& to) {
  const Dims& from = dims(x);
  const Dims gone = shared(from, to, false), fresh = shared(to, from, false);
  const auto size = [&](Dim dim) { return graph.dims().count(dim) > 0 ? graph.size(dim) : -1; };
  const bool fits = from.size() == to.size() && gone.size() <= 1 && gone.size() == fresh.size() &&
                    (gone.empty() || size(gone[0]) == size(fresh[0]));
  require(
      fits, name,
      [&] { return fmt::format("x {} cannot be seen as {}", text_of(from), text_of(to)); },
      "the same dims in any order, of which one may have the name of another dim as large");
  std::vector<std::int64_t> order;
  for (Dim dim : to) {
    const Dim of = contains(from, dim) ? dim : gone[0];
    order.push_back(std::find(from.begin(), from.end(), of) - from.begin());
  }
  Dims whole = gone;
  whole.insert(whole.end(), fresh.begin(), fresh.end());
  Use all = real(x, name);
  all.linear = true;
  return append(op(name, mw::permuted(order), {all}, whole), {{"", to}})[0];
}

int Builder::concat(const std::string& name, int a, int b, Dim into, const Dims& of) {
  const auto along = [&](int value, std::size_t i) {
    const Dims& all = dims(value);
    const Dim dim = !of.empty() ? of.at(i) : all.empty() ? Dim() : all.back();
    require(dim.valid(), name,
            [&] { return fmt::format("{} has no dim to go along", i == 0 ? "a" : "b"); });
    require_dim(name, i == 0 ? "a" : "b", all, dim);
    refuse_run(name, dim);
    return dim;
  };
  const Dim first = along(a, 0), second = along(b, 1);
  size_of(name, into);
  Dims out = dims(a), fewer = dims(b);
  std::replace(out.begin(), out.end(), first, into);
  std::replace(fewer.begin(), fewer.end(), second, into);
  if (fewer.size() > out.size()) std::swap(out, fewer);
  require(shared(out, fewer, true) == fewer, name, [&] {
    return fmt::format("a {} and b {} differ in more than {} and {}", text_of(dims(a)),
                       text_of(dims(b)), first.name(), second.name());
  });
  const auto size = [&](Dim dim) { return graph.size(dim); };
  require(size(first) + size(second) == size(into), name, [&] {
    return fmt::format("{} = {} and {} = {} are not {} = {} together", first.name(), size(first),
                       second.name(), size(second), into.name(), size(into));
  });
  return append(op(name, mw::concat(into), {real(a, name), real(b, name)}, {first, second, into}),
                {{"", out}})[0];
}

int Builder::cross_entropy(const std::string& name, int logits, int labels_of_logits, double weight,
                           std::int64_t mean_over) {
  Dims rows = dims(logits);
  require(rows.size() >= 2 && rows.front() == Dim("batch"), name, [&] {
    return fmt::format("logits {} are not (batch, seq, vocab), or (batch, …, classes)",
                       text_of(rows));
  });
  rows.pop_back();
  require(
      graph.value(labels_of_logits).scalar == Scalar::index && dims(labels_of_logits) == rows, name,
      [&] {
        return fmt::format("its labels {} {} are not indices {}",
                           graph.value(labels_of_logits).name, text_of(dims(labels_of_logits)),
                           text_of(rows));
      },
      "logits:cross_entropy(m.labels)");
  check_below(name, labels_of_logits, dims(logits).back());
  Op max = op(name + ".max", ce_max(), {use(logits)});
  max.contraction = Reduction::max;
  const int largest = append(std::move(max), {{"", rows, Scalar::real, false}})[0];
  Dims dims_of_stats = rows;
  dims_of_stats.insert(dims_of_stats.begin(), "stat");
  int stats = append(
      op(name + ".stats", ce_stats(), {use(logits), use(largest), use(labels_of_logits)}, {"stat"}),
      {{"", dims_of_stats}})[0];
  LossDivisor divisor{mean_over, 0};
  int of_data = labels_of_logits;
  if (const auto found = shifted_.find(labels_of_logits); found != shifted_.end()) {
    std::tie(of_data, divisor.shift) = found->second;
    stats = append(op(name + ".edge", without_last(divisor.shift), {use(stats)}, {"stat"}),
                   {{"", dims_of_stats}})[0];
  }
  require(of_data == labels || mean_over == 0, name, [&] {
    return fmt::format(
        "labels of {} are not those of tokens, so that mean_over says nothing of them",
        graph.value(labels_of_logits).name);
  });
  const std::int64_t sequences = tokens_per_step_ / graph.size("seq");
  std::int64_t labels_per_step = sequences;
  for (std::size_t d = 1; d < rows.size(); ++d) labels_per_step *= graph.size(rows[d]);
  const char* of_step = rows.size() == 1               ? "sequences"
                        : rows == Dims{"batch", "seq"} ? "tokens"
                                                       : "";
  const auto type = ce_loss(labels_per_step, weight, of_step,
                            of_data == labels ? std::optional(divisor) : std::nullopt);
  return append(op(name, type, {use(stats)}, {"stat"}), {{"", {}}})[0];
}

int Builder::shift(const std::string& name, int labels_of_tokens, std::int64_t by) {
  const Dims& of = dims(labels_of_tokens);
  require(graph.value(labels_of_tokens).scalar == Scalar::index && of == Dims({"batch", "seq"}),
          name, [&] { return fmt::format("x {} is not indices (batch, seq)", text_of(of)); });
  const auto before = shifted_.find(labels_of_tokens);
  const int made = append(op(name, mw::shift(by), {use(labels_of_tokens)}, {"seq"}),
                          {{"", {"batch", "seq"}, Scalar::index, false}})[0];
  const bool again = before != shifted_.end();
  const std::int64_t total = by + (again ? before->second.second : 0);
  require(graph.size("seq") == 1 || total < graph.size("seq"), name, [&] {
    return fmt::format("labels {} tokens further on, in sequences of {}", total, graph.size("seq"));
  });
  shifted_[made] = {again ? before->second.first : labels_of_tokens, total};
  if (const auto below = below_.find(labels_of_tokens); below != below_.end())
    below_[made] = below->second;
  return made;
}

int Builder::embed(const HfName& hf) {
  layer = -1;
  embedding_ = parameter("embedding.weight", {"vocab", "hidden"}, normal_weights, hf);
  return embedding("embedding", embedding_);
}

void Builder::head_and_loss(int x, bool tied, const HfName& hf) {
  layer = graph.layers;
  const int head =
      tied ? embedding_ : parameter("head.weight", {"vocab", "hidden"}, normal_weights, hf);
  cross_entropy(linear("head", x, head));
}

std::vector<int> Builder::make_once(const std::string& key, const Make& make) {
  if (const auto known = made_once_.find(key); known != made_once_.end()) return known->second;
  makers_.emplace_back(key, make);
  const int here = std::exchange(layer, -1);
  const std::vector<int> values = make(*this);
  layer = here;
  return made_once_[key] = values;
}

void Builder::make_all_of(const Builder& other) {
  for (const auto& [key, make] : other.makers_) make_once(key, make);
}

}  // namespace mw
