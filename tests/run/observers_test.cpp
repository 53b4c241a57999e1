// Observers of a run: when they are called, what they may ask for, and what they hear of a failure.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "app/observe.h"
#include "app/recorder.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/error.h"
#include "observers/held_out.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// What observers were called for, by rank.
class Calls {
 public:
  void add(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    of_[rank].push_back(what);
  }
  std::vector<std::string> of(int rank) { return of_[rank]; }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<std::string>> of_;
};

class Noted : public RunObserver {
 public:
  Noted(std::string name, Calls& calls) : name_(std::move(name)), calls_(calls) {}
  void begin(RankRun& rank) override { calls_.add(rank.rank(), name_ + " begin"); }
  void step(RankRun& rank, StepEnd& end) override {
    calls_.add(rank.rank(), name_ + " " + std::to_string(end.step) + (end.last ? " last" : ""));
  }
  void finish(RankRun& rank) override { calls_.add(rank.rank(), name_ + " finish"); }
  void failed(const RankFailed& error) override { calls_.add(-1, error.problems().front().code); }

 private:
  const std::string name_;
  Calls& calls_;
};

Experiment on_four_ranks(std::int64_t steps) {
  Setup setup;
  setup.plan = {dp(2), tp(2)};
  Experiment e = experiment(setup);
  e.steps = steps;
  return e;
}

TrainOutcome run(const RunSetup& setup, const std::vector<RunObserver*>& observers) {
  return train(setup, observers, nullptr);
}

// Keeps its core for a while at the beginning of each step.
class Works : public RunObserver, public Watcher {
 public:
  explicit Works(double seconds) : seconds_(seconds) {}
  void begin(RankRun& rank) override { rank.watch(this); }
  void finish(RankRun& rank) override { rank.unwatch(this); }
  void begin(RankRun& /*rank*/, std::int64_t /*step*/) override {
    const double began = core_seconds_of(CLOCK_THREAD_CPUTIME_ID);
    while (core_seconds_of(CLOCK_THREAD_CPUTIME_ID) < began + seconds_) {
    }
  }
  void computed(const Instruction&, int, int, const at::Tensor&) override {}
  void gradients(RankRun& /*rank*/) override {}

 private:
  const double seconds_;
};

}  // namespace

TEST_CASE("Where ranks run in turns every step has the time of its own work, the last one too") {
  constexpr int ranks = 16;
  constexpr double each = 0.01;
  Setup setup;
  setup.batch = ranks;
  setup.plan = {dp(ranks)};
  Experiment e = experiment(setup);
  e.steps = 4;
  e.threads = 1;
  std::vector<StepReport> steps;
  OnStep hears([&](const StepReport& report) {
    steps.push_back(report);
    return false;
  });
  Works works(each);
  CHECK(run(e, {&works, &hears}).steps == 4);
  REQUIRE(steps.size() == 4);
  // No rank is faster than the core that it has.
  const double least = each * ranks / std::min(ranks, core_count());
  for (const StepReport& step : steps) {
    if (step.step == 0) continue;  // some ranks may have begun it before rank 0 came to its clock
    INFO(step.step << ": " << step.seconds << " s, " << step.cpu_seconds << " s of cores");
    CHECK(step.seconds >= 0.99 * least);
    CHECK(step.cpu_seconds >= 0.99 * each * ranks);
  }
}

TEST_CASE("Every rank calls the observers in their order") {
  Calls calls;
  Noted first("a", calls), second("b", calls);
  CHECK(run(on_four_ranks(2), {&first, &second}).steps == 2);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(calls.of(rank) == std::vector<std::string>{"a begin", "b begin", "a 0", "b 0", "a 1 last",
                                                     "b 1 last", "a finish", "b finish"});
  }
}

TEST_CASE("What rank 0 decides ends the run on all ranks, before those after it are called") {
  Calls calls;
  OnStep ends([](const StepReport& report) { return report.step == 1; });
  Noted after("after", calls);
  const TrainOutcome outcome = run(on_four_ranks(5), {&ends, &after});
  CHECK(outcome.steps == 2);
  CHECK_FALSE(outcome.interrupted);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(calls.of(rank) ==
          std::vector<std::string>{"after begin", "after 0", "after 1 last", "after finish"});
  }
}

TEST_CASE("The wish to stop ends an evaluation after its batch, and observers hear of the end") {
  struct Stops final : TokenSource {
    explicit Stops(std::atomic<bool>& flag) : stop(flag) {}
    std::int64_t vocab() const override { return 16; }
    std::int64_t tokens() const override { return 0; }
    void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                std::int64_t* labels) const override {
      if (k >= 24) stop = true;
      most = std::max(most.load(), k);
      std::fill_n(inputs, sequence, k % 16);
      std::fill_n(labels, sequence, 1);
    }
    std::atomic<bool>& stop;
    mutable std::atomic<std::int64_t> most{0};
  };
  Experiment e = on_four_ranks(5);
  std::atomic<bool> stop{false};
  const auto data = std::make_shared<Stops>(stop);
  e.held_out_plan = forward_only(*e.plan);
  e.held_out_data = data;
  HeldOutLoss held_out(2, 1000000, e.steps);
  Calls calls;
  Noted after("after", calls);
  const std::vector<RunObserver*> observers{&held_out, &after};
  const TrainOutcome outcome = train(e, observers, &stop);
  CHECK(outcome.interrupted);
  CHECK(outcome.steps == 2);
  CHECK(data->most < 24 + 2 * e.plan->request.batch);
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(calls.of(rank) ==
          std::vector<std::string>{"after begin", "after 0", "after 1 last", "after finish"});
  }
}

TEST_CASE("Ranks that a schedule gives different rates are refused after the step") {
  for (const std::int64_t parts_at : {0, 2}) {
    Experiment e = on_four_ranks(5);
    std::atomic<int> asked{0};
    e.schedule = [&](std::int64_t step) {
      return step < parts_at ? 1e-3 : 1e-3 * static_cast<double>(1 + asked++);
    };
    try {
      run(e, {});
      FAIL("nothing was thrown");
    } catch (const RankFailed& error) {
      const Problem& problem = error.problems().front();
      CHECK(problem.code == "process.apart");
      CHECK(problem.key == "schedule");
      CHECK_THAT(problem.message,
                 Catch::Contains("the learning rate of step " + std::to_string(parts_at)));
    }
  }
}

TEST_CASE("Two observers that decide in one step are both heard") {
  OnStep goes_on([](const StepReport&) { return false; });
  OnStep ends([](const StepReport& report) { return report.step == 2; });
  CHECK(run(on_four_ranks(5), {&goes_on, &ends}).steps == 3);
  CHECK(run(on_four_ranks(5), {&ends, &goes_on}).steps == 3);
}

TEST_CASE("What an observer throws fails its rank, and all observers hear of it once") {
  struct Throws : RunObserver {
    void step(RankRun& rank, StepEnd& end) override {
      if (rank.rank() == 3 && end.step == 1) throw Error(Stage::run, "run.own", "", "no more");
    }
  };
  Calls calls;
  Throws throws;
  Noted other("other", calls);
  try {
    run(on_four_ranks(5), {&throws, &other});
    FAIL("nothing was thrown");
  } catch (const RankFailed& error) {
    CHECK(error.rank() == 3);
    CHECK(error.problems().front().code == "run.own");
  }
  CHECK(calls.of(-1) == std::vector<std::string>{"run.own"});
}

TEST_CASE("Observers run collectives between the steps, and see the same numbers on all ranks") {
  struct Norms : RunObserver {
    void step(RankRun& rank, StepEnd& end) override {
      const at::Tensor whole = rank.whole(0, false);
      const std::lock_guard lock(mutex);
      of_step[end.step].push_back(whole.norm().item<double>());
    }
    std::mutex mutex;
    std::map<std::int64_t, std::vector<double>> of_step;
  };
  Setup setup;
  setup.plan = {zero(4, 3)};
  Experiment e = experiment(setup);
  e.steps = 2;
  Norms norms;
  run(e, {&norms});
  REQUIRE(norms.of_step.size() == 2);
  for (const auto& [step, all] : norms.of_step) {
    REQUIRE(all.size() == 4);
    for (const double norm : all) CHECK(norm == all.front());
  }
  CHECK(norms.of_step[0].front() != norms.of_step[1].front());
}

TEST_CASE("Rank 0 does not wait for what a recorder writes, and nothing that it has is lost") {
  std::promise<void> over;
  const std::shared_future<void> wait = over.get_future().share();
  std::vector<std::int64_t> written;
  RunRecorder recorder(
      [&](const StepReport& report, const CoreUse&, const std::optional<HeldOut>&) {
        wait.wait();  // for the end of the training
        CHECK(report.ranks.size() == 4);
        written.push_back(report.step);
      });
  CHECK(run(on_four_ranks(4), {&recorder}).steps == 4);
  CHECK(written.empty());
  over.set_value();
  recorder.drain();
  CHECK(written == std::vector<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE("What a recorder fails at ends the run, or is thrown at its end") {
  std::atomic<int> calls = 0;
  RunRecorder recorder([&](const StepReport&, const CoreUse&, const std::optional<HeldOut>&) {
    ++calls;
    throw Error(Stage::run, "run.disk", "", "the disk is full");
  });
  const auto all = [&] {
    run(on_four_ranks(1000), {&recorder});
    recorder.drain();
  };
  CHECK_THROWS_WITH(all(), Catch::Contains("the disk is full"));
  CHECK(calls == 1);
}

TEST_CASE("A step is recorded though an observer after the recorder throws") {
  struct Throws : RunObserver {
    void step(RankRun& /*rank*/, StepEnd& end) override {
      if (end.step == 1) throw Error(Stage::run, "observer.fault", "", "enough", "");
    }
  } throws;
  std::vector<std::int64_t> recorded;
  RunRecorder recorder([&](const StepReport& report, const CoreUse&,
                           const std::optional<HeldOut>&) { recorded.push_back(report.step); });
  CHECK_THROWS_WITH(run(on_four_ranks(4), {&recorder, &throws}), Catch::Contains("enough"));
  recorder.drain();
  CHECK(recorded == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("What is due is written though no further step comes, and not once all is drained") {
  std::atomic<int> idle = 0;
  RunRecorder recorder([](const StepReport&, const CoreUse&, const std::optional<HeldOut>&) {}, {},
                       [&] { ++idle; });
  recorder.hand_over([] {});
  while (idle == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  recorder.drain();
  const int seen = idle;
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  CHECK(idle == seen);
}

TEST_CASE("The observer that ends a run is known by its name") {
  struct Ends : RunObserver {
    bool decides() const override { return true; }
    std::string name() const override { return "ends"; }
    void step(RankRun& rank, StepEnd& end) override {
      end.last = rank.rank() == 0 && end.step == 1;
    }
  } ends;
  const TrainOutcome ended = run(on_four_ranks(4), {&ends});
  CHECK(ended.steps == 2);
  CHECK(ended.ended_by == "ends");
  CHECK(run(on_four_ranks(1), {&ends}).ended_by.empty());
}

TEST_CASE("Several watchers are shown each tensor, in the order in which they came") {
  using Seen = std::vector<std::pair<const void*, int>>;  // who, and which slot
  struct Looks : RunObserver {
    struct Look : Watcher {
      Seen* seen = nullptr;
      void computed(const Instruction&, int slot, int, const at::Tensor&) override {
        seen->emplace_back(this, slot);
      }
      void gradients(RankRun& /*rank*/) override {}
    } look;
    void begin(RankRun& rank) override {
      if (rank.rank() == 0) rank.watch(&look);
    }
    void step(RankRun& rank, StepEnd& end) override {
      if (rank.rank() == 0 && end.step == last) rank.unwatch(&look);
    }
    std::int64_t last = -1;  // after which it looks no longer
  } a, b;
  Seen seen;
  a.look.seen = b.look.seen = &seen;
  b.last = 0;
  run(on_four_ranks(2), {&a, &b});
  const auto of = [&](const Looks& one) {
    return std::count_if(seen.begin(), seen.end(), [&](auto& s) { return s.first == &one.look; });
  };
  REQUIRE(of(b) > 0);
  CHECK(of(a) == 2 * of(b));
  for (std::size_t n = 0; n + 1 < static_cast<std::size_t>(2 * of(b)); n += 2) {
    CHECK(seen[n].first == &a.look);
    CHECK(seen[n + 1] == std::pair<const void*, int>{&b.look, seen[n].second});
  }
}
