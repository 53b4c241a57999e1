// Mixes whose ranks are in several processes: verify, compare and training are what they are with
// threads alone.
#include <catch2/catch.hpp>

#include <algorithm>
#include <mutex>

#include "check/compare.h"
#include "check/slopes.h"
#include "support/braids.h"
#include "support/memory_carrier.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;
using Texts = std::vector<std::string>;

namespace {

std::vector<Mix> kinds_of_mixes() {
  return {{"dp", {dp(4)}},
          {"tp", {tp(4)}},
          {"zero 1", {zero(4, 1)}},
          {"zero 2", {zero(4, 2)}},
          {"zero 3", {zero(4, 3)}},
          {"pp", {pp(4, "1f1b", {1, 1, 1, 1})}},
          {"pp x dp", {pp(2, "1f1b", {2, 2}), dp(2)}},
          {"zero-bubble pp x tp", {pp(2, "zb-h1", {2, 2}), tp(2)}},
          {"ring", {sp(4, "ring")}},
          {"ulysses x dp", {dp(2), sp(2, "ulysses")}},
          {"ep in dp", {dp(4), ep(2)}},
          {"pp x zero 3 x tp", {pp(2, "1f1b", {2, 2}), zero(2, 3), tp(2)}}};
}

Setup setup_of(const Mix& mix) {
  Setup setup;
  setup.options["layers"] = 4;
  if (mix.name.starts_with("ep")) setup.make_moe();
  setup.plan = mix.plan;
  setup.batch = 4;
  setup.microbatch = 1;
  return setup;
}

// Each process has an experiment of its own.
std::vector<Experiment> experiments(const Setup& setup, int processes) {
  std::vector<Experiment> all;
  for (int p = 0; p < processes; ++p) all.push_back(experiment(setup));
  return all;
}

// Runs `body` in each process with its experiment.
void with_each(const Setup& setup, int processes,
               const std::function<void(Processes&, Experiment&)>& body) {
  std::vector<Experiment> all = experiments(setup, processes);
  const auto ends = in_processes(processes, [&](Processes& each) {
    Experiment& own = all[static_cast<std::size_t>(each.index())];
    own.processes = &each;
    body(each, own);
  });
  CHECK(ends == Texts(static_cast<std::size_t>(processes), "none"));
}

}  // namespace

TEST_CASE("every mix equals one rank, and every process knows it") {
  for (const Mix& mix : kinds_of_mixes()) {
    const int ranks = mix.name.starts_with("pp x zero") ? 8 : 4;
    for (const int processes : {2, ranks}) {
      // A process for each rank beside two processes: of one mix of each kind.
      if (processes == ranks && mix.name != "dp" && mix.name != "zero 3" && mix.name != "pp" &&
          mix.name != "ring" && mix.name != "ep in dp")
        continue;
      DYNAMIC_SECTION(mix.name << " over " << processes << " processes") {
        std::vector<double> errors(static_cast<std::size_t>(processes), -1);
        with_each(setup_of(mix), processes, [&](Processes& all, Experiment& own) {
          const VerifyOutcome outcome = verify(own, 2);
          if (!outcome.equal) throw std::runtime_error(describe(outcome, own.plan->mix()));
          errors[static_cast<std::size_t>(all.index())] = outcome.gradients;
        });
        CHECK(errors.front() >= 0);
        CHECK(std::count(errors.begin(), errors.end(), errors.front()) == processes);
      }
    }
  }
}

TEST_CASE("the first process sees what every rank reports, and every process the same losses") {
  const Setup setup = paired_mix(0, 0, false, false).setup;  // of four ranks, with braids
  int lanes = 0;
  std::vector<StepReport> alone;
  train(experiment(setup), nullptr, [&](const StepReport& report) { alone.push_back(report); });
  std::vector<StepReport> together;
  with_each(setup, 2, [&](Processes& all, Experiment& own) {
    const TrainOutcome outcome = train(own, nullptr, [&](const StepReport& report) {
      if (!all.first()) throw std::runtime_error("told of a step");
      together.push_back(report);
    });
    if (outcome.steps != 3) throw std::runtime_error("steps");
  });
  REQUIRE(together.size() == alone.size());
  for (std::size_t step = 0; step < alone.size(); ++step) {
    CHECK(together[step].loss == alone[step].loss);
    REQUIRE(together[step].ranks.size() == 4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const RankReport &one = together[step].ranks[rank], &other = alone[step].ranks[rank];
      CHECK(one.rank == static_cast<int>(rank));
      CHECK(one.peak_bytes == other.peak_bytes);
      REQUIRE(one.runs.size() == other.runs.size());
      for (std::size_t run = 0; run < one.runs.size(); ++run) {
        CHECK(one.runs[run].lane == other.runs[run].lane);
        lanes = std::max(lanes, 1 + one.runs[run].lane);
      }
      REQUIRE(one.communication.size() == other.communication.size());
      for (const auto& [key, use] : other.communication) {
        CHECK(one.communication.at(key).bytes == use.bytes);
        CHECK(one.communication.at(key).calls == use.calls);
      }
    }
  }
  CHECK(lanes == 2);
}

TEST_CASE("the first process ends a run early, any process stops it") {
  const Setup setup = setup_of({"", {dp(4)}});
  SECTION("observe says so") {
    std::atomic<bool> end = false;
    with_each(setup, 2, [&](Processes&, Experiment& own) {
      const TrainOutcome outcome = train(
          own, nullptr, [&](const StepReport& report) { end = report.step == 1; },
          [&]() -> bool { return end; });
      if (outcome.steps != 2 || outcome.interrupted) throw std::runtime_error("steps");
    });
  }
  SECTION("one process is asked to stop") {
    std::vector<std::atomic<bool>> stops(2);
    with_each(setup, 2, [&](Processes& all, Experiment& own) {
      stops[1] = true;
      const TrainOutcome outcome =
          train(own, &stops[static_cast<std::size_t>(all.index())], nullptr);
      if (outcome.steps != 1 || !outcome.interrupted) throw std::runtime_error("not stopped");
      const VerifyOutcome verified =
          verify(own, 3, 1e-10, &stops[static_cast<std::size_t>(all.index())]);
      if (!verified.interrupted) throw std::runtime_error("verify was not stopped");
    });
  }
}

TEST_CASE("compare judges two mixes in the first process") {
  Setup a = setup_of({"", {pp(2, "1f1b", {2, 2}), tp(2)}}), b = setup_of({"", {zero(4, 3)}});
  a.precision = b.precision = Precision::fp32;
  const CompareOutcome alone = compare(experiment(a), experiment(b));
  std::vector<Experiment> others = experiments(b, 2);
  CompareOutcome together;
  with_each(a, 2, [&](Processes& all, Experiment& own) {
    Experiment& other = others[static_cast<std::size_t>(all.index())];
    other.processes = &all;
    const CompareOutcome outcome = compare(own, other);
    if (all.first()) together = outcome;
  });
  CHECK(alone.equal);
  CHECK(together.equal);
  CHECK(together.tensors == alone.tensors);
  CHECK(together.bound_ratio == Approx(alone.bound_ratio).epsilon(1e-6));
}

TEST_CASE("a mix that parts from one rank only after its first step is followed in all processes") {
  Setup setup = setup_of({"", {dp(2), tp(2)}});
  setup.optimizer_options = {{"lr", 1e-2}, {"eps", 1e-30}};
  setup.optimizer = "adamw";
  const VerifyOutcome alone = verify(experiment(setup), 3);
  std::vector<VerifyOutcome> found(2);
  with_each(setup, 2, [&](Processes& all, Experiment& own) {
    found[static_cast<std::size_t>(all.index())] = verify(own, 3);
  });
  for (const VerifyOutcome& outcome : found) {
    CHECK(outcome.equal == alone.equal);
    CHECK(outcome.followed == alone.followed);
    CHECK(outcome.steps == alone.steps);
  }
}
