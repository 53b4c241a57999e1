// Muon needs whole matrices: however they are cut and stored, the parameters are one rank's.
#include <catch2/catch.hpp>

#include "draw/listing.h"
#include "support/setup.h"
#include "whole_matrices.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup muon_setup(const std::string& model) {
  return whole_matrix_setup(model, "muon",
                            {{"lr", 0.02}, {"clip", 0.5}, {"adamw", {{"lr", 3e-3}}}});
}

}  // namespace

TEST_CASE("Muon equals one rank: dp, tp, ZeRO, pipelines", "[matrix]") {
  const std::string model = GENERATE(as<std::string>{}, "llama", "gpt");
  const Mix mix = whole_matrix_mix(GENERATE(range(0, whole_matrix_mixes)));
  Setup setup = muon_setup(model);
  setup.plan = mix.plan;
  DYNAMIC_SECTION(model << ", " << mix.name) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("... of a rate that matches AdamW's, without look-ahead") {
  Setup setup = muon_setup("llama");
  setup.optimizer_options["adjust_lr"] = "match_rms_adamw";
  setup.optimizer_options["nesterov"] = false;
  setup.optimizer_options["ns_steps"] = 4;
  setup.plan = {zero(2, 1), tp(2)};
  must_equal_one_rank(setup);
}

TEST_CASE("... of experts, each orthogonalised where it lies") {
  const int stage = GENERATE(0, 1, 3);
  const bool with_tp = GENERATE(false, true);
  Setup setup = muon_setup("moe");
  setup.plan = {dp(2), ep(2)};
  if (stage > 0) setup.plan.insert(setup.plan.begin(), zero(2, stage));
  if (with_tp) setup.plan.push_back(tp(2));
  DYNAMIC_SECTION("zero " << stage << (with_tp ? " tp" : "")) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("A direction gathered over tp is seen in the program") {
  Setup setup = muon_setup("llama");
  setup.plan = {zero(2, 1), tp(2)};
  const std::string listing = mw::listing(experiment(setup).plan->programs.front());
  CHECK(listing.find("momentum bucket") != std::string::npos);
  CHECK(listing.find("start    all-gather update of layers.0.attention.q.weight over tp") !=
        std::string::npos);
  CHECK(listing.find("orthogonalise update of layers.0.attention.q.weight") != std::string::npos);
}
