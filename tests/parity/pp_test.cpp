// Pipelines: every schedule gives one rank's gradients, whatever lies beside it.
#include <catch2/catch.hpp>

#include <numeric>

#include "fixture.h"

using namespace mw;
using namespace mw::test;

namespace {

void check_equal(const Setup& setup) {
  const Experiment e = experiment(setup);
  const VerifyOutcome outcome = verify(e);
  INFO(describe(outcome, e.plan->mix()));
  CHECK(outcome.equal);
}

Setup small(int layers, bool gpt) {
  Setup setup;
  setup.options = {{"layers", layers}, {"hidden", 16}, {"heads", 4},
                   {"kv_heads", 2},    {"ffn", 24},    {"vocab", 26}};
  if (gpt) {
    setup.model = "gpt";
    setup.options = {{"layers", layers}, {"hidden", 16}, {"heads", 4}, {"vocab", 26},
                     {"tied", true}};
  }
  setup.sequence = 6;
  return setup;
}

std::vector<int> even(int layers, int parts) {
  std::vector<int> list;
  for (int v = 0; v < parts; ++v) {
    list.push_back(static_cast<int>(shard_range(layers, parts, v).size));
  }
  return list;
}

}  // namespace

TEST_CASE("Every schedule equals one rank, with dp and tp beside it") {
  for (const Scheduler* scheduler : schedulers()) {
    const std::string name = scheduler->name();
    for (const int stages : {2, 3, 4}) {
      const int fixed = scheduler->fixed_chunks();
      for (const int chunks : fixed > 0 ? std::vector<int>{fixed} : std::vector<int>{1, 2, 3}) {
        for (const int m : {1, 2, 5, 8}) {
          const int parts = stages * chunks;
          // The neighbours take turns, so that each number meets each schedule.
          const int turn = (stages + chunks + m) % 3;
          Setup setup = small(parts, turn == 1);
          const int dp_ways = turn == 0 ? 2 : 1, tp_ways = turn == 1 ? 2 : 1;
          setup.batch = m * dp_ways;
          setup.microbatch = 1;
          setup.plan = {pp(stages, name, even(parts, parts))};
          if (dp_ways > 1) setup.plan.push_back(dp(dp_ways, 1 << 10));
          if (tp_ways > 1) setup.plan.push_back(tp(tp_ways));
          DYNAMIC_SECTION(name << " stages " << stages << " chunks " << chunks << " microbatches "
                               << m << " dp " << dp_ways << " tp " << tp_ways) {
            check_equal(setup);
          }
        }
      }
    }
  }
}
