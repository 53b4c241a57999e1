// Which exchanges of experts' rows the planner marks as those that bring how many rows there are.
#include <catch2/catch.hpp>

#include <set>

#include "meshwright/engine/footprint.h"
#include "meshwright/passes.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

struct Exchanges {
  int marked = 0, out = 0, home = 0, elsewhere = 0;  // elsewhere: marked, and no start of one
  bool first = true;                                 // a layer's mark stands at its first
};

// The exchanges of instructions of this phase, each once; and how many transfers each has.
Exchanges exchanges(const Program& program, const std::string& phase) {
  const RankView rank(program, program.first());
  Exchanges seen;
  std::set<int> layers;
  for (const Segment& segment : program.segments) {
    if (segment.copy_of >= 0) continue;
    for (const Instruction& i : segment.code) {
      if (i.phase != phase) continue;
      const bool starts = i.code == Code::start && i.move.exchanges_rows();
      if (i.move.brings_counts && !starts) ++seen.elsewhere;
      if (!starts) continue;
      CHECK(footprint(rank, i, FootprintParts::work).transfers.size() ==
            (i.move.brings_counts ? 2 : 1));
      ++(i.move.to == Dim("experts") ? seen.out : seen.home);
      const Value& value = program.graph->value(program.slots[i.inputs[0]].value);
      const bool first = layers.insert(program.graph->ops()[value.producer].layer).second;
      if (i.move.brings_counts) ++seen.marked;
      seen.first = seen.first && first == i.move.brings_counts;
    }
  }
  return seen;
}

}  // namespace

TEST_CASE("The first exchange of a layer brings the counts, and no other one") {
  const bool overlap = GENERATE(false, true), stages = GENERATE(false, true);
  Setup setup;
  setup.make_moe();
  setup.options["layers"] = 4;
  setup.plan = {dp(2), strategy("ep", {{"ways", 2}, {"overlap", overlap}})};
  if (stages) setup.plan.push_back(pp(2, "1f1b", {2, 2}));
  setup.recompute.kind = GENERATE(RecomputePolicy::Kind::none, RecomputePolicy::Kind::full);
  const bool again = setup.recompute.kind == RecomputePolicy::Kind::full;
  const Experiment e = experiment(setup);
  for (const Program& program : e.plan->programs) {
    const int layers = stages ? 2 : 4;
    const Exchanges forward = exchanges(program, "forward");
    CHECK(forward.marked == layers);
    CHECK(forward.out == 2 * layers);  // rows, and what they weigh
    CHECK(forward.home == layers);
    CHECK(forward.first);
    CHECK(forward.elsewhere == 0);
    const Exchanges backward = exchanges(program, "backward"),
                    recompute = exchanges(program, "recompute");
    CHECK(backward.marked + backward.elsewhere + recompute.marked + recompute.elsewhere == 0);
    CHECK(backward.out == layers);
    CHECK(recompute.out == (again ? 2 * layers : 0));
  }
}

TEST_CASE("A plan whose exchanges bring no counts has another hash, and does not run") {
  Setup setup;
  setup.make_moe();
  const auto plan = [&](bool clears) {
    const auto edit = [clears](Draft& draft) {
      draft.add_pass({"marks", [clears](Program& program) {
                        for (Segment& segment : program.segments) {
                          for (Instruction& i : segment.code)
                            i.move.brings_counts = i.move.brings_counts && !clears;
                        }
                      }});
    };
    setup.plan = {dp(2), ep(2), does("marks", {}, edit)};
    return experiment(setup);
  };
  const Experiment cleared = plan(true);
  CHECK(cleared.plan->hash() != plan(false).plan->hash());
  try {
    verify(cleared);
    FAIL_CHECK("it ran");
  } catch (const Error& error) {
    CHECK(error.problems().front().message.find("before the exchange that brings their counts") !=
          std::string::npos);
  }
}
