// The keys of config.json for Llama-like decoders, for latent attention and for experts.
#include <fmt/format.h>

#include "decoder.h"

namespace mw {

namespace {

// Defaults of the configuration classes of transformers 5.23, without those that tensors' shapes
// show.
Json defaults_by_type() {
  return {{"llama", {{"num_attention_heads", 32}}},
          {"mistral",
           {{"num_attention_heads", 32}, {"num_key_value_heads", 8}, {"sliding_window", 4096}}},
          {"mixtral",
           {{"num_attention_heads", 32},
            {"num_key_value_heads", 8},
            {"rms_norm_eps", 1e-5},
            {"rope_parameters.rope_theta", 1e6},
            {"num_experts_per_tok", 2}}},
          {"deepseek_v2", {{"num_attention_heads", 32}}},
          {"deepseek_v3",
           {{"num_attention_heads", 128},
            {"num_key_value_heads", 128},
            {"num_experts_per_tok", 8},
            {"n_group", 8},
            {"topk_group", 4},
            {"routed_scaling_factor", 2.5}}},
          {"glm4_moe",
           {{"num_attention_heads", 96},
            {"num_key_value_heads", 8},
            {"rms_norm_eps", 1e-5},
            {"num_experts_per_tok", 8}}}};
}

}  // namespace

HfConfig hf_decoder(const Values& values, std::int64_t sequence) {
  HfConfig config;
  config.absent = defaults_by_type();
  const std::int64_t heads = values.integer("heads"), hidden = values.integer("hidden");
  const bool latent = is_latent(values);
  const std::int64_t kv_heads = values.has("kv_heads") ? values.integer("kv_heads") : heads;
  const std::int64_t head_dim = latent ? values.integer("qk_rope_head_dim") : head_width(values);
  const bool plain = latent || head_dim == hidden / heads;
  config.keys = {
      {{"num_hidden_layers"}, values.integer("layers"), "layers"},
      {{"hidden_size"}, hidden, "hidden"},
      {{"num_attention_heads"}, heads, "heads"},
      {{"num_key_value_heads"}, kv_heads, "kv_heads", heads},
      // Null in a file means hidden / heads; in latent attention it means whatever is right.
      {{"head_dim"},
       head_dim,
       latent ? "qk_rope_head_dim" : "head_dim",
       latent ? head_dim : hidden / heads,
       plain ? std::vector<Json>{nullptr} : std::vector<Json>{}},
      {{"vocab_size"}, values.integer("vocab"), "vocab"},
      {{"rms_norm_eps"}, values.number("norm_eps"), "norm_eps", 1e-6},
      {{"rope_parameters.rope_theta", "rope_theta"},
       values.number("rope_theta"),
       "rope_theta",
       10000.0},
      {{"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"},
       "default",
       "",
       "default"},
      {{"tie_word_embeddings"}, values.flag("tied"), "tied", false},
      {{"hidden_act"}, "silu", "", "silu", {"swish"}},
      {{"attention_bias"}, false, "", false},
      {{"sliding_window"},
       values.has("window") ? Json(values.integer("window")) : Json(),
       "window"},
  };
  config.more = {{"max_position_embeddings", sequence},
                 // rope_theta where transformers before version 5 look for it.
                 {"rope_theta", values.number("rope_theta")}};
  return config;
}

void add_hf_latent(const Values& values, HfConfig& config) {
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    config.keys.push_back({{key}, values.integer(key), key});
  config.keys.push_back({{"q_lora_rank"},
                         values.has("q_lora_rank") ? Json(values.integer("q_lora_rank")) : Json(),
                         "q_lora_rank"});
  config.keys.push_back({{"rope_interleave"}, true, "", true});
  // transformers uses this epsilon in the norms of latents, whatever rms_norm_eps is.
  constexpr double latent_eps = 1e-6;
  if (values.number("norm_eps") != latent_eps) {
    config.none = fmt::format(
        "norm_eps = {}, and its norms of latents have {} always; train with norm_eps = {}",
        values.number("norm_eps"), latent_eps, latent_eps);
  }
}

void hf_experts(const Values& values, HfConfig& config) {
  const std::int64_t width = values.integer(values.has("expert_ffn") ? "expert_ffn" : "ffn");
  const std::int64_t shared = values.integer("shared_experts"),
                     dense = values.integer("dense_layers");
  const bool sigmoid = values.text("score") == "sigmoid", latent = is_latent(values);
  const bool deepseek = shared > 0 || dense > 0 || sigmoid;
  const auto key = [&](const char* name, Json value, const char* option, Json absent = {}) {
    config.keys.push_back({{name}, std::move(value), option, std::move(absent)});
  };
  const auto lacks = [&](bool it, const std::string& why) {
    if (it && config.none.empty()) config.none = why;
  };
  if (latent) add_hf_latent(values, config);
  key("num_experts_per_tok", values.integer("top_k"), "top_k");
  if (!deepseek) {
    config.types = {"mixtral"};
    config.architecture = "MixtralForCausalLM";
    config.lacks_optional = true;
    config.keys.push_back(
        {{"num_local_experts", "num_experts"}, values.integer("experts"), "experts", 8});
    key("intermediate_size", width, values.has("expert_ffn") ? "expert_ffn" : "ffn");
    // In transformers, the balancing loss is the mean over layers of a sum over a token's choices.
    const double layers = static_cast<double>(values.integer("layers")),
                 top = static_cast<double>(values.integer("top_k"));
    config.more["router_aux_loss_coef"] =
        values.text("balance") == "aux" ? values.number("aux_weight") * layers / top : 0.0;
    lacks(latent, "Mixtral has no latent attention (kv_lora_rank)");
    lacks(!values.flag("normalise"),
          "Mixtral's weights of experts sum to one (normalise = false here)");
    lacks(values.number("scale") != 1,
          fmt::format("Mixtral has no scale of experts ({} here)", values.number("scale")));
    lacks(values.text("balance") == "bias",
          "Mixtral chooses without a bias (balance = \"bias\" here)");
    return;
  }
  key("intermediate_size", values.integer("ffn"), "ffn");
  key("moe_intermediate_size", width, values.has("expert_ffn") ? "expert_ffn" : "ffn");
  config.keys.push_back(
      {{"n_routed_experts", "num_local_experts"}, values.integer("experts"), "experts"});
  key("n_shared_experts", shared, "shared_experts");
  key("first_k_dense_replace", dense, "dense_layers");
  key("routed_scaling_factor", values.number("scale"), "scale", 1.0);
  config.more["num_nextn_predict_layers"] = 0;
  lacks(shared == 0, "its models of this kind have shared experts");
  lacks(values.has("window"), "its models with shared experts have no window");
  if (sigmoid) {
    key("norm_topk_prob", values.flag("normalise"), "normalise", true);
    // There is no choice within groups of experts here; one group means that there are none.
    key("n_group", 1, "");
    key("topk_group", 1, "");
    config.types = {latent ? "deepseek_v3" : "glm4_moe"};
    config.architecture = latent ? "DeepseekV3ForCausalLM" : "Glm4MoeForCausalLM";
    if (!latent) {
      config.keys.push_back(
          {{"rope_parameters.partial_rotary_factor", "partial_rotary_factor"}, 1.0, "", 0.5});
      config.keys.push_back({{"use_qk_norm"}, false, "", false});
    }
    return;
  }
  config.types = {"deepseek_v2"};
  config.architecture = "DeepseekV2ForCausalLM";
  config.lacks_optional = true;
  config.keys.push_back({{"topk_method"}, "greedy", "", "greedy"});
  lacks(!latent,
        "experts by softmax beside shared ones or dense layers come with latent attention there "
        "(kv_lora_rank)");
  lacks(values.flag("normalise"),
        "its weights of such experts do not sum to one (normalise = false)");
  lacks(values.text("balance") == "bias",
        "it chooses such experts without a bias (balance = \"bias\" here)");
}

}  // namespace mw
