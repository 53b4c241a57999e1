// The options and blocks of a Llama-like decoder, from which Llama, the mixture-of-experts
// models and latent attention are put together.
#include "decoder.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {
namespace {

std::int64_t kv_heads(const Values& values) {
  return values.has("kv_heads") ? values.integer("kv_heads") : values.integer("heads");
}

}  // namespace

void add_decoder_options(Options& options) {
  options.integer("layers", "transformer layers").range(1, most_layers);
  options.integer("hidden", "width of the residual stream").at_least(1);
  options.integer("heads", "query heads; must divide hidden, unless head_dim is given")
      .range(1, most_heads);
  options.integer("kv_heads", "key and value heads; must divide heads, which they default to")
      .range(1, most_heads)
      .optional()
      .usual([](const Json& v) {
        return v["kv_heads"] == v.value("heads", Json()) && !v.contains("kv_lora_rank");
      });
  options.integer("head_dim", "width of a head; 0 or left out: hidden / heads")
      .at_least(0)
      .optional()
      .usual(is_usual_head_dim);
  options.integer("ffn", "width of the feed-forward part").at_least(1);
  options.integer("vocab", "size of the vocabulary").at_least(1).unit("tokens");
  options.boolean("tied", "the output projection is the embedding's weight").fallback(false);
  options.number("rope_theta", "base of the rotary angles").fallback(10000.0).at_least(1);
  options.integer("window", "tokens that a query sees, itself and those before it; left out: all")
      .at_least(1)
      .optional()
      .unit("tokens");
  options.number("norm_eps", "added to the mean square in RMSNorm").fallback(1e-5).at_least(0);
  add_attention_option(options);
}

void check_decoder(const Values& values, Problems& problems) {
  check_latent(values, problems);
  if (is_latent(values)) return;
  const std::int64_t width = check_heads(values, problems);
  if (width % 2 != 0 && says_head_dim(values)) {
    problems.add(Stage::options, "model.odd", "head_dim",
                 fmt::format("{} is odd; rotary positions turn the dims of a head in pairs", width),
                 fmt::format("nearest: head_dim = {}", width + 1));
  } else if (width % 2 != 0) {
    problems.add(
        Stage::options, "model.odd", "heads",
        fmt::format("hidden / heads = {} / {} = {} is odd; rotary positions "
                    "turn the dims of a head in pairs",
                    values.integer("hidden"), values.integer("heads"), width),
        fmt::format("make it even, e.g. hidden = {}", values.integer("heads") * (width + 1)));
  }
}

Decoder::Decoder(std::string family, const Values& values, std::int64_t batch,
                 std::int64_t sequence, std::int64_t tokens_per_step)
    : b(std::move(family), batch, sequence, tokens_per_step),
      eps_(values.number("norm_eps")),
      theta_(values.number("rope_theta")),
      window_(values.has("window") ? values.integer("window") : 0),
      tied_(values.flag("tied")),
      unfused_(is_unfused(values)) {
  b.graph.layers = values.int32("layers");
  b.decoder_dims(values.integer("vocab"), values.integer("hidden"), values.integer("heads"),
                 kv_heads(values), values.integer("ffn"),
                 values.has("head_dim") ? values.integer("head_dim") : 0);
  check_window(sequence);
  if (is_latent(values)) set_latent_dims(values);
}

// Refuses too many tiles: attention over a window is cut into tiles of queries (ops/blocks.h), each
// priced by itself.
void Decoder::check_window(std::int64_t sequence) const {
  constexpr std::int64_t tile = 512, most_tiles = 1 << 22;
  if (window_ == 0) return;
  const std::int64_t tiles = sequence / std::min(window_, tile) * b.graph.layers;
  if (tiles <= most_tiles) return;
  const std::int64_t nearest = (sequence * b.graph.layers + most_tiles - 1) / most_tiles;
  throw Error(Stage::options, "plan.size", "window",
              fmt::format("{} tokens of a sequence of {} are {} tiles in {} layers, "
                          "more than a plan can hold ({})",
                          window_, sequence, tiles, b.graph.layers, most_tiles),
              nearest <= tile
                  ? fmt::format("nearest: window = {}", nearest)
                  : fmt::format("a sequence of {} at most", most_tiles / b.graph.layers * tile));
}

int Decoder::embed() {
  const int x = b.embed({"model.embed_tokens.weight"});
  table_ = latent_ ? b.rope_table("rope", theta_, "rope_dim", RopePairs::neighbours)
                   : b.rope_table("rope", theta_, "head_dim");
  return x;
}

std::string Decoder::name() const {
  return "layers." + std::to_string(b.layer);
}
std::string Decoder::hf() const {
  return "model.layers." + std::to_string(b.layer);
}

int Decoder::linear(const std::string& op, int in, Dims dims, const std::string& theirs) {
  const int weight = b.parameter(op + ".weight", std::move(dims), normal_weights, {theirs});
  return b.linear(op, in, weight);
}

int Decoder::attention(int x) {
  const std::string op = name() + ".attention", theirs = hf() + ".self_attn.";
  int h = b.rms_norm(op + "_norm", x, {hf() + ".input_layernorm.weight"}, eps_);
  if (latent_) return b.add(op + "_add", x, latent_attention(op, theirs, h));
  int q = linear(op + ".q", h, {"heads", "head_dim", "hidden"}, theirs + "q_proj.weight");
  int k = linear(op + ".k", h, {"kv_heads", "head_dim", "hidden"}, theirs + "k_proj.weight");
  const int v = linear(op + ".v", h, {"kv_heads", "head_dim", "hidden"}, theirs + "v_proj.weight");
  q = b.rope(op + ".q_rope", q, table_);
  k = b.rope(op + ".k_rope", k, table_);
  h = b.attention(op, q, k, v, {window_}, unfused_);
  h = linear(op + ".o", h, {"hidden", "heads", "head_dim"}, theirs + "o_proj.weight");
  return b.add(op + "_add", x, h);
}

int Decoder::mlp_norm(int x) {
  return b.rms_norm(name() + ".mlp_norm", x, {hf() + ".post_attention_layernorm.weight"}, eps_);
}

int Decoder::mlp_add(int x, int branch) {
  return b.add(name() + ".mlp_add", x, branch);
}

int Decoder::swiglu_block(const std::string& op, const std::string& theirs, int h, Dim width) {
  const int gate = linear(op + ".gate", h, {width, "hidden"}, theirs + ".gate_proj.weight");
  const int up = linear(op + ".up", h, {width, "hidden"}, theirs + ".up_proj.weight");
  const int y = b.swiglu(op + ".swiglu", gate, up);
  return linear(op + ".down", y, {"hidden", width}, theirs + ".down_proj.weight");
}

void Decoder::head_and_loss(int x) {
  b.layer = b.graph.layers;
  x = b.rms_norm("norm", x, {"model.norm.weight"}, eps_);
  b.head_and_loss(x, tied_, {"lm_head.weight"});
}

}  // namespace mw
