// The Llama decoder [Touvron et al. 2023]: RMSNorm before each block, rotary positions, grouped
// key heads, SwiGLU, no bias.
#include "model/kinds.h"

#include <fmt/format.h>

#include "model/builder.h"

namespace mw {
namespace {

const Init weights{Init::Kind::normal, 0.02};

class Llama final : public ModelKind {
 public:
  Llama() {
    options_.integer("layers", "transformer layers").at_least(1);
    options_.integer("hidden", "width of the residual stream").at_least(1);
    options_.integer("heads", "query heads; must divide hidden").at_least(1);
    options_.integer("kv_heads", "key and value heads; must divide heads, which they default to")
        .at_least(1)
        .optional();
    options_.integer("ffn", "width of the feed-forward part").at_least(1);
    options_.integer("vocab", "size of the vocabulary").at_least(1).unit("tokens");
    options_.boolean("tied", "the output projection is the embedding's weight").fallback(false);
    options_.number("rope_theta", "base of the rotary angles").fallback(10000.0).at_least(1);
    options_.number("norm_eps", "added to the mean square in RMSNorm").fallback(1e-5).at_least(0);
  }

  std::string name() const override { return "llama"; }
  std::string doc() const override {
    return "Llama decoder: RMSNorm, rotary positions, SwiGLU, no bias";
  }
  const Options& options() const override { return options_; }

  void check(const Values& values, const std::string& path, Problems& problems) const override {
    const std::int64_t width = check_heads(values, path, problems);
    if (width % 2 != 0) {
      problems.add(
          Stage::options,
          fmt::format("{}.heads: hidden / heads = {} / {} = {} is odd; rotary positions "
                      "turn the dims of a head in pairs",
                      path, values.integer("hidden"), values.integer("heads"), width),
          fmt::format("make it even, e.g. hidden = {}", values.integer("heads") * (width + 1)));
    }
  }

  Graph build(const Values& values, std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    const std::int64_t heads = values.integer("heads");
    const std::int64_t kv_heads = values.has("kv_heads") ? values.integer("kv_heads") : heads;
    const int layers = static_cast<int>(values.integer("layers"));
    const double eps = values.number("norm_eps");
    Builder b("llama", batch, sequence, values.integer("vocab"), values.integer("hidden"), heads,
              kv_heads, values.integer("ffn"));
    b.graph.layers = layers;
    const int embedding = b.parameter("embedding.weight", {"vocab", "hidden"}, weights,
                                      {"model.embed_tokens.weight"});
    int x = b.embedding("embedding", embedding);
    const std::vector<int> table = b.rope_table("rope", values.number("rope_theta"));
    for (b.layer = 0; b.layer < layers; ++b.layer) x = layer(b, x, table, eps);
    b.layer = layers;
    x = b.rms_norm("norm", x, {"model.norm.weight"}, eps);
    const int head = values.flag("tied") ? embedding
                                         : b.parameter("head.weight", {"vocab", "hidden"}, weights,
                                                       {"lm_head.weight"});
    b.cross_entropy(b.linear("head", x, head), tokens_per_step);
    return std::move(b.graph);
  }

 private:
  static int layer(Builder& b, int x, const std::vector<int>& table, double eps) {
    const std::string name = fmt::format("layers.{}", b.layer);
    const std::string hf = fmt::format("model.layers.{}", b.layer);
    const auto linear = [&](const std::string& op, int in, Dims dims, const std::string& theirs) {
      const int weight =
          b.parameter(name + op + ".weight", std::move(dims), weights, {hf + theirs + ".weight"});
      return b.linear(name + op, in, weight);
    };
    int h = b.rms_norm(name + ".attention_norm", x, {hf + ".input_layernorm.weight"}, eps);
    int q = linear(".attention.q", h, {"heads", "head_dim", "hidden"}, ".self_attn.q_proj");
    int k = linear(".attention.k", h, {"kv_heads", "head_dim", "hidden"}, ".self_attn.k_proj");
    int v = linear(".attention.v", h, {"kv_heads", "head_dim", "hidden"}, ".self_attn.v_proj");
    q = b.rope(name + ".attention.q_rope", q, table);
    k = b.rope(name + ".attention.k_rope", k, table);
    h = b.attention(name + ".attention", q, k, v);
    h = linear(".attention.o", h, {"hidden", "heads", "head_dim"}, ".self_attn.o_proj");
    x = b.add(name + ".attention_add", x, h);

    h = b.rms_norm(name + ".mlp_norm", x, {hf + ".post_attention_layernorm.weight"}, eps);
    const int gate = linear(".mlp.gate", h, {"ffn", "hidden"}, ".mlp.gate_proj");
    const int up = linear(".mlp.up", h, {"ffn", "hidden"}, ".mlp.up_proj");
    h = b.swiglu(name + ".mlp.swiglu", gate, up);
    h = linear(".mlp.down", h, {"hidden", "ffn"}, ".mlp.down_proj");
    return b.add(name + ".mlp_add", x, h);
  }

  Options options_;
};

}  // namespace

const ModelKind& llama_kind() {
  static const Llama kind;
  return kind;
}

}  // namespace mw
