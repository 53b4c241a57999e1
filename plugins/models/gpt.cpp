// The GPT-2 decoder [Radford et al. 2019]: LayerNorm before each block, learned positions, GELU,
// biases, tied embeddings.
#include <fmt/format.h>

#include <cmath>

#include "meshwright/builder.h"
#include "meshwright/hf_config.h"

#include "meshwright/model.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

const Init zeros{Init::Kind::zeros, 0};

class Gpt final : public Model, public HfModel {
 public:
  static Options options() {
    Options options;
    options.integer("layers", "transformer layers")
        .range(1, most_layers)
        .integer("hidden", "width of the residual stream")
        .at_least(1)
        .integer("heads", "attention heads; must divide hidden, unless head_dim is given")
        .range(1, most_heads)
        .integer("head_dim", "width of a head; 0 or left out: hidden / heads")
        .at_least(0)
        .optional()
        .usual(is_usual_head_dim)
        .integer("ffn", "width of the feed-forward part; 4 hidden by default")
        .at_least(1)
        .optional()
        .usual([](const Json& v) { return v["ffn"] == 4 * v.value("hidden", std::int64_t{0}); })
        .integer("vocab", "size of the vocabulary")
        .at_least(1)
        .unit("tokens")
        .integer("positions", "learned positions; the sequence length by default")
        .at_least(1)
        .optional()
        .unit("tokens")
        .boolean("tied", "the output projection is the embedding's weight")
        .fallback(true)
        .number("norm_eps", "added to the variance in LayerNorm")
        .fallback(1e-5)
        .at_least(0);
    add_attention_option(options);
    return options;
  }
  explicit Gpt(const Values& values) : values_(values) {
    Problems problems;
    check_heads(values, problems);
    problems.throw_if_any();
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }
  bool batch_is_a_size() const override { return true; }

  Graph build(std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    const Values& values = values_;
    const std::int64_t hidden = values.integer("hidden"), heads = values.integer("heads");
    const std::int64_t ffn = values.has("ffn") ? values.integer("ffn") : 4 * hidden;
    const std::int64_t positions = values.has("positions") ? values.integer("positions") : sequence;
    if (positions < sequence) {
      throw Error(
          Stage::options, "option.range", "positions",
          fmt::format("{} learned positions are fewer than sequence = {}", positions, sequence),
          fmt::format("positions = {} or more, or a shorter sequence", sequence));
    }
    const int layers = values.int32("layers");
    const double eps = values.number("norm_eps");
    Builder b("gpt", batch, sequence, tokens_per_step);
    b.graph.layers = layers;
    b.decoder_dims(values.integer("vocab"), hidden, heads, heads, ffn, head_width(values));
    b.dim("positions", positions, false, {}, "positions");
    const int embedding =
        b.parameter("embedding.weight", {"vocab", "hidden"}, normal_weights, {"wte.weight"});
    const int learned =
        b.parameter("positions.weight", {"positions", "hidden"}, normal_weights, {"wpe.weight"});
    int x = b.embedding("embedding", embedding);
    x = b.add_positions("add_positions", x, learned);
    // Projections into the residual stream start with smaller weights, by the square root of their
    // number, two in a layer.
    const Init residual{Init::Kind::normal, normal_weights.std / std::sqrt(2.0 * layers)};
    const bool unfused = is_unfused(values);
    for (b.layer = 0; b.layer < layers; ++b.layer) x = layer(b, x, residual, eps, unfused);
    b.layer = layers;
    x = b.layer_norm("norm", x, "ln_f", eps);
    const int head = values.flag("tied") ? embedding
                                         : b.parameter("head.weight", {"vocab", "hidden"},
                                                       normal_weights, {"lm_head.weight"});
    b.cross_entropy(b.linear("head", x, head));
    return std::move(b.graph);
  }

  HfConfig hf_config(std::int64_t sequence) const override {
    const std::int64_t hidden = values_.integer("hidden");
    const bool wide = values_.has("ffn") && values_.integer("ffn") != 4 * hidden;
    HfConfig config;
    config.types = {"gpt2"};
    config.architecture = "GPT2LMHeadModel";
    config.prefix = "transformer.";
    if (head_width(values_) * values_.integer("heads") != hidden)
      config.none = fmt::format("head_dim = {}, and GPT-2's heads are hidden / heads wide",
                                head_width(values_));
    config.keys = {
        {{"n_layer", "num_hidden_layers"}, values_.integer("layers"), "layers", 12},
        {{"n_embd", "hidden_size"}, hidden, "hidden", 768},
        {{"n_head", "num_attention_heads"}, values_.integer("heads"), "heads", 12},
        {{"n_inner"}, wide ? Json(values_.integer("ffn")) : Json(), "ffn", {}, {4 * hidden}},
        {{"vocab_size"}, values_.integer("vocab"), "vocab", 50257},
        {{"n_positions", "n_ctx"},
         values_.has("positions") ? values_.integer("positions") : sequence,
         "positions",
         1024},
        {{"layer_norm_epsilon"}, values_.number("norm_eps"), "norm_eps", 1e-5},
        {{"tie_word_embeddings"}, values_.flag("tied"), "tied", true},
        {{"activation_function"}, "gelu_new", "", "gelu_new", {"gelu_pytorch_tanh"}},
        {{"scale_attn_weights"}, true, "", true},
        {{"scale_attn_by_inverse_layer_idx"}, false, "", false}};
    config.more = {{"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"attn_pdrop", 0.0}};
    return config;
  }

 private:
  static int layer(Builder& b, int x, const Init& residual, double eps, bool unfused) {
    const std::string name = fmt::format("layers.{}", b.layer);
    const std::string hf = fmt::format("h.{}", b.layer);
    // GPT-2 stores its projections transposed, and q, k and v as one.
    const auto linear = [&](const std::string& op, int in, Dims dims, Dims out, const Init& init,
                            const std::string& theirs, int part = 0, int parts = 1) {
      const int weight = b.parameter(name + op + ".weight", std::move(dims), init,
                                     {hf + theirs + ".weight", true, part, parts});
      const int bias = b.parameter(name + op + ".bias", std::move(out), zeros,
                                   {hf + theirs + ".bias", false, part, parts});
      return b.linear(name + op, in, weight, bias);
    };
    const auto head = [&](const std::string& op, int in, int part) {
      return linear(op, in, {"heads", "head_dim", "hidden"}, {"heads", "head_dim"}, normal_weights,
                    ".attn.c_attn", part, 3);
    };
    int h = b.layer_norm(name + ".attention_norm", x, hf + ".ln_1", eps);
    const int q = head(".attention.q", h, 0);
    const int k = head(".attention.k", h, 1);
    const int v = head(".attention.v", h, 2);
    h = b.attention(name + ".attention", q, k, v, {}, unfused);
    h = linear(".attention.o", h, {"hidden", "heads", "head_dim"}, {"hidden"}, residual,
               ".attn.c_proj");
    x = b.add(name + ".attention_add", x, h);

    h = b.layer_norm(name + ".mlp_norm", x, hf + ".ln_2", eps);
    h = linear(".mlp.up", h, {"ffn", "hidden"}, {"ffn"}, normal_weights, ".mlp.c_fc");
    h = b.gelu(name + ".mlp.gelu", h);
    h = linear(".mlp.down", h, {"hidden", "ffn"}, {"hidden"}, residual, ".mlp.c_proj");
    return b.add(name + ".mlp_add", x, h);
  }

  const Values values_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(model<Gpt>("gpt", "GPT-2 decoder: LayerNorm, learned positions, GELU, biases"));

}  // namespace mw
