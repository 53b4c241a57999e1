// Lemmas of the ops that there are: each op of each model, cut by every dim and pair of dims that
// it can be cut by, holds what a proof takes for granted of it.
#include "prove/lemmas/lemmas.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <tuple>

#include "lemma_graphs.h"
#include "support/mixes.h"

using namespace mw;
using namespace mw::test;

namespace {

Graph graph_of(const std::string& kind, const Json& options, std::int64_t batch = 8,
               std::int64_t sequence = 24) {
  const auto model = made<Model>("model", kind, options);
  return model->build(batch, sequence, 4 * batch * sequence);
}

Json llama_options() {
  return {{"layers", 2},   {"hidden", 48}, {"heads", 12},
          {"kv_heads", 4}, {"ffn", 40},    {"vocab", 50}};
}
// Sizes for kinds whose options all have those of a published model as defaults.
Json small_options(std::int64_t window) {
  Json options = llama_options();
  options.update({{"head_dim", 4}, {"kv_heads", 6}});
  if (window > 0) options["window"] = window;
  return options;
}
Json latent_options() {
  Json options = llama_options();
  options.erase("kv_heads");
  options.update({{"kv_lora_rank", 32},
                  {"q_lora_rank", 22},
                  {"qk_nope_head_dim", 16},
                  {"qk_rope_head_dim", 10},
                  {"v_head_dim", 14},
                  {"experts", 16},
                  {"top_k", 3}});
  return options;
}
Json gpt_options() {
  return {{"layers", 2}, {"hidden", 48}, {"heads", 12}, {"vocab", 50}, {"tied", true}};
}
Json moe_options(const std::string& score, double capacity, double z_weight) {
  Json options = llama_options();
  options["experts"] = 16;
  options["top_k"] = 3;
  options["score"] = score;
  options["z_weight"] = z_weight;
  if (capacity > 0) options["capacity"] = capacity;
  return options;
}

void must_hold(const Graph& graph, const std::vector<Lemma>& lemmas,
               const LemmaOptions& options = {}) {
  const LemmaReport report = check_lemmas(graph, lemmas, options);
  for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
  for (const std::string& what : report.not_checked) FAIL_CHECK(what);
  CHECK(report.checked >= static_cast<int>(lemmas.size()));
}

}  // namespace

TEST_CASE("Every op of every model holds its lemmas, however it is cut") {
  const std::vector<std::pair<std::string, Json>> models{{"llama", llama_options()},
                                                         {"moe", latent_options()},
                                                         {"gpt", gpt_options()},
                                                         {"moe", moe_options("softmax", 0, 0.001)},
                                                         {"moe", moe_options("sigmoid", 1.25, 0)},
                                                         {"gemma2", small_options(5)},
                                                         {"gemma3", small_options(5)},
                                                         {"qwen3", small_options(0)},
                                                         {"olmo2", small_options(0)}};
  const auto& [kind, options] = models[GENERATE(0, 1, 2, 3, 4, 5, 6, 7, 8)];
  const Graph graph = graph_of(kind, options);
  const std::vector<Lemma> lemmas = every_lemma(graph);
  INFO(kind << " " << options.dump() << ": " << lemmas.size() << " lemmas");
  CHECK(lemmas.size() > 100);
  forget_lemmas();
  must_hold(graph, lemmas);
  must_hold(graph, lemmas, {{"seq"}});
}

TEST_CASE("Ops are tried whatever sizes of the model are equal, or add up, by chance") {
  const auto [experts, top, hidden] =
      GENERATE(std::tuple(3, 3, 8), std::tuple(5, 5, 48), std::tuple(13, 13, 48),
               std::tuple(6, 3, 48), std::tuple(5, 3, 48), std::tuple(9, 7, 16));
  Json options = moe_options("softmax", 0, 0);
  options.update({{"experts", experts},
                  {"top_k", top},
                  {"hidden", hidden},
                  {"heads", 4},
                  {"ffn", experts + 4}});
  const Graph graph = graph_of("moe", options);
  std::vector<Lemma> lemmas;
  for (const Lemma& lemma : every_lemma(graph))
    if (std::ranges::find(lemma.cut, "experts") != lemma.cut.end()) lemmas.push_back(lemma);
  INFO(top << " of " << experts << " experts: " << lemmas.size() << " lemmas");
  CHECK(lemmas.size() > 10);
  forget_lemmas();
  must_hold(graph, lemmas);
}

TEST_CASE("Every op of a model holds its lemmas at large sizes too") {
  const auto& [kind, options] = GENERATE(table<std::string, Json>(
      {{"llama", llama_options()}, {"moe", moe_options("sigmoid", 1.25, 0)}}));
  const Graph graph = graph_of(kind, options);
  LemmaOptions large;
  large.large = true;
  std::vector<Lemma> lemmas;
  for (const Lemma& lemma : every_lemma(graph))
    if (lemma.cut.size() <= 1 && !lemma.ring) lemmas.push_back(lemma);
  must_hold(graph, lemmas, large);
}

TEST_CASE("Grouped heads are cut where groups are, or every rank holds all keys") {
  Json options = llama_options();
  const std::int64_t kv_heads = GENERATE(1, 2, 3, 4, 6, 12);
  options["kv_heads"] = kv_heads;
  const Graph graph = graph_of("llama", options);
  INFO(kv_heads);
  std::vector<Lemma> lemmas;
  for (const Lemma& lemma : every_lemma(graph)) {
    const bool cuts_one =
        kv_heads == 1 && std::count(lemma.follow.begin(), lemma.follow.end(), "kv_heads") > 0;
    if (lemma.kind == "attention" && !cuts_one) lemmas.push_back(lemma);
  }
  CHECK(lemmas.size() > 10);
  must_hold(graph, lemmas);
}

TEST_CASE("What was tried before is remembered, and forgotten") {
  const Graph graph = graph_of("llama", llama_options());
  const std::vector<Lemma> lemmas = every_lemma(graph);
  forget_lemmas();
  const LemmaReport first = check_lemmas(graph, lemmas), again = check_lemmas(graph, lemmas);
  CHECK(first.checked == again.checked);
  CHECK(again.failures.empty());
  // Other sizes of the same ops have the same small ones.
  Json wider = llama_options();
  wider["layers"] = 3;
  const Graph other = graph_of("llama", wider);
  CHECK(check_lemmas(other, every_lemma(other)).checked == first.checked);
}

TEST_CASE("The lemmas of every mix hold, and none is left out") {
  forget_lemmas();
  std::set<std::string> kinds;
  for (const NamedMix& mix : all_mixes()) {
    INFO(mix.name);
    const std::vector<Program> programs = experiment(mix.setup).plan->programs;
    const Proof proof = prove(programs);
    INFO(proof.text());
    CHECK(proof.proved());
    const LemmaReport report = check_lemmas(programs, proof.lemmas);
    for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
    for (const std::string& what : report.not_checked) FAIL_CHECK(what);
    CHECK(report.checked > static_cast<int>(proof.lemmas.size()));
    for (const Lemma& lemma : proof.lemmas) kinds.insert(lemma.kind);
  }
  for (const char* kind :
       {"attention", "linear", "rms_norm", "ce_loss", "expert_linear", "combine"})
    CHECK(kinds.count(kind) == 1);
}

TEST_CASE("Lemmas of a large model are tried at the sizes of a small one") {
  const Json options = {{"layers", 4},   {"hidden", 4096}, {"heads", 32},
                        {"kv_heads", 8}, {"ffn", 14336},   {"vocab", 128256}};
  const Graph graph = graph_of("llama", options, 2, 8192);
  std::vector<Lemma> lemmas;
  for (const Lemma& lemma : every_lemma(graph)) {
    if (lemma.cut.size() < 2) lemmas.push_back(lemma);
  }
  forget_lemmas();
  must_hold(graph, lemmas);
}
