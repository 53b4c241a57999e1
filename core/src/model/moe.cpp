// Decoders with experts: Mixtral [Jiang et al. 2024], and DeepSeek's fine-grained and shared
// experts, leading dense layers and balance by a bias [Dai et al. 2024; DeepSeek-AI 2024]. What
// tokens choose, and every loss, is defined for each token or sequence, so that neither
// microbatches nor the mix change it.
#include <fmt/format.h>

#include <cmath>

#include "meshwright/ops.h"
#include "model/checks.h"
#include "model/decoder.h"
#include "model/kinds.h"

namespace mw {
namespace {

// Under which names a checkpoint has them: DeepSeek's where the model has what only those
// have, else Mixtral's.
struct Names {
  std::string router;
  HfName bias, gate, up, down;
  Names(const Values& values, const std::string& layer) {
    const bool deepseek = values.integer("shared_experts") > 0 ||
                          values.integer("dense_layers") > 0 || values.text("score") == "sigmoid";
    const std::string block = layer + (deepseek ? ".mlp" : ".block_sparse_moe");
    const auto expert = [&](const char* theirs, const char* mixtral) {
      HfName name{block + ".experts.{}." + (deepseek ? theirs : mixtral) + ".weight"};
      name.apart = true;
      return name;
    };
    router = block + ".gate.weight";
    bias = {block + ".gate.e_score_correction_bias"};
    bias.optional = true;
    gate = expert("gate_proj", "w1");
    up = expert("up_proj", "w3");
    down = expert("down_proj", "w2");
  }
};

class Moe final : public Model {
 public:
  static Options options() {
    Options options;
    add_decoder_options(options);
    add_latent_options(options);
    options.integer("experts", "experts of a layer").range(1, most_experts);
    options.integer("top_k", "experts that a token chooses").range(1, most_experts);
    options.integer("expert_ffn", "width of an expert; default ffn").at_least(1).optional();
    options
        .integer("shared_experts", "experts that every token goes through, as one of their width")
        .at_least(0)
        .fallback(0);
    options.integer("dense_layers", "leading layers without experts, of width ffn")
        .at_least(0)
        .fallback(0);
    options
        .number(
            "capacity",
            "an expert takes at most so many times its even share of a sequence's choices, earlier "
            "positions first; left out: all (dropless)")
        .range(1e-3, 1e6)
        .optional();
    options
        .choice("balance", {"aux", "bias", "none"},
                "how experts are kept even: a loss of each sequence's choices; a bias on the "
                "choice that "
                "moves against the load of each step; not")
        .fallback("aux");
    options.number("aux_weight", "of the balancing loss").at_least(0).fallback(0.01);
    options.number("bias_rate", "of the bias, a step").at_least(0).fallback(0.001);
    options.number("z_weight", "of the loss that keeps router logits small")
        .at_least(0)
        .fallback(0.0);
    options
        .choice("score", {"softmax", "sigmoid"}, "a token's affinity to the experts, from logits")
        .fallback("softmax");
    options.boolean("normalise", "the weights of a token's experts sum to one (times scale)")
        .fallback(true);
    options.number("scale", "of the experts' weights").fallback(1.0);
    return options;
  }
  explicit Moe(const Values& values) : values_(values) {
    Problems problems;
    check_decoder(values, problems);
    const std::int64_t experts = values.integer("experts"), top = values.integer("top_k");
    if (top > experts) {
      problems.add(Stage::options, "option.range", "top_k",
                   fmt::format("a token cannot choose {} of {} experts", top, experts),
                   fmt::format("top_k = {} at most", experts));
    }
    const std::int64_t layers = values.integer("layers"), dense = values.integer("dense_layers");
    if (dense >= layers) {
      problems.add(Stage::options, "option.range", "dense_layers",
                   fmt::format("{} of {} layers are dense: none has experts", dense, layers),
                   fmt::format("dense_layers = {} at most, or mw.llama", layers - 1));
    }
    problems.throw_if_any();
  }

  std::int64_t vocab() const override { return values_.integer("vocab"); }

  Graph build(std::int64_t batch, std::int64_t sequence,
              std::int64_t tokens_per_step) const override {
    const Values& values = values_;
    Decoder d("moe", values, batch, sequence);
    const std::int64_t width = values.integer(values.has("expert_ffn") ? "expert_ffn" : "ffn");
    const std::int64_t shared = values.integer("shared_experts");
    const std::int64_t experts = values.integer("experts"), top = values.integer("top_k");
    Graph& graph = d.b.graph;
    graph.set_dim("experts", experts);
    graph.set_dim("scores", experts);
    graph.set_dim("top", top);
    graph.set_dim("load", 2);
    graph.set_dim("expert_ffn", width, false);
    if (shared > 0) graph.set_dim("shared_ffn", shared * width, false);
    graph.sparse = {{"experts", "batch", "seq"},
                    static_cast<double>(top) / static_cast<double>(experts)};
    if (values.has("capacity")) {  // choices that are admitted at most
      const auto choices = static_cast<double>(sequence * top);
      const double admitted =
          static_cast<double>(room(values, sequence)) * static_cast<double>(experts);
      graph.sparse.share *= std::min(1.0, admitted / choices);
    }
    int x = d.embed();
    for (d.b.layer = 0; d.b.layer < graph.layers; ++d.b.layer) {
      x = d.attention(x);
      const int h = d.mlp_norm(x);
      if (d.b.layer < values.integer("dense_layers")) {
        x = d.mlp_add(x, d.swiglu_block(d.name() + ".mlp", d.hf() + ".mlp", h, "ffn"));
        continue;
      }
      const Routed routed = route(d, values, h, sequence, tokens_per_step);
      // Between the two, so that it can go on while tokens are on their way.
      const int beside = shared == 0
                             ? -1
                             : d.swiglu_block(d.name() + ".shared", d.hf() + ".mlp.shared_experts",
                                              h, "shared_ffn");
      x = d.mlp_add(x, through_experts(d, routed, Names(values, d.hf())));
      if (beside >= 0) x = d.b.add(d.name() + ".shared_add", x, beside);
    }
    d.head_and_loss(x, tokens_per_step);
    return std::move(graph);
  }

 private:
  // Choices of a sequence that an expert takes.
  static std::int64_t room(const Values& values, std::int64_t sequence) {
    const auto even = static_cast<double>(sequence * values.integer("top_k")) /
                      static_cast<double>(values.integer("experts"));
    const double asked = std::ceil(values.number("capacity") * even - 1e-9);
    return static_cast<std::int64_t>(
        std::min(asked, static_cast<double>(sequence * values.integer("top_k"))));
  }

  struct Routed {
    int rows = -1, places = -1, weights = -1;
  };

  static Routed route(Decoder& d, const Values& values, int h, std::int64_t sequence,
                      std::int64_t tokens_per_step) {
    Builder& b = d.b;
    const Names names(values, d.hf());
    const auto experts = static_cast<double>(values.integer("experts")),
               top = static_cast<double>(values.integer("top_k")),
               length = static_cast<double>(sequence),
               tokens = static_cast<double>(tokens_per_step);
    const std::string balance = values.text("balance");
    RouterOptions router;
    router.score = values.text("score") == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax;
    router.normalise = values.flag("normalise");
    router.scale = values.number("scale");
    const int weight = b.parameter(d.name() + ".router.weight", {"scores", "hidden"},
                                   decoder_weights, {names.router});
    const int bias = b.graph.add_tally(
        d.name() + ".router.bias", {"scores"},
        {tokens * top / experts, balance == "bias" ? values.number("bias_rate") : 0}, names.bias);
    const int logits = b.linear(d.name() + ".router", h, weight);
    auto [weights, picks] = b.route(d.name() + ".route", logits, bias, router);
    if (balance == "aux" && values.number("aux_weight") > 0) {
      // alpha E / (k S) sum_i f_i sum_t P_i / S of a sequence, over the step's sequences.
      const double factor =
          values.number("aux_weight") * experts / (top * length * length) / (tokens / length);
      b.balance_loss(d.name() + ".balance", logits, picks, router.score, factor);
    }
    if (values.number("z_weight") > 0) {
      b.z_loss(d.name() + ".z_loss", logits, values.number("z_weight") / tokens);
    }
    if (values.has("capacity")) {
      picks = b.admit(d.name() + ".admit", picks, room(values, sequence));
    }
    const auto [rows, places] = b.dispatch(d.name() + ".dispatch", h, picks);
    return {rows, places, weights};
  }

  static int through_experts(Decoder& d, const Routed& routed, const Names& names) {
    Builder& b = d.b;
    const std::string name = d.name() + ".experts";
    const int rows = routed.rows;
    const int gate = b.expert_linear(name + ".gate", rows, {"experts", "expert_ffn", "hidden"},
                                     names.gate, true);
    const int up =
        b.expert_linear(name + ".up", rows, {"experts", "expert_ffn", "hidden"}, names.up);
    const int y = b.swiglu(name + ".swiglu", gate, up);
    const int down =
        b.expert_linear(name + ".down", y, {"experts", "hidden", "expert_ffn"}, names.down);
    return b.combine(d.name() + ".combine", down, routed.weights, routed.places);
  }

  const Values values_;
};

}  // namespace

const Registration moe_model = model<Moe>(
    "moe", "Llama decoder with experts: top-k router, shared experts, dense leading layers");

}  // namespace mw
