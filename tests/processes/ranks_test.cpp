// Ranks in several processes: what they tell each other, and how a run ends when one of them fails,
// dies or hangs.
#include <catch2/catch.hpp>

#include <atomic>

#include "meshwright/engine/ranks.h"
#include "support/memory_carrier.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;
using Texts = std::vector<std::string>;

namespace {

RankOptions within(std::chrono::milliseconds timeout) {
  RankOptions options;
  options.timeout = timeout;
  options.threads = 1;
  return options;
}

// What RankFailed says in each process, and of which rank.
Texts failures(int processes, int ranks, const RankRuntime::Body& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60),
               std::shared_ptr<Post> post = nullptr) {
  Texts texts(static_cast<std::size_t>(processes));
  in_processes(
      processes,
      [&](Processes& all) {
        RankRuntime runtime(ranks, &all);
        try {
          runtime.run(body, within(timeout));
        } catch (const RankFailed& failed) {
          texts[static_cast<std::size_t>(all.index())] =
              fmt::format("{} {}", failed.rank(), failed.what());
        }
      },
      std::chrono::seconds(60), std::move(post));
  return texts;
}

void meet(RankContext& context) {
  std::vector<int> group(static_cast<std::size_t>(context.ranks));
  for (int r = 0; r < context.ranks; ++r) group[static_cast<std::size_t>(r)] = r;
  const auto world = make_communicator(*context.source, {"dp", group}, context.rank, nullptr);
  static const std::string label = "layers.0.norm";
  world->all_reduce(at::ones({3}), Reduction::sum, {"forward", &label}).wait();
}

}  // namespace

TEST_CASE("processes share ranks evenly, or are refused with both numbers") {
  CHECK(ranks_of_processes(8, 2, "") == std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(ranks_of_processes(2, 2, "") == std::vector<std::vector<int>>{{0}, {1}});
  const auto refused = [](int ranks, int processes) {
    try {
      ranks_of_processes(ranks, processes, "dp(2) x tp(3)");
    } catch (const Error& error) {
      CHECK(error.exit_code() == 3);
      return codes(error.problems()) + ": " + error.problems().front().hint;
    }
    return std::string("none");
  };
  CHECK(refused(6, 8) ==
        "launch.ranks plan: start 6 processes, or change the plan: its number of "
        "ranks must be a multiple of 8");
  CHECK(refused(6, 4) ==
        "launch.ranks plan: start 3 processes or 6, or change the plan: its "
        "number of ranks must be a multiple of 4");
  CHECK(refused(1, 2) ==
        "launch.ranks plan: start 1 process, or change the plan: its number of "
        "ranks must be a multiple of 2");
}

TEST_CASE("ranks gather, spread and wait for each other, in one process and in several") {
  for (const int processes : {1, 2, 4}) {
    const auto ends = in_processes(processes, [&](Processes& all) {
      RankRuntime runtime(4, processes == 1 ? nullptr : &all);
      std::atomic<int> right = 0;
      runtime.run(
          [&](RankContext& context) {
            for (int round = 0; round < 20; ++round) {
              const auto own = std::to_string(context.rank + 10 * round);
              const BytesOfRanks gathered = runtime.gather(context.rank, own);
              const BytesOfRanks every = runtime.all_gather(context.rank, own);
              const BytesOfRanks expected{
                  std::to_string(10 * round), std::to_string(1 + 10 * round),
                  std::to_string(2 + 10 * round), std::to_string(3 + 10 * round)};
              right += every == expected;
              right += gathered == (context.rank == 0 ? expected : BytesOfRanks());
              right += runtime.broadcast(context.rank, own) == expected[0];
              runtime.barrier(context.rank);
            }
          },
          within(std::chrono::seconds(60)));
      if (right != 60 * static_cast<int>(runtime.here().size())) throw std::runtime_error("wrong");
    });
    CHECK(ends == Texts(static_cast<std::size_t>(processes), "none"));
  }
}

TEST_CASE("a rank's failure is the same error in every process") {
  const auto fails = [](int failing) {
    return [failing](RankContext& context) {
      if (context.rank == failing)
        throw Error(Stage::run, "test.fault", "", "layers.1.ffn: no more memory");
      meet(context);
    };
  };
  for (const int failing : {0, 5}) {
    const Texts texts = failures(4, 8, fails(failing));
    CHECK(texts == Texts(4, fmt::format("{0} On rank {0}: layers.1.ffn: no more memory", failing)));
  }
}

TEST_CASE("a rank that fails while another waits for word of it, not in a collective") {
  const auto ends = in_processes(2, [&](Processes& all) {
    RankRuntime runtime(4, &all);
    const std::string fault = thrown([&] {
      runtime.run(
          [&](RankContext& context) {
            if (context.rank == 3) throw Error(Stage::run, "test.fault", "", "here");
            runtime.barrier(context.rank);
          },
          within(std::chrono::seconds(60)));
    });
    demand(fault == "test.fault", "another fault");
    // What fails ends the run, not what comes after.
    std::atomic<int> ran = 0;
    runtime.run(
        [&](RankContext& context) {
          runtime.barrier(context.rank);
          ++ran;
        },
        within(std::chrono::seconds(60)));
    demand(ran == 2, "not all ran");
  });
  CHECK(ends == Texts{"none", "none"});
}

TEST_CASE("a rank that does not come is named in every process, with axis and op") {
  std::atomic<int> over = 0;
  const Texts texts = failures(
      2, 4,
      [&](RankContext& context) {
        while (context.rank == 2 && over < 3)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (context.rank == 2) return;
        try {
          meet(context);
        } catch (...) {
          ++over;
          throw;
        }
      },
      std::chrono::seconds(1));
  for (const std::string& text : texts) {
    CHECK_THAT(text, Catch::Contains("all-reduce") && Catch::Contains("'dp'") &&
                         Catch::Contains("rank 2") && Catch::Contains("layers.0.norm"));
  }
}

TEST_CASE("a process that dies is named in those that are left") {
  const auto post = std::make_shared<Post>(3);
  std::atomic<int> dead = 0;
  Texts texts(3);
  in_processes(
      3,
      [&](Processes& all) {
        RankRuntime runtime(6, &all);
        const auto died = [&](int rank) {
          if (rank / 2 == 1 && dead++ == 0) post->lose(1);
        };
        try {
          runtime.run(
              [&](RankContext& context) {
                meet(context);
                died(context.rank);
                meet(context);
              },
              within(std::chrono::seconds(60)));
        } catch (const RankFailed& failed) {
          texts[static_cast<std::size_t>(all.index())] =
              fmt::format("{} {}", failed.rank(), failed.what());
        }
      },
      std::chrono::seconds(60), post);
  CHECK_THAT(texts[0], Catch::StartsWith("2 On rank 2: process 1 is gone (ranks 2 to 3)"));
  CHECK(texts[2] == texts[0]);
}

TEST_CASE("processes that would run different plans are refused before a rank starts") {
  const auto ends = in_processes(2, [&](Processes& all) {
    Setup setup;
    setup.plan = {dp(2)};
    setup.batch = all.first() ? 8 : 4;
    static std::mutex reading;  // the registry is the main thread's
    std::unique_lock lock(reading);
    Experiment e = experiment(setup);
    lock.unlock();
    e.processes = &all;
    train(e, nullptr, [](const StepReport&) { throw std::runtime_error("ran"); });
  });
  CHECK(ends == Texts(2, "process.apart"));
}

TEST_CASE("what on_step throws in the first process ends all") {
  Setup setup;
  setup.plan = {dp(4)};
  std::vector<Experiment> all_of = {experiment(setup), experiment(setup)};
  const auto ends = in_processes(2, [&](Processes& all) {
    Experiment& own = all_of[static_cast<std::size_t>(all.index())];
    own.processes = &all;
    train(own, nullptr, [](const StepReport& report) {
      if (report.step == 1) throw Error(Stage::run, "function.result", "observe", "no number");
    });
  });
  CHECK(ends == Texts(2, "function.result observe"));
}
