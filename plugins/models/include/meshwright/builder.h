// Builds a model's graph op by op: the parts that decoders have, and ops of an author's own.
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

// Most layers, heads and experts of a model, which code goes through one by one; widths may be what
// 32 bits hold.
constexpr std::int64_t most_layers = 1 << 12, most_heads = 1 << 16, most_experts = 1 << 16;

// Weights of linears and embeddings where an author says nothing else.
inline constexpr Init normal_weights{Init::Kind::normal, 0.02};

// How tokens choose experts, and how the experts' load is kept even.
struct ExpertOptions {
  RouterOptions router;
  std::int64_t top = 1;  // experts that a token chooses
  // The choices that an expert takes, as a multiple of its even share of a sequence's; none:
  // dropless.
  std::optional<double> capacity;
  // aux: a loss on each sequence's choices. bias: a bias on the choice, which moves against the
  // load of each step.
  enum class Balance : std::uint8_t { none, aux, bias } balance = Balance::aux;
  double aux_weight = 0.01, bias_rate = 0.001, z_weight = 0;
  // What is drawn at random in training: x is multiplied for the router by a number in
  // [1 - jitter, 1 + jitter), and `noise` is the standard deviation of what is added to logits.
  double jitter = 0, noise = 0;
  // Whether logits have a bias that is trained like any other.
  bool logit_bias = false;
  // Whether experts choose tokens, rather than tokens choosing experts. Each expert takes those
  // tokens of a sequence whose affinities to it are highest, as many as its `capacity`. A token
  // then has `top` experts on average.
  bool experts_choose = false;
  // Experts for which the router has a weight of a token.
  std::int64_t choices(std::int64_t experts) const { return experts_choose ? experts : top; }
};

// The names of a router's parameters in a Hugging Face checkpoint. A parameter whose name is empty
// here is looked for under its own name.
struct ExpertNames {
  HfName router, bias;
};

// The name of the bias in a checkpoint that has the weight under a name that ends in ".weight".
HfName bias_beside(const HfName& weight);

// Dims as text for messages: "(batch, seq, hidden)".
std::string text_of(const Dims& dims);

// Adds ops to a graph. A value is an index into `graph.values()`; each method returns the value
// that its op makes. An op's parameters are named as the op + ".weight" and ".bias"; a name is used
// once in a model.
//
// Failure: operands whose dims do not fit throw Error (options), "model.dims", with the dims of
// both; a name that is taken, "model.twice". Not thread-safe: one thread has a builder. A graph is
// complete only after head_and_loss() or cross_entropy().
class Builder {
 public:
  // Makes the dims batch, seq, keys and stat, and the data: `tokens`, `labels` (batch, seq) and
  // `positions` (seq). The arguments are Model::build's.
  Builder(std::string family, std::int64_t batch, std::int64_t sequence,
          std::int64_t tokens_per_step);

  // Adds a dim. `even`: every part must be of one size. `like`: what strategies say of that dim
  // holds for this one too, as far as its size allows. `from`: the origin of the size, for `plugins
  // show --model`.
  void dim(Dim dim, std::int64_t size, bool even = true, Dim like = {}, std::string from = "");
  // Adds the dims vocab, hidden, heads, kv_heads, head_dim (0: hidden / heads) and ffn.
  void decoder_dims(std::int64_t vocab, std::int64_t hidden, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t ffn, std::int64_t head_dim = 0);

  const Dims& dims(int value) const { return graph.value(value).dims; }
  bool has_op(const std::string& name) const { return names_.count(name) > 0; }
  // The size of a dim that the op `name` names, which the model must have.
  std::int64_t size_of(const std::string& name, Dim dim) const;
  // A full name: "layers.3.q" in layer 3, "q" outside of the layers.
  std::string name(const std::string& local) const;

  int parameter(const std::string& name, Dims dims, Init init = normal_weights, HfName hf = {});
  // Makes an op of any type, for append(). `whole`: dims that no axis may cut in this op. With an
  // author's own type:
  //   b.append(b.op(name, std::make_shared<Scale>(2.0), {b.use(x)}), {{"", b.dims(x)}})[0]
  Op op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
        Dims whole = {}) const;
  // Makes the value an input of an op, under its own dims.
  Use use(int value) const { return {value, dims(value), false}; }
  // Makes a value of numbers an input of the op `name`; a value of indices is refused.
  Use real(int value, const std::string& name) const;
  std::vector<int> append(Op op, const std::vector<Graph::Output>& outputs);

  // The tokens' rows (batch, seq, hidden) of `weight` (vocab, hidden).
  int embedding(const std::string& name, int weight) { return lookup(name, tokens, weight); }
  // An input that a run loads by its name (inputs.h), of dims that begin with batch: indices below
  // `below`, or reals if that is 0.
  int input(const std::string& name, const Dims& of, std::int64_t below = 0);
  // The rows of x (batch, from, …) that indices (batch, to…) name: (batch, to…, …).
  int gather(const std::string& name, int x, int indices);
  // Each of the rows (batch, from…, …) at the place that its index (batch, from…) names: (batch,
  // to, …). Rows with the same index are added; where there is none are zeros.
  int scatter(const std::string& name, int rows, int indices, Dim to);
  // The mean, or the largest, of each group of neighbours along `of`: x with the dim `to` in the
  // place of `of`. The size of `of` is a multiple of the size of `to`.
  int pool(const std::string& name, int x, Dim to, Dim of, bool max);
  // The rows of `weight` (rows, width) that indices (…) name: (…, width).
  int lookup(const std::string& name, int indices, int weight);
  // Contracts the dims that x and `weight` share, which must be the last dims of both, in one
  // order. The output has x's other dims, then the weight's. `bias` -1: none.
  int linear(const std::string& name, int x, int weight, int bias = -1);
  // A linear from x (…, from…) to (…, to…), with a new weight (to…, from…). Without `from`, x is
  // contracted over all its dims but batch and seq. `bias` adds a bias, whose values are zeros at
  // first and whose name in a checkpoint is the weight's with ".bias" for ".weight".
  int linear_to(const std::string& name, int x, Dims to, Dims from = {}, bool bias = false,
                Init init = normal_weights, const HfName& hf = {});
  // RMSNorm over the last dim. `plus` is added to the weight, whose values are then zeros at first.
  int rms_norm(const std::string& name, int x, HfName hf = {}, double eps = 1e-5, double plus = 0);
  // LayerNorm over the last dim. `hf`: the weight's name in the checkpoint, of which ".weight"
  // may be left out; the bias has ".bias" in its place.
  int layer_norm(const std::string& name, int x, const std::string& hf = "", double eps = 1e-5);
  // Adds learned positions to x: weight (positions, hidden).
  int add_positions(const std::string& name, int x, int weight);
  // Cosines and sines of the rotary angles, each (seq, width), by which rope() turns the last
  // `width` elements of x's last dim, or the `first`.
  std::vector<int> rope_table(const std::string& name, const RopeAngles& angles, Dim width);
  int rope(const std::string& name, int x, const std::vector<int>& table,
           RopePairs pairs = RopePairs::halves, bool first = false);
  // Attention of q (batch, seq, heads, head_dim), k (batch, seq, kv_heads, head_dim), v (batch,
  // seq, kv_heads, width) -> (batch, seq, heads, width). Another dim may stand in place of seq.
  // If k and v lie along another dim than q, the attention must not be causal. `unfused`:
  // backward reads the softmax of scores, which is then a tensor. Attention with a soft cap, a
  // bias or sinks, or that is not causal, is unfused in any case. `more`: the value of the bias,
  // then the value of the sinks. Each is there if `limits` asks for it.
  int attention(const std::string& name, int q, int k, int v, const AttentionLimits& limits = {},
                bool unfused = false, const std::vector<int>& more = {});
  // The numbers of a dim's elements, as `positions` are those of seq: (dim).
  int positions_of(Dim dim);
  // How far each key lies before each query, by their positions: (dim, its keys), reals, or indices
  // if there are buckets.
  int distance(const std::string& name, int of_positions, const DistanceBuckets& options = {});
  int softmax(const std::string& name, int x, Dim over);
  int largest(const std::string& name, int x, const Dims& over);
  // Splits x into the parts `first` and `second` of its dim `of` (invalid: the last one).
  std::pair<int, int> split(const std::string& name, int x, Dim first, Dim second, Dim of = {});
  // Latent attention's keys and values [DeepSeek-AI 2024, "DeepSeek-V2", section 2.1]: k (batch,
  // seq, heads, width) and v (batch, seq, heads, value), from kv (batch, seq, heads, plain + value)
  // and `turned` (batch, seq, turned), the rotated part of the keys of all heads.
  std::pair<int, int> latent_keys(const std::string& name, int kv, int turned, Dim width,
                                  Dim value);
  // silu(gate) * up; with `weights` also times a weight for each row of gate's last dim.
  int swiglu(const std::string& name, int gate, int up, int weights = -1);
  int gelu(const std::string& name, int x);  // the tanh form
  int add(const std::string& name, int stream, int branch);
  // The expression `f` of each element (ops.h: map). The output has the dims of the operand that
  // has most of them, then those of the others that it lacks.
  int map(const std::string& name, const std::string& f, const std::vector<int>& operands);
  Dims map_dims(const std::vector<int>& operands) const;  // the dims of that output
  int sum(const std::string& name, int x, const Dims& over);
  // Gives x the dims `to`: all dims of x in another order. One dim may be replaced by another dim
  // of equal size.
  int as(const std::string& name, int x, const Dims& to);
  // a (…, first, …) and b (…, second, …), one after the other: (…, into, …). `of`: first and
  // second; empty: their last dims. What lacks other dims of the result is the same along them.
  int concat(const std::string& name, int a, int b, Dim into, const Dims& of = {});

  // Experts. A model has one `top`, one capacity and one number of experts. Routed: the tokens'
  // rows by expert, their places among the choices, and their weights.
  struct Routed {
    int rows = -1, places = -1, weights = -1;
  };
  // Adds the dims experts, scores, top and load.
  void expert_dims(std::int64_t experts, const ExpertOptions& options);
  // Adds the router, its losses, and the dispatch of tokens to the experts that they chose; x
  // (batch, seq, hidden).
  Routed route(const std::string& prefix, int x, const ExpertOptions& options,
               const ExpertNames& names = {});
  // A linear of each expert's rows (experts, batch, seq, from) to (experts, batch, seq, `to`).
  // `bias`: the name of a bias in a checkpoint, which may be empty; none: there is no bias.
  // `weights`: what each row's bias is multiplied by; -1: 1.
  int expert_linear(const std::string& name, int rows, Dim to, HfName hf = {},
                    const std::optional<HfName>& bias = std::nullopt, int weights = -1);
  // The sum of each token's rows: (batch, seq, hidden).
  int combine(const std::string& name, int rows, int places);

  // Adds the three ops of the loss, for logits (batch, seq, vocab), and sets Graph::loss.
  void cross_entropy(int logits) { graph.loss = cross_entropy("loss", logits, labels); }
  // Adds the ops of a loss for logits (batch, …, classes) and labels (batch, …), times `weight`,
  // and returns the loss; the ops' names begin with `name`. The sum is divided by the labels of a
  // step. Labels that shift() made lack the last tokens of a sequence: these tokens add nothing to
  // the sum, and the divisor still counts them. Where labels of the data count nothing, a loss of
  // `labels` is the mean over the others. `mean_over`: LossDivisor::sequences.
  int cross_entropy(const std::string& name, int logits, int labels_of_logits, double weight = 1,
                    std::int64_t mean_over = 0);
  // Labels (batch, seq) of the tokens `by` further on.
  int shift(const std::string& name, int labels_of_tokens, std::int64_t by);
  // What every decoder begins and ends with: embed() adds the embedding; head_and_loss() the
  // projection to the vocabulary, by a weight of its own or (`tied`) the embedding's, and the loss.
  // Both set `layer`.
  int embed(const HfName& hf = {});
  void head_and_loss(int x, bool tied = false, const HfName& hf = {});

  // For what a model makes once, outside of its layers, as rotary tables. make_once() calls `make`
  // when the key is asked for first, and then returns the same values; the ops stand where the
  // builder was at first. make_all_of() makes all that another builder made so, in that order.
  using Make = std::function<std::vector<int>(Builder& b)>;
  std::vector<int> make_once(const std::string& key, const Make& make);
  void make_all_of(const Builder& other);

  int tokens = -1, labels = -1, positions = -1;
  bool frozen = false;  // whether nothing trains the parameters to come (Value::frozen)
  int layer = -1;  // layer of the ops to come; -1: before the layers; Graph::layers: after them
  Graph graph;

 private:
  Use numbers_of(const std::string& name, const Dims& out);
  std::pair<int, int> choose_experts(const std::string& name, int logits, int bias,
                                     const RouterOptions& options);
  int admit(const std::string& name, int picks, int weights, std::int64_t capacity);
  void balance(const std::string& prefix, int logits, int picks, const ExpertOptions& options);
  std::int64_t room(const ExpertOptions& options) const;
  Dim keys_of(Dim lie);  // the name that attention has for a dim along which keys lie
  void check_rows(const Op& op) const;
  void check_below(const std::string& name, int indices, Dim rows) const;
  void require_indices(const std::string& name, int value) const;
  // Throws Error (options, "model.twice") if the name is taken. `what`: "an op" or "a parameter".
  void claim_name(const std::string& name, const char* what);

  std::int64_t tokens_per_step_;
  int embedding_ = -1;
  std::vector<std::pair<std::string, Make>> makers_;
  std::map<std::string, std::vector<int>> made_once_;
  std::unordered_set<std::string> names_;
  int routed_layer_ = -2;              // the layer of the last router
  std::map<int, std::int64_t> below_;  // inputs that are indices -> what they are below
  // labels that shift() made -> those of which it made them, and how many tokens further on
  std::map<int, std::pair<int, std::int64_t>> shifted_;
  std::map<Dim, int> positions_;  // the data value of a dim's positions, for dims other than seq
};

// Adds the option `attention`, "flash" or "unfused". is_unfused(): whether values say "unfused".
void add_attention_option(Options& options);
bool is_unfused(const Values& values);
// Checks for models with heads: hidden divisible by heads, unless head_dim is given, and heads by
// kv_heads. Returns the width of a head, 0 if there is none.
std::int64_t check_heads(const Values& values, Problems& problems);

}  // namespace mw
