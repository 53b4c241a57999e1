// Recurrences whose sequence is cut: each rank scans its own part, and the state goes from part
// to part, in whatever order these lie, beside every other form.
#include <catch2/catch.hpp>

#include <algorithm>

#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup mamba(std::vector<StrategyChoice> plan) {
  Setup setup;
  setup.model = "mamba2";
  setup.options = {{"layers", 2}, {"hidden", 24}, {"heads", 4}, {"head_dim", 6},
                   {"groups", 2}, {"state", 5},   {"chunk", 4}, {"vocab", 50}};
  setup.batch = 4;
  setup.sequence = 24;
  setup.plan = std::move(plan);
  return setup;
}

StrategyChoice balanced(int ways, const std::string& form) {
  return strategy("sp", {{"ways", ways}, {"form", form}, {"balance", "zigzag"}});
}

// How many scans begin at a state that another op made.
std::ptrdiff_t scans_in_parts(const Experiment& e) {
  const auto& ops = e.plan->graph->ops();
  return std::count_if(ops.begin(), ops.end(), [](const Op& op) {
    return op.kind() == "scan" && op.inputs.size() > op.of_model().inputs.size();
  });
}

}  // namespace

TEST_CASE("Scans of parts of the sequence equal one rank in every mix") {
  const auto& [name, plan] = GENERATE(values<Mix>({
      {"ring of two", {sp(2, "ring")}},
      {"ring of four", {sp(4, "ring")}},
      {"gathered", {sp(3, "allgather")}},
      {"zigzag", {balanced(2, "ring")}},
      {"zigzag of four, gathered", {balanced(4, "allgather")}},
      {"within dp", {dp(2), sp(2, "ring")}},
      {"beside tp", {sp(2, "ring"), tp(2)}},
      {"beside sp on the ranks of tp", {sp(2, "ring"), tp(2), sp()}},
      {"within stages", {pp(2, "1f1b", {1, 1}), sp(2, "ring")}},
      {"beside shards", {zero(2, 3), sp(2, "ring")}},
      {"in shards over the sequence", {zero_over_sequence(2, 2), sp(2, "ring")}},
      {"mixed", {strategy("sp", {{"ways", 4}, {"ulysses", 2}})}},
  }));
  const bool odd = GENERATE(false, true), again = GENERATE(false, true);
  Setup setup = mamba(plan);
  if (odd) setup.sequence = 17;
  if (again) setup.recompute.kind = RecomputePolicy::Kind::full;
  DYNAMIC_SECTION(name << (odd ? ", odd" : "") << (again ? ", recomputed" : "")) {
    CHECK(scans_in_parts(experiment(setup)) == 2);
    must_equal_one_rank(setup);
  }
}

TEST_CASE("A scan that no axis cuts along the sequence is the model's op") {
  for (const auto& plan : {std::vector{dp(2)}, {tp(2), sp()}, {sp(2, "ulysses")}}) {
    const Experiment e = experiment(mamba(plan));
    CHECK(scans_in_parts(e) == 0);
  }
}

TEST_CASE("Where an order's ranges lie across ranks, each rank scans the whole sequence") {
  const auto across = does("across", {{"cut", 2, Role::sequence}}, [](Draft& draft) {
    draft.shard("seq", "cut");
    draft.permute_tokens("seq", {{8, 16}, {0, 8}});
  });
  const Setup setup = mamba({across});
  CHECK(scans_in_parts(experiment(setup)) == 0);
  must_equal_one_rank(setup);
}
