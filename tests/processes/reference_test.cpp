// The one rank that verify holds a mix against runs in the first process alone: what the others do
// meanwhile, and what they then know.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "check/observe.h"
#include "support/memory_carrier.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;
using Texts = std::vector<std::string>;

namespace {

// Another source's tokens; counts what is asked for.
class Counted final : public TokenSource {
 public:
  Counted(std::shared_ptr<const TokenSource> source, std::atomic<int>& samples)
      : source_(std::move(source)), samples_(samples) {}
  std::int64_t vocab() const override { return source_->vocab(); }
  std::int64_t tokens() const override { return source_->tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    ++samples_;
    source_->sample(k, sequence, inputs, labels);
  }

 private:
  const std::shared_ptr<const TokenSource> source_;
  std::atomic<int>& samples_;
};

// One that fails at a sample of the second step.
class Torn final : public TokenSource {
 public:
  explicit Torn(std::shared_ptr<const TokenSource> source) : source_(std::move(source)) {}
  std::int64_t vocab() const override { return source_->vocab(); }
  std::int64_t tokens() const override { return source_->tokens(); }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    if (k >= 4) throw Error(Stage::run, "data.header", "data", "the file is torn");
    source_->sample(k, sequence, inputs, labels);
  }

 private:
  const std::shared_ptr<const TokenSource> source_;
};

Setup four_ranks() {
  Setup setup;
  setup.plan = {pp(2, "1f1b", {1, 1}), dp(2)};
  setup.batch = 4;
  setup.microbatch = 1;
  return setup;
}

// Runs `body` in two processes, each with an experiment of its own, as the program does: an error
// is told to the other process.
Texts in_two(const Setup& setup, const std::function<void(JoinedProcesses&, Experiment&)>& body) {
  std::vector<Experiment> all;
  for (int p = 0; p < 2; ++p) all.push_back(experiment(setup));
  return in_processes(2, [&](JoinedProcesses& each) {
    Experiment& own = all[static_cast<std::size_t>(each.index())];
    own.processes = &each;
    try {
      body(each, own);
    } catch (...) {
      each.leave(std::current_exception(), 1, [](auto) { return 1; });
      throw;
    }
  });
}

}  // namespace

TEST_CASE("One rank computes in the first process alone") {
  const Setup setup = four_ranks();
  std::vector<std::atomic<int>> samples(2);
  std::vector<VerifyOutcome> found(2);
  CHECK(in_two(setup, [&](Processes& all, Experiment& own) {
          const auto p = static_cast<std::size_t>(all.index());
          own.data = std::make_shared<Counted>(own.data, samples[p]);
          found[p] = verify(own, 2);
        }) == Texts(2, "none"));
  const VerifyOutcome alone = verify(experiment(setup), 2);
  for (const VerifyOutcome& outcome : found) {
    CHECK(outcome.equal);
    CHECK(outcome.gradients == alone.gradients);
    CHECK(outcome.parameters == alone.parameters);
    CHECK(outcome.loss == alone.loss);
    CHECK(outcome.worst == alone.worst);
  }
  // The first stage's ranks load tokens, the last one's labels: each half of the step's samples.
  CHECK(samples[1] > 0);
  CHECK(samples[0] == samples[1] + 2 * setup.batch);
}

TEST_CASE("One rank that is not finite ends the comparison in all processes at the same place") {
  Setup setup = four_ranks();
  setup.optimizer_options = {{"lr", 1e-3}};
  const auto exploding = [](Experiment& e) { e.schedule = [](std::int64_t) { return 1e200; }; };
  Experiment by_itself = experiment(setup);
  exploding(by_itself);
  const VerifyOutcome alone = verify(by_itself, 3);
  CHECK_FALSE(alone.not_finite.empty());
  CHECK(in_two(setup, [&](Processes&, Experiment& own) {
          exploding(own);
          const VerifyOutcome outcome = verify(own, 3);
          if (outcome.not_finite != alone.not_finite || outcome.steps != alone.steps ||
              outcome.undecided != alone.undecided)
            throw std::runtime_error(describe(outcome, "") + describe(alone, ""));
        }) == Texts(2, "none"));
}

TEST_CASE("What the one rank fails of, all processes end of") {
  const Texts ends = in_two(four_ranks(), [&](Processes& all, Experiment& own) {
    if (all.first()) own.data = std::make_shared<Torn>(own.data);
    verify(own, 2);
  });
  CHECK(ends[0] == ends[1]);
  CHECK(ends[0].find("data.header") != std::string::npos);
}

TEST_CASE("Others wait for the first process however long it takes, and hear that one stops") {
  const auto timeout = std::chrono::seconds(4);
  std::atomic<int> done = 0;
  std::vector<std::atomic<bool>> stops(2);
  const Texts ends = in_processes(
      2,
      [&](Processes& all) {
        Experiment own;
        own.processes = &all;
        const auto p = static_cast<std::size_t>(all.index());
        by_the_first(own, &stops[p], [&](const std::atomic<bool>*) {
          ++done;
          std::this_thread::sleep_for(timeout + std::chrono::seconds(1));
        });
        demand(done == 1, "a second process was at it");
        all.barrier("both have waited");
        stops[1] = true;
        by_the_first(own, &stops[p], [](const std::atomic<bool>*) {});
      },
      timeout);
  CHECK(done == 1);
  CHECK(ends == Texts(2, "run.stopped"));
}

TEST_CASE("A process that is lost while the first computes ends that work") {
  const auto post = std::make_shared<Post>(2);
  const Setup setup = four_ranks();
  std::vector<Experiment> all;
  for (int p = 0; p < 2; ++p) all.push_back(experiment(setup));
  const int steps = 20'000;  // more than a minute's
  std::atomic<int> samples = 0;
  all[0].data = std::make_shared<Counted>(all[0].data, samples);
  const Texts ends = in_processes(
      2,
      [&](Processes& each) {
        Experiment& own = all[static_cast<std::size_t>(each.index())];
        own.processes = &each;
        if (each.first()) verify(own, steps);
        post->lose(1);
      },
      std::chrono::seconds(60), post);
  CHECK(ends[0] == "process.lost");
  CHECK(samples < steps * setup.batch);
}
