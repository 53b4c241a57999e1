// Every collective, dtype and number of ranks against a result computed by one thread.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "support/collectives.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT

TEST_CASE("all-reduce equals the sum and the maximum in rank order, bit for bit", "[kernels]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const auto dtype : all_dtypes) {
      // One element; not a multiple of a vector; several chunks.
      for (const std::int64_t count :
           {std::int64_t{1}, std::int64_t{1001}, std::int64_t{150'001}}) {
        for (const auto op : {Reduction::sum, Reduction::max}) {
          const auto expected = reduced(dtype, count, everyone(ranks), op);
          std::vector<at::Tensor> got(static_cast<std::size_t>(ranks));
          run_ranks(ranks, [&](RankContext& context) {
            auto comm = world_communicator(context);
            auto tensor = values(dtype, count, context.rank);
            comm->all_reduce(tensor, op, {}).wait();
            got[static_cast<std::size_t>(context.rank)] = tensor;
          });
          for (const auto& tensor : got) {
            INFO(fmt::format("{} ranks, {}, {} elements", ranks, c10::toString(dtype), count));
            REQUIRE(at::equal(tensor, expected));
          }
        }
      }
    }
  }
}

TEST_CASE(
    "all-gather, reduce-scatter, all-to-all, broadcast and send/recv move the right elements") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const auto dtype : all_dtypes) {
      for (const std::int64_t part : {std::int64_t{5}, std::int64_t{40'003}}) {
        std::atomic<int> wrong{0};
        run_ranks(ranks, [&](RankContext& context) {
          wrong += wrong_moves(*world_communicator(context), dtype, part);
        });
        INFO(fmt::format("{} ranks, {}, parts of {}", ranks, c10::toString(dtype), part));
        REQUIRE(wrong == 0);
      }
    }
  }
}

TEST_CASE("all-to-all with uneven and empty splits of rows") {
  for (const int ranks : {2, 3, 4, 8}) {
    std::atomic<int> wrong{0};
    run_ranks(ranks, [&](RankContext& context) {
      Ledger ledger;
      std::int64_t sent = 0;
      if (!right_rows(*world_communicator(context, &ledger), sent)) ++wrong;
      if (ledger.communication().at({"world", "all-to-all", "forward"}).bytes != sent) ++wrong;
    });
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("A tensor may be gathered and scattered in place") {
  std::atomic<int> wrong{0};
  run_ranks(4, [&](RankContext& context) {
    if (!right_in_place(*world_communicator(context), 30'000)) ++wrong;
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("A NaN on any rank survives sum and max") {
  for (const int where : {0, 1, 2}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      std::atomic<int> lost{0};
      run_ranks(3, [&](RankContext& context) {
        auto comm = world_communicator(context);
        for (const auto op : {Reduction::sum, Reduction::max}) {
          auto tensor = at::ones({100}, dtype);
          if (context.rank == where) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
          comm->all_reduce(tensor, op, {}).wait();
          if (!at::isnan(tensor).all().item<bool>()) ++lost;
        }
      });
      REQUIRE(lost == 0);
    }
  }
}

TEST_CASE("Results do not depend on who arrives when") {
  constexpr int ranks = 4;
  constexpr std::int64_t count = 100'000;
  const auto expected = reduced(at::kFloat, count, everyone(ranks), Reduction::sum);
  for (unsigned trial = 0; trial < 20; ++trial) {
    std::atomic<int> wrong{0};
    run_ranks(ranks, [&](RankContext& context) {
      std::mt19937 random(trial * 100 + static_cast<unsigned>(context.rank));
      auto comm = world_communicator(context);
      for (int i = 0; i < 5; ++i) {
        auto tensor = values(at::kFloat, count, context.rank);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
        auto pending = comm->all_reduce(tensor, Reduction::sum, {});
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
        pending.wait();
        if (!at::equal(tensor, expected)) ++wrong;
      }
    });
    REQUIRE(wrong == 0);
  }
}
