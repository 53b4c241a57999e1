// The ops that blocks of mw.model call by name, registered as plugins register theirs: norms,
// linears, rotary positions, attention of given queries and keys, activations, sums and splits.
// lua/meshwright/composites.lua says those that are several others.
#include <fmt/format.h>

#include <cmath>

#include "composed.h"
#include "meshwright/block_op.h"
#include "meshwright/engine/text.h"
#include "meshwright/plugin.h"
#include "ops/expression.h"

namespace mw {

Dims dims_of(const Values& values, const char* key) {
  Dims dims;
  if (!values.has(key)) return dims;
  const Json& given = values.at(key);
  for (const Json& entry : given.is_array() ? given : Json::array({given})) {
    if (!entry.is_string()) {
      throw Error(Stage::options, "option.type", key,
                  fmt::format("{} must be the name of a dim, or a list of names; got {}", key,
                              lua_text(given)),
                  fmt::format("{} = \"ffn\", {} = {{ \"heads\", \"head_dim\" }}", key, key));
    }
    dims.emplace_back(entry.get<std::string>());
  }
  return dims;
}

namespace {

// Adds the options that ops with linears have for their weights: bias, std.
void add_weight_options(Options& options) {
  options.boolean("bias", "with biases, of zeros at first").fallback(false);
  options.number("std", "of the initial weights").at_least(0).fallback(normal_weights.std);
}

Init weights_of(const Values& values) {
  return {Init::Kind::normal, values.number("std")};
}

// Reads hf_part: { 2, 3 } means the second of three parts.
std::pair<int, int> part_of_fused(const Json& given) {
  const bool two = given.is_array() && given.size() == 2;
  const auto part = two ? whole_number(given[0]) : std::nullopt,
             parts = two ? whole_number(given[1]) : std::nullopt;
  if (part && parts && *part >= 1 && *part <= *parts && *parts <= 64)
    return {static_cast<int>(*part), static_cast<int>(*parts)};
  throw Error(Stage::options, "option.value", "hf_part",
              fmt::format("hf_part is which part of how many; got {}", lua_text(given)),
              "hf_part = { 2, 3 }: the second of three");
}

// Refuses what says how a checkpoint has a weight, if nothing says that it has it.
void check_hf(const Values& values) {
  if (values.has("hf_part")) part_of_fused(values.at("hf_part"));
  if (values.has("hf")) return;
  for (const char* key : {"hf_part", "hf_interleaved", "hf_transposed"}) {
    if (!values.has(key) || (values.at(key).is_boolean() && !values.flag(key))) continue;
    throw Error(
        Stage::options, "option.value", key,
        fmt::format("{} says how a checkpoint has the weight, whose name there is not given", key),
        "hf = \"the weight's name in the checkpoint\"");
  }
}

// The weight's name in a checkpoint that the option `hf` gives, whose "{}" is the layer's number;
// empty: the parameter's own name.
HfName hf_of(const Values& values, const Builder& b, const char* option = "hf") {
  HfName hf;
  if (!values.has(option)) return hf;
  hf.name = values.text(option);
  hf.transposed = values.has("hf_transposed") && values.flag("hf_transposed");
  hf.interleaved = values.has("hf_interleaved") && values.flag("hf_interleaved");
  if (values.has("hf_part")) {
    const auto [part, parts] = part_of_fused(values.at("hf_part"));
    hf.part = part - 1;
    hf.parts = parts;
  }
  if (const std::size_t at = hf.name.find("{}"); at != std::string::npos) {
    if (b.layer < 0 || b.layer >= b.graph.layers) {
      throw Error(
          Stage::options, "option.value", option,
          fmt::format("{} stands for a layer's number, outside of the layers", quote(hf.name)),
          "a name without {}");
    }
    hf.name.replace(at, 2, std::to_string(b.layer));
  }
  return hf;
}

// Turns the last `width` elements of x's last dim (invalid: all), or the `first`, by rotary
// positions. The model has one table for all ops with these arguments.
int with_rope(Builder& b, const std::string& name, int x, const RopeAngles& angles, Dim width,
              bool first) {
  if (width.valid()) b.size_of(name, width);
  if (!width.valid()) width = b.dims(x).back();
  const std::string key =
      fmt::format("rope {} {} {} {} {}", angles.theta, width.name(), static_cast<int>(angles.pairs),
                  angles.scale, fmt::join(angles.angles, " "));
  const auto make = [angles, width](Builder& at) {
    std::string table = "rope";
    for (int n = 2; at.graph.find(table + ".cos") >= 0; ++n) table = fmt::format("rope_{}", n);
    return at.rope_table(table, angles, width);
  };
  return b.rope(name, x, b.make_once(key, make), angles.pairs, first);
}

constexpr const char* hf_doc =
    "its weight's name in a checkpoint, {} for the layer's number; left out: its own";

class RmsNormOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .number("eps", "added to the mean square")
        .at_least(0)
        .fallback(1e-5)
        .number("plus", "added to the weight, whose values are then zeros at first (Gemma: 1)")
        .fallback(0.0)
        .text("hf", hf_doc)
        .optional();
  }
  explicit RmsNormOp(const Values& values) : values_(values) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.rms_norm(name, inputs[0], hf_of(values_, b), values_.number("eps"),
                       values_.number("plus"))};
  }

 private:
  const Values values_;
};

class LayerNormOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .number("eps", "added to the variance")
        .at_least(0)
        .fallback(1e-5)
        .text("hf", hf_doc)
        .optional();
  }
  explicit LayerNormOp(const Values& values) : values_(values) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.layer_norm(name, inputs[0], hf_of(values_, b).name, values_.number("eps"))};
  }

 private:
  const Values values_;
};

class LinearOp final : public BlockOp {
 public:
  static Options options() {
    Options options;
    options.any("to", "the dims that it makes: a name, or a list of names");
    options.any("from", "the dims that it contracts, x's last; left out: all but batch and seq")
        .optional();
    add_weight_options(options);
    options.text("hf", hf_doc).optional();
    options.boolean("hf_transposed", "the checkpoint has the weight as (in, out)").fallback(false);
    options
        .list("hf_part", "{ 2, 3 }: the second of three parts of the checkpoint's weight and bias")
        .optional()
        .boolean("hf_interleaved", "parts have every second row each, or every third …")
        .fallback(false);
    return options.positional("to");
  }
  explicit LinearOp(const Values& values)
      : values_(values), to_(dims_of(values, "to")), from_(dims_of(values, "from")) {
    check_hf(values);
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.linear_to(name, inputs[0], to_, from_, values_.flag("bias"), weights_of(values_),
                        hf_of(values_, b))};
  }

 private:
  const Values values_;
  const Dims to_, from_;
};

class RopeOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .number("theta", "base of the angles; left out: 10000")
        .optional()
        .at_least(1)
        .choice("pairs", {"halves", "neighbours"},
                "which elements of a head turn together: i and i + width / 2, or 2 i and 2 i + 1")
        .fallback("halves")
        .text("width", "a dim as large as the last part of x's last dim that turns; left out: all")
        .optional()
        .boolean("first", "the first part of x's last dim turns, not the last")
        .fallback(false)
        .list("angles",
              "by how much each pair turns from one token to the next; left out: theta ^ (-2 i / "
              "width) for pair i, from 0")
        .optional()
        .number("scale", "of cosines and sines")
        .range(1e-6, 1e6)
        .fallback(1.0);
  }
  explicit RopeOp(const Values& values)
      : width_(values.has("width") ? Dim(values.text("width")) : Dim()),
        first_(values.flag("first")) {
    if (values.has("theta") && values.has("angles")) {
      throw Error(Stage::options, "option.value", "theta",
                  "theta makes the angles, which angles gives", "one of the two");
    }
    if (values.has("theta")) angles_.theta = values.number("theta");
    angles_.scale = values.number("scale");
    if (values.text("pairs") != "halves") angles_.pairs = RopePairs::neighbours;
    if (!values.has("angles")) return;
    if (values.at("angles").empty()) {
      throw Error(Stage::options, "option.value", "angles", "there are no angles in it",
                  "a number for each pair of elements, or leave it out");
    }
    for (const Json& one : values.at("angles")) {
      if (!one.is_number() || !std::isfinite(one.get<double>())) {
        throw Error(Stage::options, "option.type", "angles",
                    fmt::format("angles are numbers; got {}", describe(one)),
                    "mw.rope_angles { … } gives those of YaRN and of Llama 3");
      }
      angles_.angles.push_back(one.get<double>());
    }
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {with_rope(b, name, inputs[0], angles_, width_, first_)};
  }

 private:
  const Dim width_;
  const bool first_;
  RopeAngles angles_;
};

class AttendOp final : public BlockOp {
 public:
  static Options options() {
    Options options;
    options.integer("window", "tokens that a query sees, itself and those before it; left out: all")
        .at_least(1)
        .optional()
        .unit("tokens");
    options.number("scale", "of the scores; left out: 1 / sqrt(head_dim)")
        .range(1e-9, 1e9)
        .optional();
    options
        .number("softcap", "scores s become softcap * tanh(s / softcap); the attention is unfused")
        .range(1e-9, 1e9)
        .optional();
    options.boolean("causal", "false: a query sees the keys after it too; the attention is unfused")
        .fallback(true);
    options
        .boolean("biased",
                 "a fourth value, of any of the dims batch, heads, seq and keys, is added to the "
                 "scores; "
                 "the attention is unfused")
        .fallback(false);
    options
        .boolean(
            "sinks",
            "a further value (heads) is one more score of each query, whose share of the softmax "
            "goes nowhere; the attention is unfused")
        .fallback(false);
    add_attention_option(options);
    return options;
  }
  explicit AttendOp(const Values& values) : values_(values) {
    if (values.has("window")) limits_.window = values.integer("window");
    if (values.has("softcap")) limits_.softcap = values.number("softcap");
    limits_.causal = values.flag("causal");
    limits_.bias = values.flag("biased");
    limits_.sinks = values.flag("sinks");
    if (limits_.causal || limits_.window == 0) return;
    throw Error(Stage::options, "option.conflict", "window",
                "window and causal = false: a window is what causal attention sees",
                "leave out one of them");
  }
  std::vector<std::string> inputs() const override {
    std::vector<std::string> names{"q", "k", "v"};
    if (limits_.bias) names.emplace_back("bias");
    if (limits_.sinks) names.emplace_back("sinks");
    return names;
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    int q = inputs[0];
    if (values_.has("scale")) {
      const double width = static_cast<double>(b.graph.size(b.dims(q).back()));
      q = b.map(name + ".scaled", fmt::format("a * {}", values_.number("scale") * std::sqrt(width)),
                {q});
    }
    return {b.attention(name, q, inputs[1], inputs[2], limits_, is_unfused(values_),
                        {inputs.begin() + 3, inputs.end()})};
  }

 private:
  const Values values_;
  AttentionLimits limits_;
};

class SplitOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .list("into", "two dims, as large together as that dim of x")
        .positional("into")
        .text("of", "a dim of x; left out: the last one")
        .optional();
  }
  explicit SplitOp(const Values& values)
      : into_(dims_of(values, "into")), of_(values.has("of") ? Dim(values.text("of")) : Dim()) {
    if (into_.size() == 2) return;
    throw Error(Stage::options, "option.value", "into",
                fmt::format("{} dims, and x is split into two", into_.size()),
                "into = { \"first\", \"second\" }");
  }
  int outputs() const override { return 2; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const auto [first, second] = b.split(name, inputs[0], into_[0], into_[1], of_);
    return {first, second};
  }

 private:
  const Dims into_;
  const Dim of_;
};

class PositionsOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .text("dim", "how many there are: a dim of the model, no less than the sequence")
        .fallback("positions")
        .positional("dim")
        .text("hf", hf_doc)
        .optional();
  }
  explicit PositionsOp(const Values& values) : values_(values) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const Dims dims{Dim(values_.text("dim")), b.dims(inputs[0]).back()};
    const int weight = b.parameter(name + ".weight", dims, normal_weights, hf_of(values_, b));
    return {b.add_positions(name, inputs[0], weight)};
  }

 private:
  const Values values_;
};

class AddPositionsOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"x", "weight"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.add_positions(name, inputs[0], inputs[1])};
  }
};

class LatentKeysOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .text("keys", "the dim of a key's width")
        .text("values", "the dim of a value's width");
  }
  explicit LatentKeysOp(const Values& values)
      : keys_(values.text("keys")), values_(values.text("values")) {}
  std::vector<std::string> inputs() const override { return {"kv", "turned"}; }
  int outputs() const override { return 2; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const auto [k, v] = b.latent_keys(name, inputs[0], inputs[1], keys_, values_);
    return {k, v};
  }

 private:
  const Dim keys_, values_;
};

class SwigluOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .boolean("weighed", "times a weight for each row of gate's last dim, a third value")
        .fallback(false);
  }
  explicit SwigluOp(const Values& values) : weighed_(values.flag("weighed")) {}
  std::vector<std::string> inputs() const override {
    if (weighed_) return {"gate", "up", "weights"};
    return {"gate", "up"};
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.swiglu(name, inputs[0], inputs[1], weighed_ ? inputs[2] : -1)};
  }

 private:
  const bool weighed_;
};

class GeluOp final : public BlockOp {
 public:
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.gelu(name, inputs[0])};
  }
};

class AddOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"a", "b"}; }
  std::optional<std::string> expression() const override { return "a + b"; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    if (b.dims(inputs[0]) == b.dims(inputs[1])) return {b.add(name, inputs[0], inputs[1])};
    return {b.map(name, "a + b", inputs)};
  }
};

// An op that is nothing but its expression().
class ExpressionOp : public BlockOp {
 public:
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const final {
    return {b.map(name, *expression(), inputs)};
  }
};

class MapOp final : public ExpressionOp {
 public:
  static Options options() {
    return Options().text("f", "an expression of a, b, …: \"a * silu(b) + 1\"").positional("f");
  }
  explicit MapOp(const Values& values) : f_(values.text("f")) {
    Expressions read;
    count_ = read.operands(read.parse(f_));
    if (count_ > 0) return;
    throw Error(Stage::options, "option.value", "f", fmt::format("{} has no operand", quote(f_)),
                "an expression of a, b, …: \"a * silu(b) + 1\"");
  }
  std::vector<std::string> inputs() const override {
    std::vector<std::string> names;
    for (int i = 0; i < count_; ++i) names.emplace_back(1, static_cast<char>('a' + i));
    return names;
  }
  std::optional<std::string> expression() const override { return f_; }

 private:
  const std::string f_;
  int count_ = 0;
};

// A function of each element, by its name in expressions.
template <const char* function>
class FunctionOp final : public ExpressionOp {
 public:
  std::optional<std::string> expression() const override { return fmt::format("{}(a)", function); }
};
constexpr char silu[] = "silu", relu[] = "relu", sigmoid[] = "sigmoid", tanh[] = "tanh",
               exp[] = "exp", log[] = "log", sqrt[] = "sqrt", rsqrt[] = "rsqrt",
               square[] = "square", softplus[] = "softplus", gelu_erf[] = "gelu_erf";

class SoftcapOp final : public ExpressionOp {
 public:
  static Options options() {
    return Options().number("cap", "the largest absolute value").range(1e-9, 1e9).positional("cap");
  }
  explicit SoftcapOp(const Values& values) : cap_(values.number("cap")) {}
  std::optional<std::string> expression() const override {
    return fmt::format("softcap(a, {})", cap_);
  }

 private:
  const double cap_;
};

// A parameter as a value, which any number of ops may use.
class WeightOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .any("dims", "its dims: a name, or a list of names")
        .choice("init", {"normal", "ones", "zeros"}, "its values at first")
        .fallback("normal")
        .number("std", "of normal values")
        .at_least(0)
        .fallback(normal_weights.std)
        .text("hf", hf_doc)
        .optional();
  }
  explicit WeightOp(const Values& values) : values_(values), dims_(dims_of(values, "dims")) {}
  std::vector<std::string> inputs() const override { return {}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>&) const override {
    const std::string& init = values_.text("init");
    const Init::Kind kind = init == "ones"    ? Init::Kind::ones
                            : init == "zeros" ? Init::Kind::zeros
                                              : Init::Kind::normal;
    return {b.parameter(name + ".weight", dims_, {kind, values_.number("std")}, hf_of(values_, b))};
  }

 private:
  const Values values_;
  const Dims dims_;
};

class LookupOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"indices", "weight"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.lookup(name, inputs[0], inputs[1])};
  }
};

class GatherOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"x", "indices"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.gather(name, inputs[0], inputs[1])};
  }
};

class ScatterOp final : public BlockOp {
 public:
  static Options options() {
    return Options().text("to", "the dim whose places the indices name").positional("to");
  }
  explicit ScatterOp(const Values& values) : to_(values.text("to")) {}
  std::vector<std::string> inputs() const override { return {"rows", "indices"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.scatter(name, inputs[0], inputs[1], to_)};
  }

 private:
  const Dim to_;
};

class PoolOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .text("to", "the dim of the groups")
        .positional("to")
        .text("of", "the dim whose neighbours are pooled")
        .fallback("seq")
        .choice("by", {"mean", "max"}, "what a group gives")
        .fallback("mean");
  }
  explicit PoolOp(const Values& values)
      : to_(values.text("to")), of_(values.text("of")), max_(values.text("by") == "max") {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.pool(name, inputs[0], to_, of_, max_)};
  }

 private:
  const Dim to_, of_;
  const bool max_;
};

class ContractOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"x", "weight"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.linear(name, inputs[0], inputs[1])};
  }
};

// The sum or the mean over dims.
template <bool mean>
class SumOp final : public BlockOp {
 public:
  static Options options() {
    return Options().any("over", "the dims: a name, or a list of names").positional("over");
  }
  explicit SumOp(const Values& values) : over_(dims_of(values, "over")) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    if (!mean) return {b.sum(name, inputs[0], over_)};
    const int total = b.sum(name + ".sum", inputs[0], over_);
    std::int64_t elements = 1;
    for (Dim dim : over_) elements *= b.graph.size(dim);
    return {b.map(name, fmt::format("a / {}", elements), {total})};
  }

 private:
  const Dims over_;
};

class MaxOp final : public BlockOp {
 public:
  static Options options() {
    return Options().any("over", "the dims: a name, or a list of names").positional("over");
  }
  explicit MaxOp(const Values& values) : over_(dims_of(values, "over")) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.largest(name, inputs[0], over_)};
  }

 private:
  const Dims over_;
};

class AsOp final : public BlockOp {
 public:
  static Options options() {
    return Options().any("dims", "all dims of the result, in order").positional("dims");
  }
  explicit AsOp(const Values& values) : dims_(dims_of(values, "dims")) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.as(name, inputs[0], dims_)};
  }

 private:
  const Dims dims_;
};

class ConcatOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .text("into", "a dim as large as the two together")
        .positional("into")
        .list("of", "the dims of a and of b that lie along it; left out: their last ones")
        .optional();
  }
  explicit ConcatOp(const Values& values) : into_(values.text("into")), of_(dims_of(values, "of")) {
    if (of_.empty() || of_.size() == 2) return;
    throw Error(Stage::options, "option.value", "of",
                fmt::format("{} dims, and a and b have one each", of_.size()),
                "of = { \"one\", \"patches\" }");
  }
  std::vector<std::string> inputs() const override { return {"a", "b"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.concat(name, inputs[0], inputs[1], into_, of_)};
  }

 private:
  const Dim into_;
  const Dims of_;
};

class ShiftOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .integer("by", "tokens further on")
        .range(1, 1 << 20)
        .fallback(1)
        .positional("by");
  }
  explicit ShiftOp(const Values& values) : by_(values.integer("by")) {}
  std::vector<std::string> inputs() const override { return {"labels"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.shift(name, inputs[0], by_)};
  }

 private:
  const std::int64_t by_;
};

class CrossEntropyOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .number("weight", "factor of the loss")
        .fallback(1.0)
        .integer("mean_over",
                 "mean of the labels that count of each so many sequences, and then of these "
                 "means; left out: of all sequences of a step")
        .optional()
        .at_least(1);
  }
  explicit CrossEntropyOp(const Values& values)
      : weight_(values.number("weight")),
        mean_over_(values.has("mean_over") ? values.integer("mean_over") : 0) {}
  std::vector<std::string> inputs() const override { return {"logits", "labels"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.cross_entropy(name, inputs[0], inputs[1], weight_, mean_over_)};
  }

 private:
  const double weight_;
  const std::int64_t mean_over_;
};

ExpertOptions read_router(const Values& values) {
  using Balance = ExpertOptions::Balance;
  ExpertOptions options;
  options.top = values.integer("top_k");
  if (values.has("capacity")) options.capacity = values.number("capacity");
  const std::string balance = values.text("balance");
  options.balance = balance == "aux"    ? Balance::aux
                    : balance == "bias" ? Balance::bias
                                        : Balance::none;
  options.aux_weight = values.number("aux_weight");
  options.bias_rate = values.number("bias_rate");
  options.z_weight = values.number("z_weight");
  options.jitter = values.has("jitter") ? values.number("jitter") : 0;
  options.noise = values.has("noise") ? values.number("noise") : 0;
  options.router.score =
      values.text("score") == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax;
  options.router.normalise = values.flag("normalise");
  options.router.scale = values.number("scale");
  options.logit_bias = values.flag("logit_bias");
  options.experts_choose = values.text("chosen_by") == "experts";
  if (values.has("groups")) options.router.groups = values.integer("groups");
  if (values.has("group_top")) options.router.group_top = values.integer("group_top");
  return options;
}

class RouteOp final : public BlockOp {
 public:
  static Options options() { return options_in_lua("route"); }
  explicit RouteOp(const Values& values) : values_(values), options_(read_router(values)) {}
  int outputs() const override { return 3; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    ExpertNames names;
    names.router = hf_of(values_, b);
    names.bias = hf_of(values_, b, "hf_bias");
    names.bias.optional = values_.has("hf_bias") || values_.has("hf");
    // The name is that of the first of several ops, which stand beside each other.
    constexpr std::string_view router = ".router";
    std::string prefix = name;
    if (prefix.ends_with(router)) prefix.resize(prefix.size() - router.size());
    const std::int64_t experts = b.size_of(name, "experts");
    check_in_lua("route", {values_.json(), experts}, name);
    b.expert_dims(experts, options_);
    const auto routed = b.route(prefix, inputs[0], options_, names);
    return {routed.rows, routed.places, routed.weights};
  }

 private:
  const Values values_;
  const ExpertOptions options_;
};

class ExpertLinearOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .text("to", "the dim that it makes of x's last")
        .positional("to")
        .boolean("bias", "with a bias of each expert, of zeros at first")
        .fallback(false)
        .boolean("weighed", "a second value, the weights of the rows, multiplies their biases")
        .fallback(false)
        .text("hf", "as for linear; after the layer's number, {} stands for the expert's")
        .optional()
        .text("hf_bias", "the bias's name; left out: hf with .bias for .weight")
        .optional()
        .boolean("hf_transposed", "the checkpoint has the weight as (experts, in, out)")
        .fallback(false)
        .list("hf_part", "{ 2, 3 }: the second of three parts of the checkpoint's dim out")
        .optional()
        .boolean("hf_interleaved", "parts have every second row each, or every third …")
        .fallback(false);
  }
  explicit ExpertLinearOp(const Values& values) : values_(values), to_(values.text("to")) {
    check_hf(values);
    if (values.flag("bias") || !values.flag("weighed")) return;
    throw Error(Stage::options, "option.needs", "weighed",
                "weighed is for the bias of each expert, and there is none", "bias = true");
  }
  std::vector<std::string> inputs() const override {
    if (values_.flag("weighed")) return {"rows", "weights"};
    return {"rows"};
  }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    HfName hf = hf_of(values_, b);
    hf.apart = hf.name.find("{}") != std::string::npos;
    hf.part_dim = hf.apart ? 0 : 1;
    b.size_of(name, to_);
    std::optional<HfName> bias;
    if (values_.flag("bias")) bias = bias_beside(hf);
    if (bias && values_.has("hf_bias")) {
      bias = hf_of(values_, b, "hf_bias");
      bias->part_dim = hf.part_dim;
      bias->transposed = false;
    }
    if (bias) bias->apart = bias->name.find("{}") != std::string::npos;
    return {b.expert_linear(name, inputs[0], to_, std::move(hf), bias,
                            inputs.size() > 1 ? inputs[1] : -1)};
  }

 private:
  const Values values_;
  const Dim to_;
};

class CombineOp final : public BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"rows", "places"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.combine(name, inputs[0], inputs[1])};
  }
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    op<RmsNormOp>("rms_norm", "x (…, width) -> the same: over its root mean square, weighed"),
    op<LayerNormOp>("layer_norm", "x (…, width) -> the same: normalised, weighed, shifted"),
    op<LinearOp>("linear", "x (…, from…) -> (…, to…), with a weight (to…, from…)"),
    op<AttendOp>("attend",
                 "q (batch, seq, heads, head_dim), k and v (batch, seq, kv_heads, …) -> (batch, "
                 "seq, heads, …): attention"),
    op<RopeOp>("rope", "x (batch, seq, heads, head_dim) -> the same, turned by its position"),
    op<SwigluOp>("swiglu", "gate, up, of the same dims -> the same: silu(gate) * up"),
    op<GeluOp>("gelu", "x -> the same dims: GELU in the tanh form"),
    op<AddOp>("add", "a, b -> their sum; also written a + b"),
    op<SplitOp>("split", "x (…, width) -> (…, first), (…, second): its two parts"),
    op<PositionsOp>("learned_positions",
                    "x (batch, seq, hidden) -> the same, plus a learned row of each position"),
    op<AddPositionsOp>("add_positions",
                       "x (batch, seq, hidden), weight (positions, hidden) -> x plus a row of each "
                       "position"),
    op<LatentKeysOp>("latent_keys",
                     "kv (batch, seq, heads, plain + value), turned (batch, seq, turned) -> keys "
                     "(…, plain + turned), of which all heads share the second part, and values"));
MESHWRIGHT_BUILT_IN(
    op<MapOp>("map", "a, b, … -> an expression of each element; dims broadcast by their names"),
    op<FunctionOp<silu>>("silu", "x -> the same dims: x * sigmoid(x)"),
    op<FunctionOp<relu>>("relu", "x -> the same dims: the larger of x and 0"),
    op<FunctionOp<sigmoid>>("sigmoid", "x -> the same dims: 1 / (1 + exp(-x))"),
    op<FunctionOp<tanh>>("tanh", "x -> the same dims: its hyperbolic tangent"),
    op<FunctionOp<exp>>("exp", "x -> the same dims: e to the power of x"),
    op<FunctionOp<log>>("log", "x -> the same dims: its natural logarithm"),
    op<FunctionOp<sqrt>>("sqrt", "x -> the same dims: its square root"),
    op<FunctionOp<rsqrt>>("rsqrt", "x -> the same dims: 1 over its square root"),
    op<FunctionOp<square>>("square", "x -> the same dims: x * x"));
MESHWRIGHT_BUILT_IN(
    op<FunctionOp<softplus>>("softplus", "x -> the same dims: log(1 + exp(x))"),
    op<FunctionOp<gelu_erf>>("gelu_erf", "x -> the same dims: GELU in the exact form"),
    op<SoftcapOp>("softcap", "x -> the same dims: cap * tanh(x / cap)"),
    op<SumOp<false>>("sum", "x -> x without some dims: the sum over them"),
    op<SumOp<true>>("mean", "x -> x without some dims: the mean over them"),
    op<MaxOp>("max", "x -> x without some dims: the largest over them"),
    op<AsOp>("as", "x -> its elements under other dims: another order, one of another name"),
    op<ConcatOp>("concat", "a (…, first), b (…, second) -> (…, into): one after the other"),
    op<WeightOp>("weight", "-> a parameter of these dims, as a value"),
    op<LookupOp>("lookup", "indices (…), weight (rows, width) -> (…, width): the rows they name"),
    op<GatherOp>("gather",
                 "x (batch, from, …), indices (batch, to…) -> (batch, to…, …): the rows they name"),
    op<ScatterOp>("scatter",
                  "rows (batch, from…, …), indices (batch, from…) -> (batch, to, …): each row at "
                  "the place that its index names"),
    op<PoolOp>("pool",
               "x (…, of, …) -> (…, to, …): the mean or the largest of each group of neighbours"),
    op<ContractOp>("contract",
                   "x (…, from…), weight (to…, from…) -> (…, to…): the product of two values"),
    op<ShiftOp>("shift",
                "labels (batch, seq) -> those of tokens further on; a loss leaves out the last "
                "tokens, which have none"),
    op<CrossEntropyOp>(
        "cross_entropy",
        "logits (batch, seq, vocab), labels (batch, seq), or other dims in place of "
        "seq -> (): the loss of a label, summed and divided by the labels of a step"));
MESHWRIGHT_BUILT_IN(
    op<RouteOp>("route",
                "x (batch, seq, hidden) -> rows (experts, batch, seq, hidden), places, weights: "
                "each token's rows by the experts that it chooses; of the dim experts"),
    op<ExpertLinearOp>("expert_linear",
                       "rows (experts, batch, seq, from) -> (experts, batch, seq, to), with a "
                       "weight of each expert (experts, to, from)"),
    op<CombineOp>("combine",
                  "rows (experts, batch, seq, hidden), places -> (batch, seq, hidden): the sum of "
                  "each token's rows"));

}  // namespace mw
