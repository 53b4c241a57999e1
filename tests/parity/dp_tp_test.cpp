// Data and tensor parallelism: every mix has one rank's gradients.
#include <catch2/catch.hpp>

#include "fixture.h"

using namespace mw;
using namespace mw::test;

namespace {

void check(const Setup& setup) {
  const Experiment e = experiment(setup);
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
  CHECK(outcome.gradients <= 1e-10);
}

const Json gpt_options = {
    {"layers", 2}, {"hidden", 48}, {"heads", 12}, {"vocab", 50}, {"tied", true}};

}  // namespace

TEST_CASE("dp x tp equals one rank: llama with grouped keys") {
  const int d = GENERATE(1, 2, 3, 4), t = GENERATE(1, 2, 3, 4);
  Setup setup;
  setup.plan = {dp(d), tp(t)};
  DYNAMIC_SECTION("dp " << d << " tp " << t) {
    check(setup);
  }
}

TEST_CASE("dp x tp equals one rank: gpt with tied embeddings") {
  const int d = GENERATE(1, 2, 3, 4), t = GENERATE(1, 2, 3, 4);
  Setup setup;
  setup.model = "gpt";
  setup.options = gpt_options;
  setup.plan = {dp(d), tp(t)};
  DYNAMIC_SECTION("dp " << d << " tp " << t) {
    check(setup);
  }
}

TEST_CASE("Gradient accumulation equals one rank") {
  const int microbatches = GENERATE(1, 2, 3, 4);
  const bool overlap = GENERATE(true, false);
  const bool is_gpt = GENERATE(true, false);
  Setup setup;
  if (is_gpt) {
    setup.model = "gpt";
    setup.options = gpt_options;
  }
  setup.batch = 24;
  setup.microbatch = 12 / microbatches;
  setup.plan = {dp(2, 4096, overlap), tp(2)};
  DYNAMIC_SECTION("microbatches " << microbatches << " overlap " << overlap << " gpt " << is_gpt) {
    check(setup);
  }
}

TEST_CASE("tp outside dp, and an axis of one rank") {
  Setup setup;
  setup.plan = {tp(2), dp(3)};
  check(setup);
  setup.plan = {dp(1), tp(2)};
  check(setup);
}

TEST_CASE("Weight gradients that run beside an all-reduce give the same gradients") {
  const bool is_gpt = GENERATE(true, false);
  Setup setup;
  if (is_gpt) {
    setup.model = "gpt";
    setup.options = gpt_options;
  }
  setup.microbatch = 3;
  setup.plan = {dp(2), choice("tp", std::make_shared<Rules>(
                                        "tp", 2, Dims{"heads", "kv_heads", "ffn", "vocab"},
                                        std::vector<Pass>{overlap_wgrad()}))};
  const Program program = experiment(setup).plan->programs.front();
  const auto& code = program.segments[program.segment("backward")].code;
  int between = 0;  // wgrads between a start and its wait
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].code != Code::start) continue;
    for (std::size_t j = i + 1; code[j].code != Code::wait; ++j)
      between += code[j].piece == Piece::wgrad;
  }
  CHECK(between == (is_gpt ? 2 * 4 + 1 : 2 * 5 + 1));  // q, k, v and the mlp's first; the head
  check(setup);
}
