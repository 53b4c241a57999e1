// The ops of layers without attention that blocks of mw.model call by name: a causal convolution, a
// linear recurrence, and dims seen as other dims.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "meshwright/block_op.h"
#include "meshwright/engine/text.h"
#include "meshwright/plugin.h"
#include "ops/scan.h"

namespace mw {
namespace {

[[noreturn]] void refuse_dims(const std::string& name, const std::string& why,
                              const std::string& hint) {
  throw Error(Stage::options, "model.dims", "", fmt::format("{}: {}", name, why), hint);
}

class ConvOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .integer("kernel",
                 "tokens that a token sees, itself and those before it, with a new weight; left "
                 "out: the weight is a second value, (channels…, kernel) or (channels…, 1, kernel)")
        .range(1, 1024)
        .optional()
        .positional("kernel")
        .boolean("bias", "with a bias, of zeros at first, or a third value")
        .fallback(false)
        .number("std", "of a new weight; left out: 1 / sqrt(3 kernel), as PyTorch's Conv1d")
        .at_least(0)
        .optional();
  }
  explicit ConvOp(const Values& values) : values_(values), bias_(values.flag("bias")) {}
  std::vector<std::string> inputs() const override {
    std::vector<std::string> names{"x"};
    if (values_.has("kernel")) return names;
    names.emplace_back("weight");
    if (bias_) names.emplace_back("bias");
    return names;
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const Dims x = b.dims(inputs[0]);  // a copy: a new weight moves the values
    if (x.size() < 3 || x[0] != Dim("batch") || x[1] != Dim("seq"))
      refuse_dims(name, fmt::format("x {} is not (batch, seq, channels…)", text_of(x)),
                  "x:as { … } changes the order of dims");
    const Dims channels(x.begin() + 2, x.end());
    std::vector<Use> uses{b.use(inputs[0])};
    if (values_.has("kernel")) {
      uses.push_back(b.use(new_weight(b, name, channels)));
      if (bias_)
        uses.push_back(b.use(b.parameter(name + ".bias", channels, {Init::Kind::zeros, 0})));
    }
    for (std::size_t i = 1; i < inputs.size(); ++i) uses.push_back(b.use(inputs[i]));
    check(b, name, uses, channels);
    const Dims& weight = uses[1].dims;
    Dims whole(weight.begin() + static_cast<std::ptrdiff_t>(channels.size()), weight.end());
    whole.insert(whole.begin(), "seq");
    return b.append(b.op(name, conv(), std::move(uses), std::move(whole)), {{"", x}});
  }

 private:
  int new_weight(Builder& b, const std::string& name, Dims dims) const {
    const std::int64_t kernel = values_.integer("kernel");
    const Dim taps(fmt::format("kernel_{}", kernel));
    b.dim(taps, kernel, true, {}, "tokens that a convolution sees");
    dims.push_back(taps);
    const double usual = 1 / std::sqrt(3.0 * static_cast<double>(kernel)),
                 std = values_.has("std") ? values_.number("std") : usual;
    return b.parameter(name + ".weight", std::move(dims), {Init::Kind::normal, std});
  }

  static void check(const Builder& b, const std::string& name, const std::vector<Use>& uses,
                    const Dims& channels) {
    const Dims& weight = uses[1].dims;
    bool fits = weight.size() > channels.size() &&
                std::equal(channels.begin(), channels.end(), weight.begin());
    for (std::size_t i = channels.size(); fits && i + 1 < weight.size(); ++i)
      fits = b.graph.size(weight[i]) == 1;
    if (!fits)
      refuse_dims(name,
                  fmt::format("weight {} is not x's channels {}, then a dim of size 1 or none, "
                              "then the kernel's",
                              text_of(weight), text_of(channels)),
                  "m:weight { \"conv\", channels…, \"kernel\" }");
    if (uses.size() > 2 && uses[2].dims != channels)
      refuse_dims(name,
                  fmt::format("bias {} is not of x's channels {}", text_of(uses[2].dims),
                              text_of(channels)),
                  "m:weight { \"bias\", channels… }");
  }

  const Values values_;
  const bool bias_;
};

class ScanOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .integer("chunk", "tokens whose products are made at a time")
        .range(1, 1 << 16)
        .fallback(64)
        .unit("tokens")
        .boolean("delta",
                 "the gated delta rule, by a rate of each head, a fifth value: the state forgets "
                 "what it knows of a key before it learns the key's value")
        .fallback(false);
  }
  explicit ScanOp(const Values& values) : delta_(values.flag("delta")) {
    options_.chunk = values.integer("chunk");
    options_.delta = delta_;
  }
  std::vector<std::string> inputs() const override {
    if (delta_) return {"q", "k", "v", "decay", "rate"};
    return {"q", "k", "v", "decay"};
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    check(b, name, inputs);
    const Dims &q = b.dims(inputs[0]), &k = b.dims(inputs[1]), &v = b.dims(inputs[2]);
    std::vector<Use> uses;
    for (const int input : inputs) uses.push_back(b.use(input));
    Op scans = b.op(name, scan(options_), std::move(uses), {"seq", q[3], v[3]});
    if (q[2] != v[2]) scans.follows.emplace_back(q[2], v[2]);
    if (k[2] != v[2] && k[2] != q[2]) scans.follows.emplace_back(k[2], v[2]);
    return b.append(std::move(scans), {{"", v}});
  }

 private:
  void check(const Builder& b, const std::string& name, const std::vector<int>& inputs) const {
    const Dims &q = b.dims(inputs[0]), &k = b.dims(inputs[1]), &v = b.dims(inputs[2]);
    const Dims tokens{"batch", "seq"};
    const auto starts = [&](const Dims& dims) {
      return dims.size() == 4 && std::equal(tokens.begin(), tokens.end(), dims.begin());
    };
    if (!starts(q) || !starts(k) || !starts(v) || q[3] != k[3] || q[3] == v[3])
      refuse_dims(name,
                  fmt::format("q {}, k {}, v {} are not (batch, seq, groups, state) twice and "
                              "(batch, seq, heads, width), with a width of another name",
                              text_of(q), text_of(k), text_of(v)),
                  "x:as { … } gives a dim another name");
    for (const Dims& of : {q, k}) {
      if (b.graph.size(v[2]) % b.graph.size(of[2]) == 0) continue;
      refuse_dims(name,
                  fmt::format("{} = {} groups cannot serve {} = {} heads evenly", of[2].name(),
                              b.graph.size(of[2]), v[2].name(), b.graph.size(v[2])),
                  "a number of groups that divides the heads");
    }
    for (std::size_t i = 3; i < inputs.size(); ++i) {
      if (b.dims(inputs[i]) == Dims{"batch", "seq", v[2]}) continue;
      refuse_dims(
          name,
          fmt::format("{} {} is not one number for each head of v {}", i == 3 ? "decay" : "rate",
                      text_of(b.dims(inputs[i])), text_of(v)),
          fmt::format("the logarithm of a decay, and a rate: (batch, seq, {})", v[2].name()));
    }
  }

  const bool delta_;
  ScanOptions options_;
};

class ReshapeOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .any("to", "the dims that x's last dims become: a name, or a list of names")
        .positional("to")
        .any("from", "which these are; left out: the last one")
        .optional();
  }
  explicit ReshapeOp(const Values& values) : to_(dims_of(values, "to")) {
    if (values.has("from")) from_ = dims_of(values, "from");
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    Dims out = b.dims(inputs[0]), from = from_;
    if (from.empty() && !out.empty()) from = {out.back()};
    check(b, name, out, from);
    for (Dim dim : {Dim("batch"), Dim("seq")}) {
      if (contains(from, dim) || contains(to_, dim))
        refuse_dims(name, fmt::format("{} stays as it is", dim.name()), "take another dim");
    }
    out.resize(out.size() - from.size());
    out.insert(out.end(), to_.begin(), to_.end());
    Use all = b.real(inputs[0], name);
    all.linear = true;
    Op op = b.op(
        name,
        reshaped(static_cast<std::int64_t>(from.size()), static_cast<std::int64_t>(to_.size())),
        {all});
    // Heads become groups of heads, or the other way: parts of both have the same elements.
    const Dim first = from[0], made = to_[0];
    const bool many = from.size() > 1 && to_.size() > 1 && even(b, first) && even(b, made);
    const bool fewer = many && b.graph.size(first) % b.graph.size(made) == 0,
               more = many && b.graph.size(made) % b.graph.size(first) == 0;
    if (first != made && fewer) op.follows = {{made, first}};
    if (first != made && more && !fewer) op.follows = {{first, made}};
    const std::ptrdiff_t cut = fewer || more ? 1 : 0;
    for (const Dims& dims : {from, to_})
      op.whole.insert(op.whole.end(), dims.begin() + cut, dims.end());
    return b.append(std::move(op), {{"", out}});
  }

 private:
  static bool even(const Builder& b, Dim dim) { return b.graph.dims().at(dim).even; }

  void check(const Builder& b, const std::string& name, const Dims& x, const Dims& from) const {
    if (from.empty() || x.size() < from.size() ||
        !std::equal(from.rbegin(), from.rend(), x.rbegin()))
      refuse_dims(name, fmt::format("x {} does not end in {}", text_of(x), text_of(from)),
                  "x:as { … } changes the order of dims");
    std::int64_t before = 1, after = 1;
    for (const Dim dim : from) before *= b.graph.size(dim);
    for (const Dim dim : to_) {
      if (b.graph.dims().count(dim) == 0)
        refuse_dims(name, fmt::format("the model has no dim {}", quote(dim.name())),
                    "give it a size in dims");
      after *= b.graph.size(dim);
    }
    if (before == after) return;
    refuse_dims(name,
                fmt::format("{} have {} elements, and {} have {}", text_of(from), before,
                            text_of(to_), after),
                "dims whose sizes have the same product");
  }

  const Dims to_;
  Dims from_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    op<ConvOp>("conv",
               "x (batch, seq, channels…) -> the same: a causal convolution of each channel along "
               "seq"),
    op<ScanOp>("scan",
               "q, k (batch, seq, groups, state), v (batch, seq, heads, width), decay (batch, seq, "
               "heads), the logarithm -> (batch, seq, heads, width): a linear recurrence, h = "
               "exp(decay) h + k v^T, y = q h"),
    op<ReshapeOp>("reshape",
                  "x (…, from…) -> (…, to…): its elements in the same order, as dims of other "
                  "sizes"));

}  // namespace mw
