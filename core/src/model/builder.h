// What the model kinds share: ops with the dims that they need whole, and the parts that every
// decoder has.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/options.h"
#include "model/ops.h"

namespace mw {

// What a model can hold of what is gone through one by one; widths may be what 32 bits hold.
constexpr std::int64_t most_layers = 1 << 12, most_heads = 1 << 16, most_experts = 1 << 16;

// Adds ops to a graph; each returns the value it makes. Parameters are named as the op + ".weight"
// and ".bias".
class Builder {
 public:
  // Sets the dims that every decoder has, and the data: "tokens", "labels" (batch, seq) and
  // "positions" (seq).
  Builder(std::string family, std::int64_t batch, std::int64_t sequence, std::int64_t vocab,
          std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn);

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
  // The three ops of the loss; sets Graph::loss.
  void cross_entropy(int logits, std::int64_t tokens);

  int tokens = -1, labels = -1, positions = -1;
  int layer = -1;  // of the ops to come
  Graph graph;

 private:
  Use use(int value) const { return {value, graph.value(value).dims, false}; }
  Op op(const std::string& name, std::shared_ptr<const OpType> type, std::vector<Use> inputs,
        Dims whole = {}) const;
};

// Checks that both kinds need: hidden divisible by heads. Returns the width of a head, 0 if there
// is none.
std::int64_t check_heads(const Values& values, Problems& problems);

}  // namespace mw
