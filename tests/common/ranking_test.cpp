// Tests which steps of a run count, and which mix is the fastest where other programs come and go.
#include <catch2/catch.hpp>

#include <cmath>
#include <random>

#include "common/parting.h"
#include "common/ranking.h"

namespace mw {
namespace {

// A run whose steps take `quiet` seconds, and `busy` ones where others have a core: in `share` of
// them.
RunTiming run_of(double quiet, double cpu, double share, double busy, int steps = 40) {
  std::vector<TimedStep> all;
  for (int s = 0; s < steps; ++s) {
    const bool disturbed = s % 10 < 10 * share;
    const double jitter = 1 + 0.004 * (s % 3 - 1);
    all.push_back({(disturbed ? busy : quiet) * jitter, cpu * jitter, {disturbed ? 1.0 : 0.01}});
  }
  return timing_of(all, 8, 2);
}

RankedMix mix_of(const std::vector<RunTiming>& runs, const std::string& plan = "",
                 double flops = 0) {
  return {runs, plan.empty() ? AxisValues{} : AxisValues{{"plan", plan}}, flops};
}

TEST_CASE("Steps beside which others had the cores do not count") {
  const RunTiming run = run_of(0.1, 0.2, 0.5, 0.16);
  CHECK(run.wanted == 2);
  CHECK(run.disturbed_steps == 18);
  CHECK(run.steps == 38);
  CHECK_FALSE(run.disturbed);
  CHECK(run.seconds == Approx(0.1).epsilon(0.01));
  CHECK(run.error < 0.01);
  // All but one in ten are too many.
  const RunTiming busy = run_of(0.1, 0.2, 0.9, 0.16);
  CHECK(busy.disturbed);
  CHECK(busy.seconds == Approx(0.16).epsilon(0.01));
  CHECK(busy.cpu == Approx(0.2).epsilon(0.01));
  CHECK(disturbance_text(busy).find("of 2 cores") != std::string::npos);
  // Others' core is none of the run's where there are more than it wants.
  CHECK(timing_of({{1, 1, {1.0}}, {1, 1, {1.0}}, {1, 1, {1.0}}}, 2, 4).disturbed_steps == 0);
  // A limit of the control group takes cores however many there are.
  CHECK(timing_of({{1, 1, {0, 0.5}}, {1, 1, {0, 0.5}}}, 2, 4).disturbed_steps == 1);
  // Steps that were too short to measure are as the first stretch that was not.
  CHECK(timing_of({{1, 1, {}}, {1, 1, {}}, {1, 1, {1}}, {1, 1, {0}}}, 2, 2).disturbed_steps == 2);
  // Nobody says: all steps count.
  CHECK(timing_of({{1, 1, {}}, {2, 1, {}}}, 2, 2).disturbed_steps == 0);
}

TEST_CASE("A result keeps its timing") {
  const RunTiming run = run_of(0.1, 0.2, 0.9, 0.16);
  const RunTiming read = read_timing({{"step_seconds", 9}, {"timing", run.to_json()}});
  CHECK(read.to_json() == run.to_json());
  const RunTiming old = read_timing({{"step_seconds", 0.5}, {"cpu_seconds_per_step", 1.0}});
  CHECK(old.seconds == 0.5);
  CHECK(old.cpu == 1.0);
  CHECK_FALSE(old.disturbed);
  CHECK(std::isnan(read_timing(Json()).seconds));
}

TEST_CASE("The fastest beats every other one, or it is undecided") {
  const auto quiet = [](double seconds) { return run_of(seconds, 2 * seconds, 0, 0); };
  const Ranking clear = rank_mixes(
      {mix_of({quiet(0.13), quiet(0.131)}), mix_of({quiet(0.10), quiet(0.101)}), mix_of({})});
  CHECK(clear.fastest == 1);
  CHECK_FALSE(clear.by_cpu);
  CHECK(clear.wall[1].low < 0.1);
  CHECK(clear.wall[1].high > 0.101);
  CHECK_FALSE(clear.wall[2].known());
  CHECK(verdict_text(clear, {"a", "b", "c"}).find("fastest: b") == 0);

  const Ranking near = rank_mixes({mix_of({quiet(0.102), quiet(0.1)}),
                                   mix_of({quiet(0.1), quiet(0.101)}), mix_of({quiet(0.2)})});
  CHECK(near.undecided());
  CHECK(near.among == std::vector<int>{1, 0});
  CHECK(verdict_text(near, {"a", "b", "c"}).find("undecided: b, a") == 0);

  // One run each: what runs differ by from one to the next is no difference.
  CHECK(rank_mixes({mix_of({quiet(0.1)}), mix_of({quiet(0.104)})}).undecided());
  CHECK(rank_mixes({mix_of({quiet(0.1)}), mix_of({quiet(0.12)})}).fastest == 0);
  // One run of a few steps has no spread, so that no mix is called faster by it.
  const auto few = [](double seconds) { return mix_of({run_of(seconds, seconds, 0, 0, 4)}); };
  const Ranking untold = rank_mixes({few(0.1), few(0.3)});
  CHECK(untold.undecided());
  CHECK(std::isnan(untold.wall[0].half()));
  // Two seeds that happen to agree are no certainty: others' spread counts for them too.
  CHECK(rank_mixes({mix_of({quiet(0.1), quiet(0.1)}), mix_of({quiet(0.104), quiet(0.104)}),
                    mix_of({quiet(0.2), quiet(0.22)})})
            .undecided());
}

TEST_CASE("One alone is the fastest of nothing") {
  const Ranking alone = rank_mixes({mix_of({run_of(0.1, 0.2, 0, 0)})});
  CHECK(alone.fastest == -1);
  CHECK_FALSE(alone.undecided());
  CHECK(verdict_text(alone, {"a"}).empty());
}

TEST_CASE("CPU seconds decide where wall seconds were disturbed") {
  const RunTiming slow = run_of(0.15, 0.3, 0, 0), fast = run_of(0.1, 0.2, 1, 0.14),
                  slowed = run_of(0.1, 0.2, 1, 0.19);
  const Ranking ranking = rank_mixes({mix_of({slow}), mix_of({fast})});
  CHECK(ranking.disturbed == std::vector<bool>{false, true});
  CHECK(ranking.fastest == 1);
  CHECK(ranking.by_cpu);
  // Wall seconds that say otherwise leave it undecided: it may wait where it does not compute.
  CHECK(rank_mixes({mix_of({slow}), mix_of({slowed})}).undecided());
  CHECK(rank_mixes({mix_of({slow}), mix_of({run_of(0.1, 0.28, 1, 0.14)})}).undecided());
}

// The first beats the second by wall seconds, the second the third by CPU seconds, and the first
// and the third contradict each other.
TEST_CASE("The only mix that no other beats need not be the fastest") {
  const Ranking ranking =
      rank_mixes({mix_of({run_of(0.1, 2, 0, 0)}), mix_of({run_of(0.2, 0.2, 0, 0)}),
                  mix_of({run_of(0.1, 0.4, 1, 0.3)})});
  CHECK(ranking.undecided());
  CHECK(ranking.among == std::vector<int>{0, 2});
  CHECK(verdict_text(ranking, {"a", "b", "c"}).find("undecided: a, c are not told apart") == 0);
}

TEST_CASE("More work in less time is marked and decides nothing") {
  const RunTiming less = run_of(0.15, 0.3, 0, 0), more = run_of(0.1, 0.2, 0, 0);
  const std::vector<RankedMix> mixes = {
      mix_of({less}, "tp(2)", 1e9), mix_of({more}, "tp(2)", 1.3e9), mix_of({less}, "dp(2)", 1e9)};
  const Ranking ranking = rank_mixes(mixes);
  CHECK(ranking.impossible == std::vector<std::pair<int, int>>{{1, 0}});
  CHECK(ranking.fastest == -1);
  CHECK(verdict_text(ranking, {"none", "full", "dp"}).find("cannot be: full") != std::string::npos);
  CHECK(rank_mixes({mixes[1], mixes[2]}).impossible.empty());
}

// Eight mixes, three seeds; another program comes and goes, slows a step to up to twice its time
// and makes CPU seconds up to 6 % more. The winner is the idle machine's, or it is undecided.
TEST_CASE("A program that comes and goes makes no other mix the winner") {
  int decided = 0;
  for (unsigned trial = 0; trial < 200; ++trial) {
    std::mt19937 random(trial);
    std::uniform_real_distribution<double> uniform(0, 1);
    std::normal_distribution<double> normal(0, 1);
    std::vector<RankedMix> mixes(8);
    for (std::size_t m = 0; m < mixes.size(); ++m) {
      for (int seed = 0; seed < 3; ++seed) {
        const double quiet =
            0.1 * (1 + 0.05 * static_cast<double>(m)) * (1 + 0.01 * normal(random));
        const double load = trial % 2 == 0 ? 0.95 : uniform(random);  // it stays, or goes
        bool on = uniform(random) < load;
        std::vector<TimedStep> steps;
        for (int s = 0; s < 30; ++s) {
          if (s % 5 == 0) on = uniform(random) < load;
          const double cpu = 2 * quiet * (1 + (on ? 0.06 * uniform(random) : 0));
          const double wall = quiet * (on ? 1.3 + 0.7 * uniform(random) : 1);
          steps.push_back({wall * (1 + 0.01 * normal(random)), cpu, {on ? 0.8 : 0.02}});
        }
        mixes[m].runs.push_back(timing_of(steps, 8, 2));
      }
    }
    const Ranking ranking = rank_mixes(mixes);
    INFO(trial);
    CHECK((ranking.fastest == 0 || ranking.undecided()));
    decided += ranking.fastest == 0 ? 1 : 0;
  }
  CHECK(decided >= 10);  // "undecided" is no answer to everything
}

TEST_CASE("Why measured and predicted steps part") {
  const RunTiming quiet = run_of(0.1, 0.2, 0, 0), busy = run_of(0.1, 0.2, 1, 0.16);
  CHECK(parting_of(quiet, {0.097, 0, 8}).why.empty());
  CHECK(parting_of(quiet, {0.097, 0, 8}).explained);
  CHECK(parting_of(quiet, {0.085, 0.2, 1}).explained);
  const Parting all = parting_of(busy, {0.1, 0, 8});
  CHECK(all.share == Approx(0.6).epsilon(0.02));
  CHECK(all.why == std::vector<std::string>{"busy", "fewer_cores", "not_calibrated"});
  CHECK(all.text.find("longer than predicted: other programs had") != std::string::npos);
  CHECK(parting_of(quiet, {0.2, 0.05, 2}).text ==
        "measured 50 % shorter than predicted, and nothing that is known explains it");
  CHECK(parting_of(quiet, {}).text.empty());
  RunTiming unknown = quiet;
  unknown.use.others = CoreUse::unknown;
  CHECK(parting_of(unknown, {0.05, 0.05, 1}).text ==
        "measured 100 % longer than predicted: what other programs used of the cores is not known "
        "here");
  CHECK(parting_of({{"timing", busy.to_json()}},
                   {{"step_seconds", 0.1}, {"step_error", 0.1}, {"ranks", 2}})
            .why == std::vector<std::string>{"busy"});
}

}  // namespace
}  // namespace mw
