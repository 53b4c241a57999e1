// Every collective, dtype and number of ranks against a result computed by one thread.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <tuple>

#include "meshwright/backend.h"
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

TEST_CASE("Who knows a part of a round's calls lays out the same runs as who knows all") {
  using comm::Run;
  const auto rows = [](std::size_t from, std::size_t to) {
    return static_cast<std::int64_t>((3 * from + to) % 4);  // some are empty
  };
  for (const auto op :
       {Collective::all_reduce, Collective::all_gather, Collective::reduce_scatter,
        Collective::all_to_all, Collective::broadcast, Collective::send, Collective::barrier}) {
    const std::size_t n = op == Collective::send ? 2 : 3;
    std::vector<comm::Call> calls(n);
    for (std::size_t m = 0; m < n; ++m) {
      calls[m].op = op == Collective::send && m == 1 ? Collective::recv : op;
      calls[m].elements = 5;
      calls[m].root = op == Collective::broadcast ? 2 : -1;
      for (std::size_t other = 0; other < n; ++other) {
        calls[m].in_splits.push_back(rows(m, other));
        calls[m].out_splits.push_back(rows(other, m));
      }
    }
    const auto laid_out = [&](unsigned known) {
      std::vector<const comm::Call*> some;
      for (std::size_t m = 0; m < n; ++m)
        some.push_back((known >> m & 1) != 0 ? &calls[m] : nullptr);
      std::vector<Run> runs;
      comm::lay_out(some, runs);
      return runs;
    };
    const std::vector<Run> all = laid_out((1U << n) - 1);
    CHECK(all.empty() == (op == Collective::barrier));
    for (unsigned known = 1; known < 1U << n; ++known) {
      const auto knows = [&](const Run::Buffers& buffers) {
        return buffers.count > 1 || (known >> buffers.first & 1) != 0;
      };
      std::vector<Run> expected = all;
      if (op == Collective::all_to_all)
        std::erase_if(expected, [&](const Run& run) { return !knows(run.in) && !knows(run.out); });
      const std::vector<Run> runs = laid_out(known);
      INFO(fmt::format("{}, known {:b}", name_of(op), known));
      REQUIRE(runs.size() == expected.size());
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const Run &run = runs[i], &other = expected[i];
        CHECK(std::tuple(run.in.first, run.in.count, run.out.first, run.out.count, run.elements) ==
              std::tuple(other.in.first, other.in.count, other.out.first, other.out.count,
                         other.elements));
        if (knows(run.in)) CHECK(run.in.begin == other.in.begin);
        if (knows(run.out)) CHECK(run.out.begin == other.out.begin);
      }
    }
  }
}
