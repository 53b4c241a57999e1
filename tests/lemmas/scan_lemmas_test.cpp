// Lemmas of the ops of layers without attention. Each op of Mamba-2 and of a gated delta rule is
// cut along every dim and pair of dims that allow it, and must hold what a proof assumes about
// the op.
#include <catch2/catch.hpp>
#include <map>

#include "lemma_graphs.h"
#include "meshwright/builder.h"
#include "plugins/models/ops/scan.h"
#include "prove/lemmas/lemmas.h"
#include "support/mixes.h"

using namespace mw;
using namespace mw::test;

namespace {

void all_must_hold(const Graph& graph) {
  const std::vector<Lemma> lemmas = every_lemma(graph);
  CHECK(lemmas.size() > 20);
  forget_lemmas();
  const std::vector<LemmaOptions> ways{{}, {{"seq", "parts"}}};
  for (const LemmaOptions& options : ways) {
    const LemmaReport report = check_lemmas(graph, lemmas, options);
    for (const Problem& failure : report.failures) FAIL_CHECK(failure.message);
    for (const std::string& what : report.not_checked) FAIL_CHECK(what);
    CHECK(report.checked >= static_cast<int>(lemmas.size()));
  }
}

// The graph with every scan in four parts of the sequence.
Graph in_parts(Graph graph) {
  graph.set_dim("parts", 4);
  std::map<int, Dim> parts;
  for (int op = 0; op < static_cast<int>(graph.ops().size()); ++op) {
    if (graph.traits(op).divides.valid()) parts[op] = "parts";
  }
  CHECK(!parts.empty());
  return graph.with_parts(parts);
}

// A scan by the delta rule, of linears of the embedded tokens.
Graph delta_graph() {
  Builder b("delta", 4, 24, 96);
  const std::map<std::string, std::int64_t> sizes{{"hidden", 48},   {"heads", 12}, {"kv_heads", 4},
                                                  {"head_dim", 10}, {"state", 14}, {"vocab", 50}};
  for (const auto& [dim, size] : sizes) b.dim(dim, size);
  const int x = b.embed();
  const auto part = [&](const char* name, Dims to) { return b.linear_to(name, x, std::move(to)); };
  const int q = part("q", {"kv_heads", "state"}), k = part("k", {"kv_heads", "state"}),
            v = part("v", {"heads", "head_dim"}),
            decay = b.map("decay", "-softplus(a)", {part("steps", {"heads"})}),
            rate = b.map("rate", "sigmoid(a)", {part("rates", {"heads"})});
  std::vector<Use> inputs;
  for (const int value : {q, k, v, decay, rate}) inputs.push_back(b.use(value));
  Op scans = b.op("scan", scan({5, true}), std::move(inputs), {"seq", "state", "head_dim"});
  scans.follows = {{"kv_heads", "heads"}};
  const int y = b.append(std::move(scans), {{"", b.dims(v)}})[0];
  b.head_and_loss(b.linear_to("out", y, {"hidden"}));
  return std::move(b.graph);
}

}  // namespace

TEST_CASE("Every op of Mamba-2 holds its lemmas, however it is cut") {
  const auto model = made<Model>("model", "mamba2",
                                 {{"layers", 2},
                                  {"hidden", 48},
                                  {"heads", 8},
                                  {"head_dim", 12},
                                  {"groups", 4},
                                  {"state", 10},
                                  {"chunk", 7},
                                  {"vocab", 50}});
  const Graph graph = model->build(8, 24, 4 * 8 * 24);
  all_must_hold(graph);
  all_must_hold(in_parts(graph));
}

TEST_CASE("The gated delta rule holds its lemmas, however it is cut") {
  all_must_hold(delta_graph());
  all_must_hold(in_parts(delta_graph()));
}
