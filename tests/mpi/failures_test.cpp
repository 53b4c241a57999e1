// Disagreement, absence and death between processes: one error that names its cause, on every rank,
// and nothing hangs. Hidden: test_mpi.py runs these under mpirun, on two processes or more.
#include <signal.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <iostream>

#include "mpi_testing.h"

using namespace mpi::testing;  // NOLINT
using Catch::Contains;

namespace {

const std::string first_label = "layers.0.o", second_label = "layers.1.o";

// All ranks but the last make one call, which makes another one.
void disagree(const std::function<void(Communicator&)>& other, const std::string& told) {
  const auto errors = run([&](RankContext& context) {
    auto comm = world_communicator(context);
    if (context.rank == context.ranks - 1) {
      other(*comm);
    } else {
      comm->all_reduce(at::ones({1000}), Reduction::sum, {"forward", &first_label}).wait();
    }
  });
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("'world'") && Contains(told) &&
                          Contains("all-reduce (sum) of 1000 Float for 'layers.0.o' (forward)"));
  }
}

}  // namespace

TEST_CASE("Ranks that call different things are told what each called", "[.][failures]") {
  disagree(
      [](Communicator& comm) {
        comm.all_gather(at::empty({10 * comm.ways()}), at::ones({10}), {"backward", &first_label})
            .wait();
      },
      "all-gather of 10 Float for 'layers.0.o' (backward)");
  disagree(
      [](Communicator& comm) {
        comm.all_reduce(at::ones({999}), Reduction::sum, {"forward", &first_label}).wait();
      },
      "of 999 Float");
  disagree(
      [](Communicator& comm) {
        comm.all_reduce(at::ones({1000}), Reduction::max, {"forward", &first_label}).wait();
      },
      "all-reduce (max)");
  disagree(
      [](Communicator& comm) {
        comm.all_reduce(at::ones({1000}), Reduction::sum, {"forward", &second_label}).wait();
      },
      "'layers.1.o'");
}

TEST_CASE("Splits and sizes of send and recv must agree", "[.][failures]") {
  const auto sizes = run([](RankContext& context) {
    auto comm = world_communicator(context);
    const int last = context.ranks - 1;
    if (context.rank == 0) comm->send(at::ones({5}), last, 3, {}).wait();
    if (context.rank == last) comm->recv(at::ones({6}), 0, 3, {}).wait();
    comm->barrier({}).wait();
  });
  for (const auto& error : sizes)
    CHECK_THAT(error, Contains("of 5 Float") && Contains("of 6 Float"));
  const auto splits = run([](RankContext& context) {
    auto comm = world_communicator(context);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(context.ranks), 2);
    auto other = rows;
    if (context.rank == 0) other[1] = 4;  // rank 1 takes 2
    const auto out = at::empty({2 * context.ranks, 3});
    const auto in = at::ones({2 * context.ranks + (context.rank == 0 ? 2 : 0), 3});
    comm->all_to_all(out, in, rows, other, {}).wait();
  });
  for (const auto& error : splits) CHECK_THAT(error, Contains("Ranks disagree on axis 'world'"));
}

TEST_CASE("A rank that does not come is named, with what it did last", "[.][failures]") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run(
      [](RankContext& context) {
        auto comm = world_communicator(context);
        comm->barrier({"set-up"}).wait();
        const int last = context.ranks - 1;
        if (context.rank == last) {
          auto alone = make_communicator(*context.source, {"elsewhere", {0, last}}, 1, nullptr);
          alone->recv(at::ones({4}), 0, 7, {}).wait();  // nobody sends
        } else {
          comm->all_reduce(at::ones({8}), Reduction::sum, {"backward", &first_label}).wait();
        }
      },
      std::chrono::milliseconds(700));
  const int last = static_cast<int>(placed().size()) * static_cast<int>(placed()[0].size()) - 1;
  for (const auto& error : errors) {
    CHECK_THAT(error, Contains("waited 0.7 s for") || Contains("Stopped because rank"));
  }
  // Whoever came first to the end of its patience has told the others.
  if (carrier().process() == 0) {
    CHECK_THAT(errors[0], Contains(fmt::format("rank {}", last)) || Contains("rank 0"));
    CHECK_THAT(errors[0],
               Contains("last completed barrier") || Contains("has completed no collective"));
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

// Rank 0 waits for `middle`, which like all others waits for the last rank, which comes to nothing.
// Returns what the ranks of this process are told.
std::vector<std::string> wait_in_turn(int middle) {
  return run(
      [middle](RankContext& context) {
        const int last = context.ranks - 1, rank = context.rank;
        if (rank == last) {
          std::this_thread::sleep_for(std::chrono::seconds(8));
          world_communicator(context)->barrier({}).wait();
          return;
        }
        const auto meet = [&](int a, int b) {
          make_communicator(*context.source, {"pair", {a, b}}, rank == a ? 0 : 1, nullptr)
              ->barrier({})
              .wait();
        };
        if (rank == 0) return meet(0, middle);
        // Rank 0 is to be the first whose patience ends, also on a loaded machine.
        std::this_thread::sleep_for(std::chrono::seconds(2));
        meet(rank, last);
      },
      std::chrono::milliseconds(5000));
}

TEST_CASE("Where ranks of several processes wait in turn, the one that waits for nobody is named",
          "[.][failures]") {
  const int ranks = static_cast<int>(placed().size()) * static_cast<int>(placed()[0].size());
  // One beside rank 0 in its process, and one of another process.
  for (const int middle : {1, 2}) {
    if (middle >= ranks - 1) continue;
    INFO("rank 0 waits for rank " << middle);
    for (const auto& error : wait_in_turn(middle)) {
      CHECK_THAT(error, Contains(fmt::format("for rank {}", middle)));
      CHECK_THAT(error, Contains(fmt::format("Rank {} waits for no rank, and others wait in turn: "
                                             "it has completed no collective between processes",
                                             ranks - 1)));
      CHECK_THAT(error, Contains(fmt::format("Rank {} has completed no collective between "
                                             "processes and now waits for barrier",
                                             middle)));
    }
  }
}

TEST_CASE("A rank that throws stops all others at once, with its reason", "[.][failures]") {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = run([](RankContext& context) {
    auto comm = world_communicator(context);
    comm->barrier({}).wait();
    if (context.rank == context.ranks - 1) throw std::runtime_error("disk on fire");
    comm->all_reduce(at::ones({100'000}), Reduction::sum, {}).wait();
    comm->barrier({}).wait();
  });
  for (const auto& error : errors) CHECK_THAT(error, Contains("disk on fire"));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("A rank that returns early fails those that need it", "[.][failures]") {
  const auto errors = run([](RankContext& context) {
    auto comm = world_communicator(context);
    comm->barrier({}).wait();
    if (context.rank != 0) comm->all_reduce(at::ones({10}), Reduction::sum, {}).wait();
  });
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const int rank = placed()[static_cast<std::size_t>(carrier().process())][i];
    if (rank != 0) CHECK_THAT(errors[i], Contains("Rank 0 has ended"));
  }
}

TEST_CASE("A process that is killed is named by the others", "[.][killed]") {
  const auto errors = run([](RankContext& context) {
    auto comm = world_communicator(context);
    comm->barrier({}).wait();
    if (carrier().process() == carrier().processes() - 1) raise(SIGKILL);
    for (;;) comm->all_reduce(at::ones({100}), Reduction::sum, {}).wait();
  });
  // mpirun ends all of them a moment later.
  if (carrier().process() == 0) std::cout << "TOLD " << errors[0] << std::endl;
  carrier().end(false);
  CHECK_THAT(errors[0], Contains("died"));
}

TEST_CASE("One process fails, the others wait for its word", "[.][left]") {
  auto& all = carrier();
  if (all.process() == all.processes() - 1) {
    all.post(0, "no such file");
    all.end(false);
    std::exit(1);
  }
  if (all.process() == 0) {
    std::cout << "TOLD " << all.take(all.processes() - 1, std::chrono::seconds(60)).value()
              << std::endl;
    try {
      all.take(all.processes() - 1, std::chrono::seconds(60));
    } catch (const Error& error) {
      std::cout << "THEN " << error.problems()[0].code << std::endl;
    }
  }
  all.end(false);
  std::exit(1);
}
