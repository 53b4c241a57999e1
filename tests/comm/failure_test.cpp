// Disagreement, absence and death: each is one error that names its cause, and nothing hangs.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <thread>

#include "comm_testing.h"
#include "meshwright/backend.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/rank_calls.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT
using Catch::Contains;

namespace {

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("Ranks that call different things are told what each called, all of them") {
  const std::string label_a = "layers.0.o", label_b = "layers.1.o";
  const auto both = [&](auto call_of_rank_2, const std::vector<std::string>& parts) {
    std::atomic<int> threw{0};
    const auto text = error_of(3, {}, [&](RankContext& context) {
      auto comm = world_communicator(context);
      try {
        if (context.rank == 2) {
          call_of_rank_2(*comm);
        } else {
          comm->all_reduce(at::ones({1000}), Reduction::sum, {"forward", &label_a}).wait();
        }
      } catch (const Error&) {
        ++threw;
        throw;
      }
    });
    INFO(text);
    CHECK(threw == 3);
    CHECK_THAT(text, Contains("'world'") && Contains("rank 2") &&
                         Contains("all-reduce (sum) of 1000 Float for 'layers.0.o' (forward)"));
    for (const auto& part : parts) CHECK_THAT(text, Contains(part));
  };
  SECTION("op") {
    both(
        [&](Communicator& comm) {
          comm.all_gather(at::empty({30}), at::ones({10}), {"backward", &label_a}).wait();
        },
        {"all-gather of 10 Float for 'layers.0.o' (backward)"});
  }
  SECTION("size") {
    both(
        [&](Communicator& comm) {
          comm.all_reduce(at::ones({999}), Reduction::sum, {"forward", &label_a}).wait();
        },
        {"of 999 Float"});
  }
  SECTION("dtype") {
    both(
        [&](Communicator& comm) {
          comm.all_reduce(at::ones({1000}, at::kDouble), Reduction::sum, {"forward", &label_a})
              .wait();
        },
        {"of 1000 Double"});
  }
  SECTION("reduction") {
    both(
        [&](Communicator& comm) {
          comm.all_reduce(at::ones({1000}), Reduction::max, {"forward", &label_a}).wait();
        },
        {"all-reduce (max)"});
  }
  SECTION("label") {
    both(
        [&](Communicator& comm) {
          comm.all_reduce(at::ones({1000}), Reduction::sum, {"forward", &label_b}).wait();
        },
        {"'layers.1.o'"});
  }
}

TEST_CASE("Roots, splits and sizes of send and recv must agree") {
  CHECK(code_of(2, {}, [](RankContext& context) {
          world_communicator(context)->broadcast(at::ones({4}), context.rank, {}).wait();
        }) == "collective.mismatch");
  CHECK(code_of(2, {}, [](RankContext& context) {
          auto comm = world_communicator(context);
          std::vector<std::int64_t> in{2, 4}, out{2, 4};  // 0 sends 4, 1 takes 2
          comm->all_to_all(at::empty({6, 3}), at::ones({6, 3}), out, in, {}).wait();
        }) == "collective.mismatch");
  CHECK(code_of(2, {}, [](RankContext& context) {
          auto comm = world_communicator(context);
          if (context.rank == 0) comm->send(at::ones({5}), 1, 3, {}).wait();
          if (context.rank == 1) comm->recv(at::ones({6}), 0, 3, {}).wait();
        }) == "collective.mismatch");
}

TEST_CASE("A call that is wrong in itself is refused on its own rank") {
  const auto refused = [](auto call) {
    return code_of(2, impatient(), [&](RankContext& context) {
      auto comm = world_communicator(context);
      if (context.rank == 1) call(*comm);
      comm->barrier({}).wait();
    });
  };
  CHECK(refused([](Communicator& c) { c.all_gather(at::empty({5}), at::ones({3}), {}).wait(); }) ==
        "collective.arguments");
  CHECK(refused([](Communicator& c) {
          c.all_reduce(at::ones({4, 3}).t(), Reduction::sum, {}).wait();
        }) == "collective.arguments");
  CHECK(refused([](Communicator& c) {
          c.all_to_all(at::ones({3}), at::ones({3}), {}, {}, {}).wait();
        }) == "collective.arguments");
  CHECK(refused([](Communicator& c) { c.send(at::ones({3}), 7, 0, {}).wait(); }) ==
        "collective.rank");
  CHECK(refused([](Communicator& c) {
          c.all_reduce(at::ones({3}, at::kComplexFloat), Reduction::sum, {}).wait();
        }) == "collective.type");
}

TEST_CASE("A rank that does not come is named, with what it last did") {
  const std::string label = "late";
  std::atomic<bool> over{false};
  std::string text;
  const auto took = seconds_of([&] {
    text = error_of(3, impatient(), [&](RankContext& context) {
      auto comm = world_communicator(context);
      comm->barrier({"set-up"}).wait();
      if (context.rank == 1) {
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      try {
        comm->all_reduce(at::ones({8}), Reduction::sum, {"backward", &label}).wait();
      } catch (...) {
        over = true;
        throw;
      }
    });
  });
  INFO(text);
  CHECK_THAT(text, Contains("waited 0.5 s for rank 1") && Contains("ranks 0 and 2") &&
                       Contains("'late'") && Contains("'world'") &&
                       Contains("Rank 1 last completed barrier (set-up)"));
  CHECK(took < 60);
}

TEST_CASE("What a failed run throws has the place of each rank") {
  const std::string label = "late";
  std::atomic<bool> over{false};
  std::vector<RankPlace> places;
  try {
    run_ranks(
        3,
        [&](RankContext& context) {
          auto comm = world_communicator(context);
          comm->barrier({"set-up"}).wait();
          if (context.rank == 1) {
            while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            // Places are noted after the others' handlers, which say that it is over.
            std::this_thread::sleep_for(std::chrono::milliseconds(700));
            return;
          }
          Pending second = comm->barrier({"forward"});
          try {
            comm->all_reduce(at::ones({8}), Reduction::sum, {"backward", &label}).wait();
          } catch (...) {
            over = true;
            throw;
          }
        },
        impatient());
  } catch (const RankFailed& error) {
    places = error.places();
  }
  REQUIRE(places.size() == 3);
  for (const int rank : {0, 1, 2}) {
    const RankPlace& place = places[rank];
    INFO(rank << ": " << comm::text_of(place));
    CHECK(place.rank == rank);
    CHECK(place.done == 1);
    CHECK(place.last.text() == "barrier on world (set-up)");
    CHECK(place.seconds >= 0.4);
    if (rank == 1) {
      CHECK(place.state == RankPlace::State::computes);
      CHECK(place.waits.text() == "none");
    } else {
      CHECK((place.state == RankPlace::State::failed || place.state == RankPlace::State::waits));
      CHECK(place.waits.text() == "all-reduce on world for 'late' (backward)");
    }
  }
  CHECK_THAT(comm::table_of(places), Contains("computes") && Contains("barrier on world (set-up)"));
}

TEST_CASE("Of many ranks those at the same place share a line of the table") {
  const auto places = [](int ranks) {
    std::vector<RankPlace> all;
    for (int r = 0; r < ranks; ++r) {
      RankPlace place;
      place.rank = r;
      place.state = r == 5 ? RankPlace::State::failed : RankPlace::State::waits;
      place.done = 7;
      place.last = {"dp", "all-reduce", "bucket 0", "gradients"};
      place.waits = {"dp", "all-reduce", "bucket 1", "gradients"};
      place.seconds = r == 40 ? 2.5 : 1;
      all.push_back(place);
    }
    return all;
  };
  const std::string many = comm::table_of(places(64)), few = comm::table_of(places(16));
  INFO(many);
  CHECK(std::count(many.begin(), many.end(), '\n') == 4);  // two lines of the head
  CHECK_THAT(many, Contains("0-4, 6-63") && Contains("1.0 s to 2.5 s") && Contains("failed"));
  CHECK(std::count(few.begin(), few.end(), '\n') == 18);
}

TEST_CASE("A rank that does not come back is told to who asked, and the others are waited for") {
  std::atomic<bool> told{false};
  std::string text;
  const OnHang before = comm::on_hang([&](const RankFailed& error) {
    text = error.what();
    told = true;  // whoever ends the process does not return; here the rank comes back after all
  });
  RankOptions options = impatient();
  const std::string said = error_of(2, options, [&](RankContext& context) {
    auto comm = world_communicator(context);
    while (context.rank == 1 && !told) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    comm->barrier({}).wait();
  });
  comm::on_hang(before);
  CHECK(told);
  CHECK_THAT(text, Contains("rank 1 has not come back") && Contains("waited 0.5 s"));
  CHECK_THAT(said, Contains("waited 0.5 s for rank 1"));
}

TEST_CASE("A recv whose send has another tag says so") {
  const auto text = error_of(2, impatient(), [&](RankContext& context) {
    auto comm = world_communicator(context);
    if (context.rank == 0) comm->send(at::ones({8}), 1, 4, {}).wait();
    if (context.rank == 1) comm->recv(at::ones({8}), 0, 5, {}).wait();
  });
  CHECK_THAT(text, Contains("tag 4") && Contains("tag 5"));
}

TEST_CASE("Two ranks that wait for each other on two axes are both told where the other is") {
  RankOptions options = impatient();
  options.timeout = std::chrono::seconds(2);  // both must have begun to wait, on a busy machine too
  const auto text = error_of(2, options, [&](RankContext& context) {
    auto a = make_communicator(*context.source, {"a", {0, 1}}, context.rank, nullptr);
    auto b = make_communicator(*context.source, {"b", {0, 1}}, context.rank, nullptr);
    (context.rank == 0 ? a : b)->barrier({}).wait();
  });
  CHECK_THAT(text, Contains("now waits on axis '") && Contains("has completed no collective"));
}

TEST_CASE("Where ranks wait in turn, the one that waits for nobody is named") {
  std::atomic<bool> waits{false}, over{false};
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  const auto text = error_of(3, impatient(), [&](RankContext& context) {
    while (context.rank == 1 && !waits) nap();
    while (context.rank == 2 && !over) nap();
    if (context.rank == 2) return;
    auto a = make_communicator(*context.source, {"a", {0, 1}}, context.rank, nullptr);
    auto call = context.rank == 0 ? a->barrier({}) : Pending();
    waits = true;
    try {
      if (context.rank == 1)
        make_communicator(*context.source, {"b", {1, 2}}, 0, nullptr)->barrier({}).wait();
      call.wait();
    } catch (...) {
      over = true;
      throw;
    }
  });
  // Rank 0 began first; on a busy machine rank 1 may still be the one that gives up.
  CHECK_THAT(text,
             Contains("Rank 2 waits for no rank, and others wait in turn: it has completed no "
                      "collective") ||
                 Contains("waited 0.5 s for rank 2"));
}

TEST_CASE("A rank that throws stops the others at once, and its error is the one reported") {
  std::atomic<int> stopped{0};
  std::string text;
  const auto took = seconds_of([&] {  // the timeout is 300 s
    text = error_of(4, {}, [&](RankContext& context) {
      auto world = world_communicator(context);
      auto pair = make_communicator(
          *context.source, {"pair", context.rank < 2 ? std::vector{0, 1} : std::vector{2, 3}},
          context.rank % 2, nullptr);
      world->barrier({}).wait();
      if (context.rank == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        throw std::runtime_error("disk on fire");
      }
      try {
        if (context.rank == 2) pair->recv(at::ones({4}), 1, 0, {}).wait();
        world->all_reduce(at::ones({100'000}), Reduction::sum, {}).wait();
      } catch (const Aborted& error) {
        if (std::string(error.what()).find("disk on fire") != std::string::npos) ++stopped;
        throw;
      }
    });
  });
  CHECK(text == "On rank 3: disk on fire");
  CHECK(stopped == 3);
  CHECK(took < 60);
}

TEST_CASE("A rank that returns early fails those that need it, without waiting for the timeout") {
  std::string code;
  const auto took = seconds_of([&] {
    code = code_of(3, {}, [&](RankContext& context) {
      auto comm = world_communicator(context);
      comm->barrier({}).wait();
      if (context.rank != 0) comm->all_reduce(at::ones({10}), Reduction::sum, {}).wait();
    });
  });
  CHECK(code == "collective.mismatch");
  CHECK(took < 60);
}

TEST_CASE(
    "A rank that dies with a collective under way takes its buffers only when none reads them") {
  for (int trial = 0; trial < 40; ++trial) {
    const auto text = error_of(4, {}, [&](RankContext& context) {
      auto comm = world_communicator(context);
      auto tensor = at::ones({1'000'000});
      auto pending = comm->all_reduce(tensor, Reduction::sum, {});
      if (context.rank == trial % 4) {
        std::this_thread::sleep_for(std::chrono::microseconds(50 * (trial / 4)));
        throw std::runtime_error("gone");
      }
      pending.wait();
      comm->barrier({}).wait();
    });
    REQUIRE(text == fmt::format("On rank {}: gone", trial % 4));
  }
}

TEST_CASE("Ranks have ATen threads of their own; the caller keeps its number") {
  const int before = at::get_num_threads();
  RankOptions options;
  options.threads = 3;
  const int given = std::min(options.threads, thread_limit());  // 1 under ThreadSanitizer
  std::atomic<int> wrong{0};
  run_ranks(
      2,
      [&](RankContext& context) {
        world_communicator(context)->barrier({}).wait();  // both have set theirs
        if (at::get_num_threads() != given) ++wrong;
        if (context.rank == 0) at::set_num_threads(1);
        world_communicator(context)->barrier({}).wait();
        if (at::get_num_threads() != (context.rank == 0 ? 1 : given)) ++wrong;
      },
      options);
  CHECK(wrong == 0);
  CHECK(at::get_num_threads() == before);
  int fresh = 0;
  std::thread([&] { fresh = at::get_num_threads(); }).join();
  CHECK(fresh == before);
}

TEST_CASE("Time in which the process stood still makes nobody late") {
  using std::chrono::hours, std::chrono::seconds;
  const comm::WaitLimit::Clock::time_point start{};
  comm::WaitLimit patience(seconds(8), start);
  CHECK(patience.next() == start + seconds(1));
  CHECK_FALSE(patience.over(start + seconds(1)));
  // It was stopped for an hour: two seconds of that count.
  const auto later = start + hours(1);
  CHECK_FALSE(patience.over(later));
  CHECK(patience.next() == later + seconds(1));
  for (int second = 1; second < 5; ++second) CHECK_FALSE(patience.over(later + seconds(second)));
  CHECK(patience.over(later + seconds(5)));
  comm::WaitLimit none(seconds(0), start);
  CHECK(none.next() == start);
  CHECK(none.over(start));
}
