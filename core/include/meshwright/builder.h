// Builds a model's graph op by op: the parts that decoders have, and a place for ops of one's own.
// It is what the built-in models are written with.
//
//   mw::Builder b("mine", batch, sequence, vocab, hidden, heads, heads, ffn);
//   b.graph.layers = 1;
//   const int table = b.parameter("embedding.weight", {"vocab", "hidden"}, {}, {});
//   int x = b.embedding("embedding", table);
//   b.layer = 0;
//   const int up = b.parameter("layers.0.up.weight", {"ffn", "hidden"}, {}, {});
//   const int down = b.parameter("layers.0.down.weight", {"hidden", "ffn"}, {}, {});
//   int h = b.gelu("layers.0.gelu", b.linear("layers.0.up", x, up));
//   x = b.add("layers.0.add", x, b.linear("layers.0.down", h, down));
//   b.layer = 1;
//   b.cross_entropy(b.linear("head", x, table), tokens_per_step);
//   return std::move(b.graph);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/ops.h"

namespace mw {

// Adds ops to a graph; each call returns the index of the value that it makes, of which other calls
// take it. A value must be there before it is used, and ops run in the order in which they are
// added. Parameters are named as the op + ".weight" and ".bias", where a call makes them itself.
// Names are the model's: they must be different, and stay the same from build to build, as initial
// weights and checkpoints go by them. `hf`: where a parameter lies in a Hugging Face checkpoint;
// {}: nowhere. What an index or a dim is wrong for throws std::out_of_range. A builder is for one
// thread.
class Builder {
 public:
  // Sets the dims that every decoder has (batch, seq, keys, vocab, hidden, heads, kv_heads,
  // head_dim, ffn; `batch` in sequences of one microbatch over all ranks, `sequence` in tokens),
  // and the data: "tokens", "labels" (batch, seq) and "positions" (seq). `heads` divides `hidden`.
  // Further dims: graph.set_dim.
  Builder(std::string family, std::int64_t batch, std::int64_t sequence, std::int64_t vocab,
          std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn);

  // An op of whatever type, of the current layer: graph.add(op(…), {{"", its output's dims}})[0].
  // `whole`: dims that no axis may cut in it.
  Op op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
        Dims whole = {}) const;
  // A value under its own dims.
  Use use(int value) const { return {value, graph.value(value).dims, false}; }

  int parameter(const std::string& name, Dims dims, Init init, HfName hf);
  int embedding(const std::string& name, int weight);
  // `bias` -1: none. The output's dims are x's rows and those of the weight that x lacks.
  int linear(const std::string& name, int x, int weight, int bias = -1);
  int rms_norm(const std::string& name, int x, HfName hf, double eps);  // over the last dim
  int layer_norm(const std::string& name, int x, const std::string& hf, double eps);
  int add_positions(const std::string& name, int x, int weight);
  // Tables of `width`'s angles: those that `rope` turns of x's last dim.
  std::vector<int> rope_table(const std::string& name, double theta, Dim width,
                              RopePairs pairs = RopePairs::halves);
  int rope(const std::string& name, int x, const std::vector<int>& table,
           RopePairs pairs = RopePairs::halves);
  int attention(const std::string& name, int q, int k, int v, std::int64_t window = 0);
  std::pair<int, int> split(const std::string& name, int x, Dim first, Dim second);
  // k, of width `width`, and v.
  std::pair<int, int> latent_keys(const std::string& name, int kv, int turned, Dim width,
                                  Dim value);
  int swiglu(const std::string& name, int gate, int up);
  int gelu(const std::string& name, int x);
  int add(const std::string& name, int stream, int branch);
  // Experts: see ops.h.
  std::pair<int, int> route(const std::string& name, int logits, int bias,
                            const RouterOptions& options);  // weights, picks
  int admit(const std::string& name, int picks, std::int64_t capacity);
  // Adds a term to the loss.
  void balance_loss(const std::string& name, int logits, int picks, RouterScore score,
                    double factor);
  void z_loss(const std::string& name, int logits, double factor);
  std::pair<int, int> dispatch(const std::string& name, int x, int picks);  // rows, their places
  // Its parameter is `name` + ".weight". `counts`: the ledger counts its rows.
  int expert_linear(const std::string& name, int rows, Dims weight, HfName hf, bool counts = false);
  int combine(const std::string& name, int rows, int weights, int places);
  // The three ops of the loss; sets Graph::loss. `tokens`: of a whole step, over all ranks; what
  // the loss is divided by.
  void cross_entropy(int logits, std::int64_t tokens);

  int tokens = -1, labels = -1, positions = -1;
  int layer = -1;  // of the ops to come; -1: before the first, `graph.layers`: after the last
  Graph graph;     // moved out of when all is added
};

}  // namespace mw
