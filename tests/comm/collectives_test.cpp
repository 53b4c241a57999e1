// Every collective, dtype and number of ranks against a result computed by one thread.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <chrono>
#include <random>
#include <thread>

#include "comm_testing.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT

namespace {

const std::vector<at::ScalarType> all_dtypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                                at::kLong,   at::kInt,   at::kByte,     at::kBool};

// What rank `rank` brings: reproducible, with rounding to get wrong in the float types.
at::Tensor values(at::ScalarType dtype, std::int64_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(1 + rank));
  auto wide = at::empty({count}, at::kDouble);
  auto* data = wide.data_ptr<double>();
  const bool real = at::isFloatingType(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto draw = static_cast<double>(random() % 1000);
    data[i] = real                 ? draw / 7 - 60
              : dtype == at::kBool ? static_cast<double>(random() % 3 == 0)
                                   : static_cast<double>(random() % 40);
  }
  return wide.to(dtype);
}

// In rank order, bf16 and fp16 in float, by ATen.
at::Tensor expected_reduction(at::ScalarType dtype, std::int64_t count, int ranks, Reduction op) {
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  auto total = values(dtype, count, 0);
  if (narrow) total = total.to(at::kFloat);
  for (int r = 1; r < ranks; ++r) {
    auto next = values(dtype, count, r);
    if (narrow) next = next.to(at::kFloat);
    total = op == Reduction::max ? at::maximum(total, next) : at::add(total, next);
  }
  return total.to(dtype);
}

}  // namespace

TEST_CASE("all-reduce equals the sum and the maximum in rank order, bit for bit", "[kernels]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const auto dtype : all_dtypes) {
      // One element; not a multiple of a vector; several chunks.
      for (const std::int64_t count :
           {std::int64_t{1}, std::int64_t{1001}, std::int64_t{150'001}}) {
        for (const auto op : {Reduction::sum, Reduction::max}) {
          const auto expected = expected_reduction(dtype, count, ranks, op);
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
        const auto count = part * ranks;
        run_ranks(ranks, [&](RankContext& context) {
          auto comm = world_communicator(context);
          const auto me = context.rank;
          const auto right = [&](const at::Tensor& got, const at::Tensor& expected) {
            if (!at::equal(got, expected)) ++wrong;
          };

          auto gathered = at::empty({count}, dtype);
          comm->all_gather(gathered, values(dtype, part, me), {}).wait();
          for (int r = 0; r < ranks; ++r) {
            right(gathered.narrow(0, r * part, part), values(dtype, part, r));
          }

          auto kept = at::empty({part}, dtype);
          comm->reduce_scatter(kept, values(dtype, count, me), Reduction::sum, {}).wait();
          right(kept,
                expected_reduction(dtype, count, ranks, Reduction::sum).narrow(0, me * part, part));

          auto exchanged = at::empty({count}, dtype);
          comm->all_to_all(exchanged, values(dtype, count, me), {}, {}, {}).wait();
          for (int r = 0; r < ranks; ++r) {
            right(exchanged.narrow(0, r * part, part),
                  values(dtype, count, r).narrow(0, me * part, part));
          }

          const int root = ranks - 1;
          auto cast = values(dtype, part, me);
          comm->broadcast(cast, root, {}).wait();
          right(cast, values(dtype, part, root));

          auto mine = values(dtype, part, me);
          auto theirs = at::empty({part}, dtype);
          auto sent = comm->send(mine, (me + 1) % ranks, 0, {});
          auto received = comm->recv(theirs, (me + ranks - 1) % ranks, 0, {});
          sent.wait();
          received.wait();
          right(theirs, values(dtype, part, (me + ranks - 1) % ranks));
          comm->barrier({}).wait();
        });
        INFO(fmt::format("{} ranks, {}, parts of {}", ranks, c10::toString(dtype), part));
        REQUIRE(wrong == 0);
      }
    }
  }
}

TEST_CASE("all-to-all with uneven and empty splits of rows") {
  for (const int ranks : {2, 3, 4, 8}) {
    const auto rows = [](int from, int to) { return std::int64_t{(from * 3 + to * 5) % 4 * 37}; };
    std::atomic<int> wrong{0};
    run_ranks(ranks, [&](RankContext& context) {
      Ledger ledger;
      auto comm = world_communicator(context, &ledger);
      const auto me = context.rank;
      std::vector<std::int64_t> out_splits, in_splits;
      std::vector<at::Tensor> parts, expected;
      std::int64_t sent = 0;
      for (int r = 0; r < ranks; ++r) {
        in_splits.push_back(rows(me, r));
        out_splits.push_back(rows(r, me));
        parts.push_back(at::full({rows(me, r), 9}, me * 100 + r, at::kFloat));
        expected.push_back(at::full({rows(r, me), 9}, r * 100 + me, at::kFloat));
        if (r != me) sent += rows(me, r) * 9 * 4;
      }
      const auto in = at::cat(parts);
      const auto want = at::cat(expected);
      auto out = at::empty_like(want);
      comm->all_to_all(out, in, out_splits, in_splits, {}).wait();
      if (!at::equal(out, want)) ++wrong;
      if (ledger.communication().at({"world", "all-to-all", "forward"}).bytes != sent) ++wrong;
    });
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("A tensor may be gathered and scattered in place") {
  std::atomic<int> wrong{0};
  run_ranks(4, [&](RankContext& context) {
    auto comm = world_communicator(context);
    constexpr std::int64_t part = 30'000;
    auto whole = at::zeros({4 * part}, at::kFloat);
    auto mine = whole.narrow(0, context.rank * part, part);
    mine.copy_(values(at::kFloat, part, context.rank));
    comm->all_gather(whole, mine, {}).wait();
    for (int r = 0; r < 4; ++r) {
      if (!at::equal(whole.narrow(0, r * part, part), values(at::kFloat, part, r))) ++wrong;
    }
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
  const auto expected = expected_reduction(at::kFloat, count, ranks, Reduction::sum);
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
