// Decoders with experts: Mixtral [Jiang et al. 2024], and DeepSeek's fine-grained and shared
// experts, leading dense layers and balance by a bias [Dai et al. 2024; DeepSeek-AI 2024]. Tokens'
// choices and all losses are defined for each token or sequence, so that neither microbatches nor
// the mix of strategies change them.
#include <fmt/format.h>

#include "decoder.h"

#include "meshwright/model.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

// The names of a layer's experts in a checkpoint: DeepSeek's where the model has what only
// DeepSeek's models have, else Mixtral's.
ExpertNames names_of(const Values& values, const std::string& layer) {
  const bool deepseek = values.integer("shared_experts") > 0 ||
                        values.integer("dense_layers") > 0 || values.text("score") == "sigmoid";
  const std::string block = layer + (deepseek ? ".mlp" : ".block_sparse_moe");
  const auto expert = [&](const char* theirs, const char* mixtral) {
    HfName name{block + ".experts.{}." + (deepseek ? theirs : mixtral) + ".weight"};
    name.apart = true;
    return name;
  };
  HfName bias{block + ".gate.e_score_correction_bias"};
  bias.optional = true;
  return {{block + ".gate.weight"},
          bias,
          expert("gate_proj", "w1"),
          expert("up_proj", "w3"),
          expert("down_proj", "w2")};
}

ExpertOptions expert_options(const Values& values) {
  ExpertOptions options;
  options.router.score =
      values.text("score") == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax;
  options.router.normalise = values.flag("normalise");
  options.router.scale = values.number("scale");
  options.top = values.integer("top_k");
  if (values.has("capacity")) options.capacity = values.number("capacity");
  const std::string balance = values.text("balance");
  options.balance = balance == "aux"    ? ExpertOptions::Balance::aux
                    : balance == "bias" ? ExpertOptions::Balance::bias
                                        : ExpertOptions::Balance::none;
  options.aux_weight = values.number("aux_weight");
  options.bias_rate = values.number("bias_rate");
  options.z_weight = values.number("z_weight");
  return options;
}

class Moe final : public Model, public HfModel {
 public:
  static Options options() {
    Options options;
    add_decoder_options(options);
    add_latent_options(options);
    options.integer("experts", "experts of a layer").range(1, most_experts);
    options.integer("top_k", "experts that a token chooses").range(1, most_experts);
    options.integer("expert_ffn", "width of an expert; default ffn")
        .at_least(1)
        .optional()
        .usual([](const Json& v) { return v["expert_ffn"] == v.value("ffn", Json()); });
    options
        .integer("shared_experts", "experts that every token goes through, as one of their width")
        .at_least(0)
        .fallback(0);
    options.integer("dense_layers", "leading layers without experts, of width ffn")
        .at_least(0)
        .fallback(0);
    options
        .number(
            "capacity",
            "an expert takes at most so many times its even share of a sequence's choices, earlier "
            "positions first; left out: all (dropless)")
        .range(1e-3, 1e6)
        .optional();
    options
        .choice("balance", {"aux", "bias", "none"},
                "how the load of experts is balanced: by a loss of each sequence's choices; by a "
                "bias on the choice that moves against the load of each step; not at all")
        .fallback("aux");
    options.number("aux_weight", "factor of the balancing loss").at_least(0).fallback(0.01);
    options.number("bias_rate", "change of a bias in a step").at_least(0).fallback(0.001);
    options.number("z_weight", "factor of a loss that keeps router logits small")
        .at_least(0)
        .fallback(0.0);
    options
        .choice("score", {"softmax", "sigmoid"}, "a token's affinity to the experts, from logits")
        .fallback("softmax");
    options.boolean("normalise", "the weights of a token's experts sum to one (times scale)")
        .fallback(true);
    options.number("scale", "factor of the experts' weights").fallback(1.0);
    return options;
  }
  explicit Moe(const Values& values) : values_(values) {
    Problems problems;
    check_decoder(values, problems);
    const std::int64_t experts = values.integer("experts"), top = values.integer("top_k");
    if (top > experts) {
      problems.add(Stage::options, "option.range", "top_k",
                   fmt::format("a token cannot choose {} of {} experts", top, experts),
                   fmt::format("top_k = {} at most", experts));
    }
    const std::int64_t layers = values.integer("layers"), dense = values.integer("dense_layers");
    if (dense >= layers) {
      problems.add(Stage::options, "option.range", "dense_layers",
                   fmt::format("{} of {} layers are dense: none has experts", dense, layers),
                   fmt::format("dense_layers = {} at most, or mw.llama", layers - 1));
    }
    problems.throw_if_any();
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }
  bool batch_is_a_size() const override { return true; }

  Graph build(std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    const Values& values = values_;
    Decoder d("moe", values, batch, sequence, tokens_per_step);
    const std::int64_t width = values.integer(values.has("expert_ffn") ? "expert_ffn" : "ffn");
    const std::int64_t shared = values.integer("shared_experts");
    const ExpertOptions options = expert_options(values);
    d.b.expert_dims(values.integer("experts"), options, "expert_ffn", width);
    if (shared > 0) {
      d.b.dim("shared_ffn", shared * width, false, {}, "shared_experts x width of an expert");
    }
    int x = d.embed();
    for (d.b.layer = 0; d.b.layer < d.b.graph.layers; ++d.b.layer) {
      x = d.attention(x);
      const int h = d.mlp_norm(x);
      if (d.b.layer < values.integer("dense_layers")) {
        x = d.mlp_add(x, d.swiglu_block(d.name() + ".mlp", d.hf() + ".mlp", h, "ffn"));
        continue;
      }
      const ExpertNames names = names_of(values, d.hf());
      const Builder::Routed routed = d.b.route(d.name(), h, options, names);
      // Between dispatch and experts, so that shared experts compute while tokens are on their way.
      const int beside = shared == 0
                             ? -1
                             : d.swiglu_block(d.name() + ".shared", d.hf() + ".mlp.shared_experts",
                                              h, "shared_ffn");
      x = d.mlp_add(x, d.b.through_experts(d.name(), routed, "expert_ffn", names));
      if (beside >= 0) x = d.b.add(d.name() + ".shared_add", x, beside);
    }
    d.head_and_loss(x);
    return std::move(d.b.graph);
  }

  HfConfig hf_config(std::int64_t sequence) const override {
    HfConfig config = hf_decoder(values_, sequence);
    hf_experts(values_, config);
    return config;
  }

 private:
  const Values values_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(model<Moe>(
    "moe", "Llama decoder with experts: top-k router, shared experts, dense leading layers"));

}  // namespace mw
