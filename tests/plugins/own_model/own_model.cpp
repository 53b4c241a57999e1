// A model and an op of one's own, as docs/models.md shows them: attention and MLP side by side,
// and the square of a ReLU.
#include "meshwright/kernel.h"
#include "meshwright/plugin.h"

namespace {

class SquaredRelu final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "squared_relu"; }
  std::vector<at::Tensor> compute(const mw::Op&, const mw::LocalDims&,
                                  const std::vector<at::Tensor>& in) const override {
    return {at::relu(in[0]).square()};
  }
};

int squared_relu(mw::Builder& b, const std::string& name, int x) {
  return b.append(b.op(name, std::make_shared<SquaredRelu>(), {b.use(x)}), {{"", b.dims(x)}})[0];
}

// Under a name for blocks: x:squared_relu().
class SquaredReluOp final : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {squared_relu(b, name, inputs[0])};
  }
};

class Parallel final : public mw::Model {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("layers", "transformer layers")
        .range(1, mw::most_layers)
        .integer("hidden", "width of the residual stream")
        .at_least(1)
        .integer("heads", "attention heads; must divide hidden")
        .range(1, mw::most_heads)
        .integer("ffn", "width of the feed-forward part")
        .at_least(1)
        .integer("vocab", "size of the vocabulary")
        .at_least(1);
  }
  explicit Parallel(const mw::Values& values) : values_(values) {
    mw::Problems problems;
    mw::check_heads(values, problems);
    problems.throw_if_any();
  }
  std::int64_t vocab() const override { return values_.integer("vocab"); }

  mw::Graph build(std::int64_t batch, std::int64_t sequence,
                  std::int64_t tokens_per_step) const override {
    mw::Builder b("parallel", batch, sequence, tokens_per_step);
    b.graph.layers = values_.int32("layers");
    const std::int64_t heads = values_.integer("heads");
    b.decoder_dims(vocab(), values_.integer("hidden"), heads, heads, values_.integer("ffn"));
    int x = b.embed();
    const std::vector<int> table = b.rope_table("rope", 10000, "head_dim");
    for (b.layer = 0; b.layer < b.graph.layers; ++b.layer) {
      const int h = b.rms_norm(b.name("norm"), x);
      x = b.add(b.name("mlp_add"), x, mlp(b, h));
      x = b.add(b.name("attention_add"), x, attention(b, h, table));
    }
    b.head_and_loss(b.rms_norm("norm", x));
    return std::move(b.graph);
  }

 private:
  static int mlp(mw::Builder& b, int h) {
    const int up = b.linear_to(b.name("mlp.up"), h, {"ffn"});
    return b.linear_to(b.name("mlp.down"), squared_relu(b, b.name("mlp.act"), up), {"hidden"});
  }
  static int heads(mw::Builder& b, const char* part, int h) {
    return b.linear_to(b.name(part), h, {"heads", "head_dim"});
  }
  static int attention(mw::Builder& b, int h, const std::vector<int>& table) {
    const int q = b.rope(b.name("q_rope"), heads(b, "q", h), table);
    const int k = b.rope(b.name("k_rope"), heads(b, "k", h), table);
    const int seen = b.attention(b.name("attention"), q, k, heads(b, "v", h));
    return b.linear_to(b.name("o"), seen, {"hidden"});
  }

  const mw::Values values_;
};

}  // namespace

MESHWRIGHT_PLUGIN("own_model", "1.0.0", "a model and an op that are not built in",
                  mw::model<Parallel>("parallel", "attention and MLP side by side"),
                  mw::op<SquaredReluOp>("squared_relu", "x -> the same dims: relu(x) squared"))
