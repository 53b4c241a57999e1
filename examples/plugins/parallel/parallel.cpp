// A decoder whose attention and feed-forward layers stand side by side, as in GPT-J and PaLM
// (Chowdhery et al. 2022): one norm, two branches of it, one sum. tp then adds up both branches in
// one all-reduce where a Llama layer needs two, since a sum of two Partial values is Partial.
#include "meshwright/kernel.h"
#include "meshwright/model.h"
#include "meshwright/plugin.h"

namespace {

class Parallel : public mw::Model {
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
        .unit("tokens")
        .boolean("tied", "the output projection is the embedding's weight")
        .fallback(true);
  }
  explicit Parallel(const mw::Values& values) : values_(values) {
    mw::Problems problems;
    const std::int64_t width = mw::check_heads(values, problems);
    problems.throw_if_any();
    if (width % 2 == 0) return;
    throw mw::Error(mw::Stage::options, "parallel.odd", "heads",
                    "hidden / heads is odd; rotary positions turn the dims of a head in pairs",
                    "make it even");
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }

  mw::Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    const std::int64_t heads = values_.integer("heads");
    mw::Builder b("parallel", batch, sequence, tokens);
    b.decoder_dims(vocab(), values_.integer("hidden"), heads, heads, values_.integer("ffn"));
    b.graph.layers = values_.int32("layers");
    int x = b.embed();
    const std::vector<int> angles = b.rope_table("rope", 10000, "head_dim");
    for (b.layer = 0; b.layer < b.graph.layers; ++b.layer) x = layer(b, x, angles);
    b.layer = b.graph.layers;
    b.head_and_loss(b.rms_norm("norm", x), values_.flag("tied"));
    return std::move(b.graph);
  }

 private:
  static int layer(mw::Builder& b, int x, const std::vector<int>& angles) {
    const int h = b.rms_norm(b.name("norm"), x);
    const int q = b.linear_to(b.name("q"), h, {"heads", "head_dim"});
    const int k = b.linear_to(b.name("k"), h, {"kv_heads", "head_dim"});
    const int v = b.linear_to(b.name("v"), h, {"kv_heads", "head_dim"});
    const int seen = b.attention(b.name("attention"), b.rope(b.name("q_rope"), q, angles),
                                 b.rope(b.name("k_rope"), k, angles), v);
    const int attention = b.linear_to(b.name("o"), seen, {"hidden"});
    const int up = b.swiglu(b.name("swiglu"), b.linear_to(b.name("gate"), h, {"ffn"}),
                            b.linear_to(b.name("up"), h, {"ffn"}));
    const int mlp = b.linear_to(b.name("down"), up, {"hidden"});
    return b.add(b.name("sum"), x, b.add(b.name("branches"), attention, mlp));
  }

  mw::Values values_;
};

}  // namespace

MESHWRIGHT_PLUGIN("parallel", "1.0.0", "a decoder with attention and MLP side by side (PaLM)",
                  mw::model<Parallel>())
