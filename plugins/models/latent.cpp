// Multi-head latent attention [DeepSeek-AI 2024, "DeepSeek-V2", section 2.1; "DeepSeek-V3", section
// 2.1.1]: queries are made from a narrow latent, keys and values from another. A part of each head
// is turned by rotary positions; for keys, all heads share that part, which is projected straight
// from the residual stream. Options and parameters are named as in DeepSeek's configuration and
// checkpoints.
#include <fmt/format.h>

#include "decoder.h"

namespace mw {
namespace {

constexpr const char* needed[] = {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};

}  // namespace

void add_latent_options(Options& options) {
  options
      .integer("kv_lora_rank",
               "latent attention: width of the latent that keys and values of all heads are made "
               "from; left out: grouped attention")
      .at_least(1)
      .optional();
  options
      .integer("q_lora_rank",
               "width of the latent that queries are made from; left out: from the stream")
      .at_least(1)
      .optional();
  options
      .integer("qk_nope_head_dim",
               "width of the part of a query or key head that has no rotary positions")
      .at_least(1)
      .optional();
  options
      .integer("qk_rope_head_dim",
               "width of the part with rotary positions; all heads share that part of the keys")
      .at_least(2)
      .optional();
  options.integer("v_head_dim", "width of a value head").at_least(1).optional();
}

bool is_latent(const Values& values) {
  return values.has("kv_lora_rank");
}

void check_latent(const Values& values, Problems& problems) {
  if (!is_latent(values)) {
    for (const char* key : {"q_lora_rank", needed[0], needed[1], needed[2]}) {
      if (!values.has(key)) continue;
      problems.add(Stage::options, "option.needs", key,
                   "is for latent attention, and there is no kv_lora_rank",
                   "give kv_lora_rank too, or leave it out");
    }
    return;
  }
  for (const char* key : needed) {
    if (values.has(key)) continue;
    problems.add(Stage::options, "option.missing", key, "missing beside kv_lora_rank",
                 "DeepSeek-V3 has qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128");
  }
  if (values.has("head_dim")) {
    problems.add(Stage::options, "option.conflict", "head_dim",
                 "latent attention has widths of its own for queries, keys and values",
                 "leave head_dim or kv_lora_rank out");
  }
  if (values.has("kv_heads")) {
    problems.add(Stage::options, "option.conflict", "kv_heads",
                 "latent attention has a key for every head", "leave kv_heads or kv_lora_rank out");
  }
  if (values.has("qk_rope_head_dim") && values.integer("qk_rope_head_dim") % 2 != 0) {
    problems.add(Stage::options, "model.odd", "qk_rope_head_dim",
                 fmt::format("{} is odd; rotary positions turn the dims of a head in pairs",
                             values.integer("qk_rope_head_dim")),
                 "make it even");
  }
}

void Decoder::set_latent_dims(const Values& values) {
  const std::int64_t rank = values.integer("kv_lora_rank"),
                     plain = values.integer("qk_nope_head_dim"),
                     turned = values.integer("qk_rope_head_dim"),
                     value = values.integer("v_head_dim");
  latent_ = true;
  q_latent_ = values.has("q_lora_rank");
  if (q_latent_) b.dim("q_rank", values.integer("q_lora_rank"), true, {}, "q_lora_rank");
  b.dim("kv_rank", rank, true, {}, "kv_lora_rank");
  b.dim("rope_dim", turned, true, {}, "qk_rope_head_dim");
  b.dim("latent", rank + turned, true, {}, "kv_lora_rank + qk_rope_head_dim");
  b.dim("qk_dim", plain + turned, true, {}, "qk_nope_head_dim + qk_rope_head_dim");
  b.dim("kv_dim", plain + value, true, {}, "qk_nope_head_dim + v_head_dim");
  b.dim("value_dim", value, true, {}, "v_head_dim");
}

int Decoder::latent_attention(const std::string& op, const std::string& theirs, int h) {
  int q = h;
  if (q_latent_) {
    q = linear(op + ".q_down", h, {"q_rank", "hidden"}, theirs + "q_a_proj.weight");
    q = b.rms_norm(op + ".q_norm", q, {theirs + "q_a_layernorm.weight"}, eps_);
    q = linear(op + ".q", q, {"heads", "qk_dim", "q_rank"}, theirs + "q_b_proj.weight");
  } else {
    q = linear(op + ".q", h, {"heads", "qk_dim", "hidden"}, theirs + "q_proj.weight");
  }
  q = b.rope(op + ".q_rope", q, table_, RopePairs::neighbours);
  const int down =
      linear(op + ".kv_down", h, {"latent", "hidden"}, theirs + "kv_a_proj_with_mqa.weight");
  auto [latent, turned] = b.split(op + ".kv_split", down, "kv_rank", "rope_dim");
  turned = b.rope(op + ".k_rope", turned, table_, RopePairs::neighbours);
  latent = b.rms_norm(op + ".kv_norm", latent, {theirs + "kv_a_layernorm.weight"}, eps_);
  const int kv =
      linear(op + ".kv", latent, {"heads", "kv_dim", "kv_rank"}, theirs + "kv_b_proj.weight");
  const auto [k, v] = b.latent_keys(op + ".keys", kv, turned, "qk_dim", "value_dim");
  h = b.attention(op, q, k, v, {window_}, unfused_);
  return linear(op + ".o", h, {"hidden", "heads", "value_dim"}, theirs + "o_proj.weight");
}

}  // namespace mw
