// The split backward: dgrad at once, wgrad later, as zero-bubble schedules want it.
#include <catch2/catch.hpp>

#include "fixture.h"

using namespace mw;
using namespace mw::test;

namespace {

// All forwards, then all dgrads, then all wgrads: wgrad reads everything as late as can be.
class Delayed : public Rules {
 public:
  Delayed(std::string axis, int ways, std::vector<Dim> dims)
      : Rules(std::move(axis), ways, std::move(dims)) {}
  void edit(Draft& draft) const override {
    Rules::edit(draft);
    draft.pipeline({"", {}, {}, delayed_wgrads, {}, 0});
  }
};

}  // namespace

TEST_CASE("A wgrad that waits for all dgrads gives the same gradients") {
  const bool is_gpt = GENERATE(false, true);
  Setup setup;
  if (is_gpt) {
    setup.model = "gpt";
    setup.options = {{"layers", 2}, {"hidden", 48}, {"heads", 12}, {"vocab", 50}, {"tied", true}};
  }
  setup.batch = 12;
  setup.microbatch = 2;
  setup.plan = {dp(2), choice("tp", std::make_shared<Delayed>(
                                        "tp", 2, Dims{"heads", "kv_heads", "ffn", "vocab"}))};
  const Experiment e = experiment(setup);
  const Program& program = e.plan->programs.front();
  REQUIRE(program.segment("wgrad") >= 0);
  int split = 0;
  for (const Instruction& i : program.segments[program.segment("wgrad")].code) {
    if (i.code == Code::compute) {
      CHECK(i.piece == Piece::wgrad);
      ++split;
    }
  }
  CHECK(split == (is_gpt ? 2 * 6 + 1 : 2 * 7 + 1));  // every linear, the head among them
  for (const Instruction& i : program.segments[program.segment("dgrad")].code) {
    CHECK_FALSE((i.code == Code::compute && i.piece == Piece::wgrad));
  }
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
}
