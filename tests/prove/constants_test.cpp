// Numbers of a step that are built into ops are held to the step that the programs run.
#include <catch2/catch.hpp>

#include "prove/prove.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// The programs of a plan, over the graph of a step of so many tokens.
std::vector<Program> programs_of(const Setup& setup, std::int64_t tokens) {
  std::vector<Program> programs = experiment(setup).plan->programs;
  const auto model = made<Model>("model", setup.model, setup.options);
  for (Program& program : programs) {
    const Graph& graph = *program.graph;
    program.graph =
        std::make_shared<const Graph>(model->build(graph.size("batch"), graph.size("seq"), tokens));
  }
  return programs;
}

}  // namespace

TEST_CASE("A loss that divides by other tokens than the step's is refused (TrainVerify 13)") {
  Setup setup;
  setup.plan = {dp(2)};
  setup.microbatch = 3;
  const std::int64_t tokens = setup.batch * setup.sequence;
  CHECK(prove(programs_of(setup, tokens)).proved());
  // The constant is one rank's tokens, as where each divides by its own (CP's and MTP's loss
  // scale).
  const Proof proof = prove(programs_of(setup, tokens / 2));
  REQUIRE(!proof.refusals.empty());
  const Refusal& refusal = proof.refusals.front();
  CHECK(refusal.code == "prove.constant");
  CHECK(refusal.where == "op loss");
  CHECK(refusal.message.find("48 tokens built in, and a step has 96") != std::string::npos);
  CHECK(refusal.message.find("2 times what one rank makes") != std::string::npos);
}

TEST_CASE("Balancing losses are held to the step's sequences and tokens") {
  Setup setup;
  setup.make_moe();
  setup.options["z_weight"] = 0.01;
  setup.plan = {dp(2)};
  const std::int64_t tokens = setup.batch * setup.sequence;
  CHECK(prove(programs_of(setup, tokens)).proved());
  const Proof proof = prove(programs_of(setup, 4 * tokens));
  std::set<std::string> constants;
  for (const Refusal& refusal : proof.refusals) {
    if (refusal.code != "prove.constant") continue;
    for (const char* name : {"sequences", "tokens"}) {
      const std::string built_in = fmt::format(" {} built in", name);
      if (refusal.message.find(built_in) != std::string::npos) constants.insert(name);
    }
  }
  CHECK(constants == std::set<std::string>{"sequences", "tokens"});
}
