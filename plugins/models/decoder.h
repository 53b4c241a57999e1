// The parts of Llama's decoder that other model kinds take over: RMSNorm before each block, rotary
// positions, grouped key heads, SwiGLU, no bias [Touvron et al. 2023].
#pragma once

#include <string>
#include <vector>

#include "meshwright/builder.h"
#include "meshwright/hf_config.h"
#include "meshwright/options.h"

namespace mw {

// Adds the decoder's options: layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied,
// rope_theta, window, norm_eps, attention.
void add_decoder_options(Options& options);
// Adds latent attention's options, in place of grouped attention's: q_lora_rank, kv_lora_rank,
// qk_nope_head_dim, qk_rope_head_dim, v_head_dim, the names of DeepSeek's configuration. For kinds
// that want it, after add_decoder_options().
void add_latent_options(Options& options);
bool is_latent(const Values& values);
void check_latent(const Values& values, Problems& problems);
// Checks the number and the width of heads, or the options of latent attention.
void check_decoder(const Values& values, Problems& problems);

// The keys of config.json that all Llama-like decoders share, whatever their feed-forward part:
// sizes, heads, rotary positions, tied or not.
HfConfig hf_decoder(const Values& values, std::int64_t sequence);
// Adds the keys of config.json for latent attention.
void add_hf_latent(const Values& values, HfConfig& config);
// Sets the architecture of a decoder with experts, with grouped or latent attention, and adds its
// keys.
void hf_experts(const Values& values, HfConfig& config);

class Decoder {
 public:
  // The arguments after `values` are Model::build's.
  Decoder(std::string family, const Values& values, std::int64_t batch, std::int64_t sequence,
          std::int64_t tokens_per_step);

  int embed();
  // The parts of layer `b.layer`: x plus its attention; the norm before the feed-forward part; x
  // plus `branch`.
  int attention(int x);
  int mlp_norm(int x);
  int mlp_add(int x, int branch);
  // The feed-forward part (gate, up, down) of this width; `name`, `hf`: what its parameters' names
  // begin with.
  int swiglu_block(const std::string& name, const std::string& hf, int h, Dim width);
  void head_and_loss(int x);
  std::string name() const;  // "layers.3"
  std::string hf() const;    // "model.layers.3"

  Builder b;

 private:
  void check_window(std::int64_t sequence) const;
  void set_latent_dims(const Values& values);
  int latent_attention(const std::string& op, const std::string& theirs, int h);
  int linear(const std::string& op, int in, Dims dims, const std::string& theirs);

  const double eps_, theta_;
  const std::int64_t window_;
  const bool tied_, unfused_;
  bool latent_ = false, q_latent_ = false;
  std::vector<int> table_;
};

}  // namespace mw
