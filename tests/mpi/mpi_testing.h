// What the tests of the MPI carrier share. They run under mpirun, several ranks to a process; every
// process runs the same cases in the same order.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "carrier.h"
#include "meshwright/error.h"
#include "meshwright/world.h"
#include "support/collectives.h"

namespace mpi::testing {

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

// One for the process; ended by the last test.
MpiCarrier& carrier();

inline int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

// How ranks lie on processes: this many on each, MESHWRIGHT_TEST_RANKS; or, with
// MESHWRIGHT_TEST_MIXED, rank r in process r modulo their number, so that groups are not in order.
inline std::vector<std::vector<int>> placed() {
  const int processes = carrier().processes(), each = number_of("MESHWRIGHT_TEST_RANKS", 1);
  const bool mixed = std::getenv("MESHWRIGHT_TEST_MIXED") != nullptr;
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(processes));
  for (int rank = 0; rank < processes * each; ++rank) {
    ranks[static_cast<std::size_t>(mixed ? rank % processes : rank / each)].push_back(rank);
  }
  return ranks;
}

// What each rank here threw; "" where nothing. Like the runtime of ranks, in small.
inline std::vector<std::string> run(const std::function<void(RankContext&)>& body,
                                    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto ranks = placed();
  const auto& mine = ranks[static_cast<std::size_t>(carrier().process())];
  auto source = carrier().connect(ranks, *cpu_platform(), timeout);
  std::vector<std::string> errors(mine.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    threads.emplace_back([&, i] {
      RankContext context{mine[i], source->ranks(), source.get()};
      try {
        body(context);
        source->ended(mine[i]);
      } catch (const std::exception& error) {
        errors[i] = error.what();
        source->abort(mine[i], error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace mpi::testing
