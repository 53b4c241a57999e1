// The Llama decoder [Touvron et al. 2023].
#include "model/decoder.h"
#include "model/kinds.h"

namespace mw {
namespace {

class Llama final : public ModelKind {
 public:
  Llama() { add_decoder_options(options_); }

  std::string name() const override { return "llama"; }
  std::string doc() const override {
    return "Llama decoder: RMSNorm, rotary positions, SwiGLU, no bias";
  }
  const Options& options() const override { return options_; }

  void check(const Values& values, const std::string& path, Problems& problems) const override {
    check_decoder(values, path, problems);
  }

  Graph build(const Values& values, std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    Decoder d("llama", values, batch, sequence);
    int x = d.embed();
    for (d.b.layer = 0; d.b.layer < d.b.graph.layers; ++d.b.layer) {
      x = d.attention(x);
      const int h = d.swiglu_block(d.name() + ".mlp", d.hf() + ".mlp", d.mlp_norm(x), "ffn");
      x = d.mlp_add(x, h);
    }
    d.head_and_loss(x, tokens_per_step);
    return std::move(d.b.graph);
  }

 private:
  Options options_;
};

}  // namespace

const ModelKind& llama_kind() {
  static const Llama kind;
  return kind;
}

}  // namespace mw
