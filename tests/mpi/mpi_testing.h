// What the tests of the MPI carrier share. They run under mpirun, several ranks to a process; every
// process runs the same cases in the same order.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "carrier.h"
#include "meshwright/error.h"
#include "meshwright/world.h"

namespace mpi::testing {

using namespace mw;  // NOLINT

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
  auto source = carrier().connect(ranks, at::DeviceType::CPU, timeout);
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

inline std::unique_ptr<Communicator> world_communicator(RankContext& context,
                                                        Ledger* ledger = nullptr) {
  std::vector<int> group(static_cast<std::size_t>(context.ranks));
  std::iota(group.begin(), group.end(), 0);
  return make_communicator(*context.source, "world", group, context.rank, ledger);
}

// What rank `rank` brings: reproducible, with rounding to get wrong in the float types.
inline at::Tensor values(at::ScalarType dtype, std::int64_t count, int rank) {
  // Cheap: the tests' time goes into what they test.
  const auto step = at::arange(count, at::kLong).mul_(7919).add_(104'729 * (rank + 1));
  const auto draw = step.remainder(1009);
  if (at::isFloatingType(dtype)) return draw.to(at::kDouble).div_(7).sub_(60).to(dtype);
  return (dtype == at::kBool ? draw.remainder(3).eq(0) : draw.remainder(40)).to(dtype);
}

// In rank order, bf16 and fp16 in float, by ATen.
inline at::Tensor reduced(at::ScalarType dtype, std::int64_t count, const std::vector<int>& group,
                          Reduction op) {
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  auto total = values(dtype, count, group[0]);
  if (narrow) total = total.to(at::kFloat);
  for (std::size_t r = 1; r < group.size(); ++r) {
    auto next = values(dtype, count, group[r]);
    if (narrow) next = next.to(at::kFloat);
    total = op == Reduction::max ? at::maximum(total, next) : at::add(total, next);
  }
  return total.to(dtype);
}

}  // namespace mpi::testing
