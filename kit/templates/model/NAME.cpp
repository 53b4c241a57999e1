// The model @NAME@: a graph of ops over named dims. Strategies cut the dims; nothing here knows a
// rank.
#include "meshwright/kernel.h"
#include "meshwright/model.h"
#include "meshwright/plugin.h"

namespace {

// A decoder with RMSNorm, rotary positions and a feed-forward part of GELU, without biases.
class @CLASS@ : public mw::Model {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("layers", "transformer layers")
        .range(1, mw::most_layers)
        .integer("hidden", "width of the residual stream")
        .at_least(1)
        .integer("heads", "attention heads; must divide hidden into an even width")
        .range(1, mw::most_heads)
        .integer("ffn", "width of the feed-forward part")
        .at_least(1)
        .integer("vocab", "size of the vocabulary")
        .at_least(1)
        .unit("tokens");
  }
  explicit @CLASS@(const mw::Values& values) : values_(values) {
    mw::Problems problems;
    const std::int64_t width = mw::check_heads(values, problems);
    problems.throw_if_any();
    if (width % 2 == 0) return;
    throw mw::Error(mw::Stage::options, "@NAME@.odd", "heads",
                    "hidden / heads is odd; rotary positions turn the dims of a head in pairs",
                    "make it even");
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }

  mw::Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    const std::int64_t heads = values_.integer("heads");
    mw::Builder b("@NAME@", batch, sequence, tokens);
    b.decoder_dims(vocab(), values_.integer("hidden"), heads, heads, values_.integer("ffn"));
    b.graph.layers = values_.int32("layers");
    int x = b.embed();
    const std::vector<int> angles = b.rope_table("rope", 10000, "head_dim");
    for (b.layer = 0; b.layer < b.graph.layers; ++b.layer) x = layer(b, x, angles);
    b.layer = b.graph.layers;
    b.head_and_loss(b.rms_norm("norm", x));
    return std::move(b.graph);
  }

 private:
  static int layer(mw::Builder& b, int x, const std::vector<int>& angles) {
    int h = b.rms_norm(b.name("attention_norm"), x);
    const int q = b.rope(b.name("q_rope"), b.linear_to(b.name("q"), h, {"heads", "head_dim"}), angles);
    const int k =
        b.rope(b.name("k_rope"), b.linear_to(b.name("k"), h, {"kv_heads", "head_dim"}), angles);
    const int v = b.linear_to(b.name("v"), h, {"kv_heads", "head_dim"});
    h = b.linear_to(b.name("o"), b.attention(b.name("attention"), q, k, v), {"hidden"});
    x = b.add(b.name("attention_add"), x, h);
    h = b.linear_to(b.name("up"), b.rms_norm(b.name("mlp_norm"), x), {"ffn"});
    h = b.linear_to(b.name("down"), b.gelu(b.name("gelu"), h), {"hidden"});
    return b.add(b.name("mlp_add"), x, h);
  }

  mw::Values values_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "a decoder with rotary positions and GELU",
                  mw::model<@CLASS@>())
