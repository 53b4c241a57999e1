// Builds a model's graph op by op: the parts that decoders have, and a place for ops of one's own.
// It is what the built-in models are written with.
//
// A model of one's own, in whole:
//
//   class Parallel : public mw::Model {  // attention and MLP side by side
//    public:
//     static mw::Options options();                       // layers, hidden, heads, ffn, vocab
//     explicit Parallel(const mw::Values& values) : v_(values) {}
//     std::int64_t vocab() const override { return v_.integer("vocab"); }
//     mw::Graph build(std::int64_t batch, std::int64_t sequence,
//                     std::int64_t tokens) const override {
//       mw::Builder b("parallel", batch, sequence, tokens);
//       b.dim("hidden", v_.integer("hidden"));  …
//       int x = b.embed();
//       for (b.layer = 0; b.layer < b.graph.layers; ++b.layer) {
//         … x = b.add(b.name("sum"), x, y);
//       }
//       b.head_and_loss(b.rms_norm("norm", x));
//       return std::move(b.graph);
//     }
//   };
//   MESHWRIGHT_PLUGIN("parallel", "1.0.0", "attention and MLP side by side", mw::model<Parallel>())
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/ops.h"
#include "meshwright/options.h"

namespace mw {

// What a model can hold of what is gone through one by one; widths may be what 32 bits hold.
constexpr std::int64_t most_layers = 1 << 12, most_heads = 1 << 16, most_experts = 1 << 16;

// Weights of linears and embeddings where an author says nothing else.
inline constexpr Init normal_weights{Init::Kind::normal, 0.02};

// How tokens choose experts, and what keeps these even.
struct ExpertOptions {
  RouterOptions router;
  std::int64_t top = 1;            // experts that a token chooses
  std::optional<double> capacity;  // of an expert, in its even share of a sequence; none: dropless
  // A loss of each sequence's choices; a bias on the choice that moves against a step's load.
  enum class Balance : std::uint8_t { none, aux, bias } balance = Balance::aux;
  double aux_weight = 0.01, bias_rate = 0.001, z_weight = 0;
};

// Where a block's parameters lie in a Hugging Face checkpoint; a parameter without one is looked
// for under its own name.
struct ExpertNames {
  HfName router, bias, gate, up, down;
};

// "(batch, seq, hidden)": dims for messages.
std::string text_of(const Dims& dims);

// Adds ops to a graph. Values are numbers: their places in `graph.values()`. Each method returns
// what its op makes. An op's parameters are named as the op + ".weight" and ".bias"; a name is used
// once in a model.
//
// Failure: operands whose dims do not fit throw Error (options), "model.dims", with both; a name
// that is taken, "model.twice". Not thread-safe: one thread has a builder. A graph that was begun
// and not finished (head_and_loss, or cross_entropy) is of no use.
class Builder {
 public:
  // Makes the dims batch, seq, keys and stat, and the data: `tokens`, `labels` (batch, seq) and
  // `positions` (seq). The arguments are Model::build's.
  Builder(std::string family, std::int64_t batch, std::int64_t sequence,
          std::int64_t tokens_per_step);

  // A dim of the model. `even`: every part must be of one size. `like`: what strategies say of that
  // dim holds for this one too, as far as its size allows. `from`: for `plugins show --model`.
  void dim(Dim dim, std::int64_t size, bool even = true, Dim like = {}, std::string from = "");
  // vocab, hidden, heads, kv_heads, head_dim (0: hidden / heads), ffn.
  void decoder_dims(std::int64_t vocab, std::int64_t hidden, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t ffn, std::int64_t head_dim = 0);

  const Dims& dims(int value) const { return graph.value(value).dims; }
  // "layers.3.q" in a layer, "q" outside of them.
  std::string name(const std::string& local) const;

  int parameter(const std::string& name, Dims dims, Init init = normal_weights, HfName hf = {});
  // An op of any type; `whole`: dims that no axis may cut in it. E.g. of an author's own type:
  //   b.append(b.op(name, std::make_shared<Scale>(2.0), {b.use(x)}), {{"", b.dims(x)}})[0]
  Op op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
        Dims whole = {}) const;
  // A value under its own dims.
  Use use(int value) const { return {value, dims(value), false}; }
  std::vector<int> append(Op op, const std::vector<Graph::Output>& outputs);

  // (batch, seq, hidden), of `weight` (vocab, hidden).
  int embedding(const std::string& name, int weight);
  // The dims of `weight` that x has are contracted, and must be x's last in x's order; the output's
  // are x's other dims, then the weight's. `bias` -1: none.
  int linear(const std::string& name, int x, int weight, int bias = -1);
  // Takes x (…, width) to `to`, with a weight (to…, from…). `from` empty: all dims of x but batch
  // and seq. `bias`: with one, of zeros.
  int linear_to(const std::string& name, int x, Dims to, Dims from = {}, bool bias = false,
                Init init = normal_weights, const HfName& hf = {});
  int rms_norm(const std::string& name, int x, HfName hf = {},
               double eps = 1e-5);  // of the last dim
  // `hf`: with ".weight" and ".bias" behind it.
  int layer_norm(const std::string& name, int x, const std::string& hf = "", double eps = 1e-5);
  // Learned positions: weight (positions, hidden).
  int add_positions(const std::string& name, int x, int weight);
  // Cosines and sines of `width`'s angles: those that `rope` turns of x's last dim.
  std::vector<int> rope_table(const std::string& name, double theta, Dim width,
                              RopePairs pairs = RopePairs::halves);
  int rope(const std::string& name, int x, const std::vector<int>& table,
           RopePairs pairs = RopePairs::halves);
  // Causal. q (batch, seq, heads, head_dim), k (batch, seq, kv_heads, head_dim), v (batch, seq,
  // kv_heads, width) -> (batch, seq, heads, width). `window`: tokens that a query sees, itself and
  // those before it; 0: all. `unfused`: the softmax of scores is a tensor that backward reads.
  int attention(const std::string& name, int q, int k, int v, std::int64_t window = 0,
                bool unfused = false);
  // x (…, first + second) -> (…, first), (…, second).
  std::pair<int, int> split(const std::string& name, int x, Dim first, Dim second);
  // k, of width `width`, and v, of kv (batch, seq, heads, plain + value) and what is turned (batch,
  // seq, turned) [DeepSeek-AI 2024, "DeepSeek-V2", section 2.1].
  std::pair<int, int> latent_keys(const std::string& name, int kv, int turned, Dim width,
                                  Dim value);
  // silu(gate) * up, and times `weights`, if there are any: one for each row of gate's last dim.
  int swiglu(const std::string& name, int gate, int up, int weights = -1);
  int gelu(const std::string& name, int x);  // the tanh form
  int add(const std::string& name, int stream, int branch);

  // Experts. Of each model one `top`, one capacity and one number of experts.
  struct Routed {
    int rows = -1, places = -1, weights = -1;
  };
  // Makes the dims experts, scores, top, load and `width`.
  void expert_dims(std::int64_t experts, const ExpertOptions& options, Dim width,
                   std::int64_t size);
  // Router, its losses, and tokens sent to the experts they chose; x (batch, seq, hidden).
  Routed route(const std::string& prefix, int x, const ExpertOptions& options,
               const ExpertNames& names = {});
  // gate, up, SwiGLU, down of each expert, and a token's results summed: (batch, seq, hidden).
  int through_experts(const std::string& prefix, const Routed& routed, Dim width,
                      const ExpertNames& names = {});

  // The three ops of the loss; sets Graph::loss. logits (batch, seq, vocab).
  void cross_entropy(int logits);
  // What every decoder begins and ends with: the embedding's weight and its rows; the projection to
  // the vocabulary, by a weight of its own or the embedding's, and the loss. Sets `layer`.
  int embed(const HfName& hf = {});
  void head_and_loss(int x, bool tied = false, const HfName& hf = {});

  // What is made once for the model, before its layers: rotary tables. make_once() returns what
  // make() made when the key was asked for first; its ops stand where the builder was then.
  // make_all_of() makes all that another builder made so, in that order.
  using Make = std::function<std::vector<int>(Builder& b)>;
  std::vector<int> make_once(const std::string& key, const Make& make);
  void make_all_of(const Builder& other);

  int tokens = -1, labels = -1, positions = -1;
  int layer = -1;  // of the ops to come; Graph::layers: after them
  Graph graph;

 private:
  std::pair<int, int> choose_experts(const std::string& name, int logits, int bias,
                                     const RouterOptions& options);
  int admit(const std::string& name, int picks, std::int64_t capacity);
  void balance(const std::string& prefix, int logits, int picks, const ExpertOptions& options);
  int expert_linear(const std::string& name, int rows, Dims weight, HfName hf, bool counts = false);
  std::int64_t room(const ExpertOptions& options) const;
  // Throws where the name of an op or a parameter, as `what` says, is taken.
  void claim_name(const std::string& name, const char* what);

  std::int64_t tokens_per_step_;
  int embedding_ = -1;
  std::vector<std::pair<std::string, Make>> makers_;
  std::map<std::string, std::vector<int>> made_once_;
  std::unordered_set<std::string> names_;
};

// Whether the option head_dim says a width: not if it is left out or 0.
bool says_head_dim(const Values& values);
// Whether head_dim is what it would be if it were left out (Option::usual).
bool is_usual_head_dim(const Json& values);
// The width of a head: the option head_dim, or else hidden / heads.
std::int64_t head_width(const Values& values);
// The option `attention`, "flash" or "unfused", and whether a model's values say "unfused".
void add_attention_option(Options& options);
bool is_unfused(const Values& values);
// Checks for models with heads: hidden divisible by heads, unless head_dim is given, and heads by
// kv_heads. Returns the width of a head, 0 if there is none.
std::int64_t check_heads(const Values& values, Problems& problems);

}  // namespace mw
