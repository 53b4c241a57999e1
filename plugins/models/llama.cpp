// The Llama decoder [Touvron et al. 2023].
#include <utility>

#include "decoder.h"

#include "meshwright/model.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

class Llama final : public Model, public HfModel {
 public:
  static Options options() {
    Options options;
    add_decoder_options(options);
    return options;
  }
  explicit Llama(const Values& values) : values_(values) {
    Problems problems;
    check_decoder(values, problems);
    problems.throw_if_any();
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }
  bool batch_is_a_size() const override { return true; }

  Graph build(std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    Decoder d("llama", values_, batch, sequence, tokens_per_step);
    int x = d.embed();
    for (d.b.layer = 0; d.b.layer < d.b.graph.layers; ++d.b.layer) {
      x = d.attention(x);
      const int h = d.swiglu_block(d.name() + ".mlp", d.hf() + ".mlp", d.mlp_norm(x), "ffn");
      x = d.mlp_add(x, h);
    }
    d.head_and_loss(x);
    return std::move(d.b.graph);
  }

  HfConfig hf_config(std::int64_t sequence) const override {
    HfConfig config = hf_decoder(values_, sequence);
    const bool window = values_.has("window");
    config.types = {"llama", "mistral"};
    if (window) std::swap(config.types[0], config.types[1]);
    config.architecture = window ? "MistralForCausalLM" : "LlamaForCausalLM";
    config.keys.push_back({{"intermediate_size"}, values_.integer("ffn"), "ffn"});
    config.keys.push_back({{"mlp_bias"}, false, "", false});
    return config;
  }

 private:
  const Values values_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(model<Llama>("llama",
                                 "Llama decoder: RMSNorm, rotary positions, SwiGLU, no bias"));

}  // namespace mw
