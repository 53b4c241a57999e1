// More ranks than cores: they run in turns, and what they pay for meeting grows as their number.
#include <fmt/format.h>
#include <sched.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "comm/local_world.h"
#include "comm/rank_threads.h"
#include "comm_testing.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT
using Catch::Contains;

namespace {

struct Paid {
  comm::LocalGroup::Counts counts;
  std::int64_t changes = 0;  // of cores
};

Paid run_in_turns(int ranks, int cores, const std::function<void(RankContext&)>& body,
                  const RankOptions& options = {}) {
  comm::LocalWorld world(ranks, options.timeout);
  comm::Cores on(cores);
  comm::run_rank_threads(world, test::everyone(ranks), 1, body, comm::patience_of(options.timeout),
                         &on)
      .rethrow();
  return {world.counts(), on.changes()};
}

std::string error_in_turns(int ranks, const std::function<void(RankContext&)>& body,
                           const RankOptions& options = {}) {
  try {
    run_in_turns(ranks, 2, body, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Ranks in turns get what ranks get that all run, as many at a time as there are cores") {
  for (const int cores : {1, 2, 3}) {
    std::atomic<int> wrong{0}, running{0}, most{0};
    std::array<std::atomic<int>, 3> on_core{};
    run_in_turns(8, cores, [&](RankContext& context) {
      auto comm = world_communicator(context);
      for (int round = 0; round < 5; ++round) {
        const int now = ++running;
        int before = most;
        while (before < now && !most.compare_exchange_weak(before, now)) {
        }
        std::atomic<int>& own = on_core.at(static_cast<std::size_t>(comm::Sleeper::own().core()));
        wrong += own++;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        --own;
        --running;
        comm->barrier({}).wait();
      }
      // Parts of one chunk, and of several.
      for (const std::int64_t part : {5, 40'003}) {
        wrong += test::wrong_moves(*comm, at::kFloat, part);
      }
    });
    CHECK(wrong == 0);
    CHECK(most <= cores);
  }
}

TEST_CASE("A rank that is woken before it has given its core away keeps the other one alone") {
  comm::Cores on(2);
  on.enter();
  comm::Sleeper& own = comm::Sleeper::own();
  const int first = own.core();
  own.prepare();
  std::thread([&] { on.ready(own); }).join();
  on.give(first);
  CHECK(own.sleep(comm::Clock::time_point::max()));
  CHECK(own.core() != first);
  int other = own.core();
  std::thread([&] {
    on.enter();
    other = comm::Sleeper::own().core();
    on.leave();
  }).join();
  CHECK(other == first);
  on.leave();
}

TEST_CASE("A rank that was given a core may run on every processor again") {
  const auto processors = [] {  // none, if the kernel does not say; called by all ranks at once
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    return set;
  };
  const cpu_set_t all = processors();
  REQUIRE(CPU_COUNT(&all) > 0);
  std::atomic<int> wrong{0};
  run_in_turns(8, 2, [&](RankContext& context) {
    auto comm = world_communicator(context);
    for (int round = 0; round < 20; ++round) {
      comm->barrier({}).wait();
      const cpu_set_t now = processors();
      wrong += !CPU_EQUAL(&all, &now);
    }
  });
  CHECK(wrong == 0);
}

TEST_CASE("What meeting costs grows as the number of ranks") {
  constexpr int rounds = 50;
  const std::string label = "layers.0.attention.o";
  for (const int ranks : {8, 16, 32}) {
    const Paid paid = run_in_turns(ranks, 2, [&](RankContext& context) {
      auto comm = world_communicator(context);
      auto tensor = at::ones({100});
      for (int round = 0; round < rounds; ++round)
        comm->all_reduce(tensor, Reduction::max, {"forward", &label}).wait();
    });
    INFO(ranks << " ranks");
    CHECK(paid.counts.comparisons == rounds * (ranks - 1));
    CHECK(paid.counts.rounds_made <= 8);
    // At most one for each wait, and one for the start; none may be let through beside them.
    CHECK(paid.changes <= (rounds + 1) * ranks);
  }
}

TEST_CASE("Rounds of sends and recvs begin anew too, whoever comes first") {
  const Paid paid = run_in_turns(4, 2, [&](RankContext& context) {
    auto comm = world_communicator(context);
    auto mine = at::ones({10}), theirs = at::ones({10});
    for (int round = 0; round < 100; ++round) {
      auto sent = comm->send(mine, (context.rank + 1) % 4, round, {});
      comm->recv(theirs, (context.rank + 3) % 4, round, {}).wait();
      sent.wait();
    }
  });
  CHECK(paid.counts.rounds_made <= 40);
}

TEST_CASE("The rank whose call differs is named, whichever it is and whenever it comes") {
  constexpr int ranks = 5;
  for (int odd = 0; odd < ranks; ++odd) {
    for (const bool first : {false, true}) {
      std::atomic<bool> came{false};
      const auto text = error_of(ranks, {}, [&](RankContext& context) {
        auto comm = world_communicator(context);
        const bool differs = context.rank == odd;
        while (first && !differs && !came) std::this_thread::yield();
        auto tensor = at::ones({differs ? 9 : 8});
        auto pending = comm->all_reduce(tensor, Reduction::sum, {});
        if (differs) came = true;
        pending.wait();
      });
      INFO(text);
      CHECK_THAT(text, Contains(fmt::format("rank {} called all-reduce (sum) of 9", odd)) &&
                           Contains("called all-reduce (sum) of 8"));
    }
  }
}

TEST_CASE("Splits that do not fit are found between any two ranks") {
  constexpr int ranks = 4;
  for (int from = 0; from < ranks; ++from) {
    const int to = (from + 2) % ranks;
    const auto text = error_of(ranks, {}, [&](RankContext& context) {
      std::vector<std::int64_t> in(ranks, 2), out(ranks, 2);
      if (context.rank == from) in[static_cast<std::size_t>(to)] = 3;  // who takes 2
      auto comm = world_communicator(context);
      comm->all_to_all(at::empty({8}), at::ones({context.rank == from ? 9 : 8}), out, in, {})
          .wait();
    });
    INFO(text);
    CHECK_THAT(text, Contains("Ranks disagree") && Contains(fmt::format("rank {} called", from)) &&
                         Contains(fmt::format("rank {} called", to)));
  }
}

TEST_CASE("A rank that is away holds no core, and lets no more ranks run than there are cores") {
  constexpr int ranks = 6;
  comm::LocalWorld world(ranks, RankOptions{}.timeout);
  comm::Cores on(1);
  std::mutex mutex;
  std::condition_variable changed;
  int came = 0;
  std::atomic<int> running{0}, most{0};
  const auto body = [&](RankContext& context) {
    if (context.rank != 0) {
      const std::lock_guard lock(mutex);
      ++came;
      changed.notify_all();
    } else {
      const CoreRelease outer;  // another one within it hands nothing on
      std::unique_lock lock(mutex);
      wait_away(changed, lock, [&] { return came == ranks - 1; });
    }
    const int now = ++running;
    int before = most;
    while (before < now && !most.compare_exchange_weak(before, now)) {
    }
    --running;
    world_communicator(context)->barrier({}).wait();
  };
  comm::run_rank_threads(world, test::everyone(ranks), 1, body,
                         comm::patience_of(RankOptions{}.timeout), &on)
      .rethrow();
  CHECK(most == 1);
  CHECK(on.at_once() == 1);
}

TEST_CASE("A rank that waits on its core for one that has none does not wait for ever") {
  std::atomic<bool> came{false};
  std::atomic<int> passed{0};
  run_in_turns(6, 1, [&](RankContext& context) {
    while (context.rank != 5 && !came) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    came = true;
    world_communicator(context)->barrier({}).wait();
    ++passed;
  });
  CHECK(passed == 6);
}

TEST_CASE("Ranks in turns are stopped, and missed, as others are") {
  const auto stopped = error_in_turns(12, [&](RankContext& context) {
    auto comm = world_communicator(context);
    comm->barrier({}).wait();
    if (context.rank == 7) throw std::runtime_error("disk on fire");
    comm->all_reduce(at::ones({100'000}), Reduction::sum, {}).wait();
  });
  CHECK(stopped == "On rank 7: disk on fire");
  std::atomic<bool> over{false};
  const auto late = error_in_turns(
      12,
      [&](RankContext& context) {
        auto comm = world_communicator(context);
        comm->barrier({"set-up"}).wait();
        while (context.rank == 3 && !over)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (context.rank == 3) return;
        try {
          comm->barrier({"forward"}).wait();
        } catch (...) {
          over = true;
          throw;
        }
      },
      impatient());
  CHECK_THAT(late, Contains("waited 0.5 s for rank 3") &&
                       Contains("Rank 3 last completed barrier (set-up)"));
}
