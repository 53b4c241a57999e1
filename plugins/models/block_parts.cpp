// What blocks of mw.model call for in one word: attention with its projections, a feed-forward
// part, and experts.
#include <fmt/format.h>

#include "block_ops.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

class AttentionOp final : public BlockOp {
 public:
  static Options options() {
    Options options;
    options.text("heads", "the dim of the query heads").fallback("heads");
    options.text("kv_heads", "that of key and value heads").fallback("kv_heads");
    options.text("head_dim", "that of a head's width").fallback("head_dim");
    options.boolean("rope", "queries and keys are turned by their positions").fallback(true);
    options.number("theta", "base of the rotary angles").fallback(10000.0).at_least(1);
    options.integer("window", "tokens that a query sees, itself and those before it; left out: all")
        .at_least(1)
        .optional()
        .unit("tokens");
    add_weight_options(options);
    return options;
  }
  explicit AttentionOp(const Values& values)
      : values_(values),
        heads_(values.text("heads")),
        kv_heads_(values.text("kv_heads")),
        width_(values.text("head_dim")) {}

  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const int x = inputs[0];
    const bool bias = values_.flag("bias");
    const auto heads = [&](const char* part, Dim of) {
      return b.linear_to(name + part, x, {of, width_}, {}, bias, weights_of(values_));
    };
    int q = heads(".q", heads_), k = heads(".k", kv_heads_);
    const int v = heads(".v", kv_heads_);
    if (values_.flag("rope")) {
      const double theta = values_.number("theta");
      q = with_rope(b, name + ".q_rope", q, theta, RopePairs::halves);
      k = with_rope(b, name + ".k_rope", k, theta, RopePairs::halves);
    }
    const int seen =
        b.attention(name, q, k, v, values_.has("window") ? values_.integer("window") : 0);
    return {b.linear_to(name + ".o", seen, {b.dims(x).back()}, {}, bias, weights_of(values_))};
  }

 private:
  const Values values_;
  const Dim heads_, kv_heads_, width_;
};

class MlpOp final : public BlockOp {
 public:
  static Options options() {
    Options options;
    options.text("width", "its dim").fallback("ffn");
    options
        .choice("act", {"swiglu", "gelu"}, "SwiGLU of two linears (gate, up), or GELU of one (up)")
        .fallback("swiglu");
    add_weight_options(options);
    return options.positional("width");
  }
  explicit MlpOp(const Values& values) : values_(values), width_(values.text("width")) {}

  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const int x = inputs[0];
    const auto linear = [&](const char* part, int from, Dim to) {
      return b.linear_to(name + part, from, {to}, {}, values_.flag("bias"), weights_of(values_));
    };
    int h = -1;
    if (values_.text("act") == "swiglu") {
      const int gate = linear(".gate", x, width_), up = linear(".up", x, width_);
      h = b.swiglu(name + ".swiglu", gate, up);
    } else {
      h = b.gelu(name + ".gelu", linear(".up", x, width_));
    }
    return {linear(".down", h, b.dims(x).back())};
  }

 private:
  const Values values_;
  const Dim width_;
};

class ExpertsOp final : public BlockOp {
 public:
  static Options options() {
    Options options;
    options.integer("top_k", "experts that a token chooses").range(1, most_experts);
    options.text("width", "the dim of an expert's width").fallback("expert_ffn");
    options
        .number("capacity",
                "an expert takes at most so many times its even share of a sequence's choices; "
                "left out: all (dropless)")
        .range(1e-3, 1e6)
        .optional();
    options
        .choice("balance", {"aux", "bias", "none"},
                "how experts are kept even: a loss; a bias on the choice; not")
        .fallback("aux");
    options.number("aux_weight", "of the balancing loss").at_least(0).fallback(0.01);
    options.number("bias_rate", "of the bias, a step").at_least(0).fallback(0.001);
    options.choice("score", {"softmax", "sigmoid"}, "a token's affinity, from logits")
        .fallback("softmax");
    return options.positional("top_k");
  }
  explicit ExpertsOp(const Values& values) : width_(values.text("width")) {
    options_.top = values.integer("top_k");
    if (values.has("capacity")) options_.capacity = values.number("capacity");
    const std::string balance = values.text("balance");
    options_.balance = balance == "aux"    ? ExpertOptions::Balance::aux
                       : balance == "bias" ? ExpertOptions::Balance::bias
                                           : ExpertOptions::Balance::none;
    options_.aux_weight = values.number("aux_weight");
    options_.bias_rate = values.number("bias_rate");
    options_.router.score =
        values.text("score") == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax;
  }

  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    const auto size = [&](Dim dim) {
      if (b.graph.dims().count(dim) > 0) return b.graph.size(dim);
      throw Error(Stage::options, "model.dims", "",
                  fmt::format("{}: the model has no dim {}", name, dim.name()),
                  fmt::format("give dims {} = …", dim.name()));
    };
    const std::int64_t experts = size("experts");
    if (options_.top > experts) {
      throw Error(
          Stage::options, "option.range", "",
          fmt::format("{}: a token cannot choose {} of {} experts", name, options_.top, experts),
          fmt::format("top_k = {} at most", experts));
    }
    b.expert_dims(experts, options_, width_, size(width_));
    return {b.through_experts(name, b.route(name, inputs[0], options_), width_)};
  }

 private:
  const Dim width_;
  ExpertOptions options_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    op<AttentionOp>("attention",
                    "x (batch, seq, hidden) -> the same: q, k, v, rotary positions, causal "
                    "attention, and the projection back"));
MESHWRIGHT_BUILT_IN(op<MlpOp>("mlp",
                              "x (…, hidden) -> the same: to its width, an activation, and back"));
MESHWRIGHT_BUILT_IN(
    op<ExpertsOp>("experts",
                  "x (batch, seq, hidden) -> the same: each token through the experts that it "
                  "chooses; of the dims experts and expert_ffn"));

}  // namespace mw
