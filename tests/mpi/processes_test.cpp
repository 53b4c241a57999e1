// Every collective between processes against results that one thread computes. Hidden: test_mpi.py
// runs these under mpirun.
#include <catch2/catch.hpp>

#include <atomic>

#include "mpi_testing.h"

using namespace mpi::testing;  // NOLINT

namespace {

void none_failed(const std::vector<std::string>& errors) {
  for (const auto& error : errors) CHECK(error == "");
}

}  // namespace

mpi::MpiCarrier& mpi::testing::carrier() {
  static MpiCarrier one;
  return one;
}

TEST_CASE("Sums and maxima are those of one thread in rank order, bit for bit",
          "[.][collectives]") {
  std::atomic<int> wrong{0};
  none_failed(run([&](RankContext& context) {
    auto comm = world_communicator(context);
    const auto& group = comm->group();
    for (const auto dtype : all_dtypes) {
      // Nothing; one element; a rest in a vector; several blocks, more than are sent ahead.
      for (const std::int64_t count : {0, 1, 1001, 700'001}) {
        if (count > 1001 && dtype != at::kFloat) continue;
        for (const auto op : {Reduction::sum, Reduction::max}) {
          auto tensor = values(dtype, count, context.rank);
          comm->all_reduce(tensor, op, {}).wait();
          if (count > 0 && !at::equal(tensor, reduced(dtype, count, group, op))) ++wrong;
        }
      }
    }
  }));
  CHECK(wrong == 0);
}

TEST_CASE("Gathers, exchanges, broadcasts, sends and recvs move the right elements",
          "[.][collectives]") {
  std::atomic<int> wrong{0};
  none_failed(run([&](RankContext& context) {
    auto comm = world_communicator(context);
    for (const auto dtype : all_dtypes) {
      for (const std::int64_t part : {5, 15'003}) wrong += wrong_moves(*comm, dtype, part);
    }
    if (!right_in_place(*comm, 3000)) ++wrong;
  }));
  CHECK(wrong == 0);
}

TEST_CASE("Exchanges of uneven and empty splits", "[.][collectives]") {
  std::atomic<int> wrong{0};
  none_failed(run([&](RankContext& context) {
    std::int64_t sent = 0;
    if (!right_rows(*world_communicator(context), sent)) ++wrong;
  }));
  CHECK(wrong == 0);
}

TEST_CASE("Groups over part of the processes, in any order, beside each other",
          "[.][collectives]") {
  std::atomic<int> wrong{0};
  none_failed(run([&](RankContext& context) {
    const int me = context.rank, ranks = context.ranks;
    auto world = world_communicator(context);
    std::vector<int> half, backwards;
    for (int r = me % 2; r < ranks; r += 2) half.push_back(r);
    for (int r = ranks - 1; r >= 0; --r) backwards.push_back(r);
    auto some = make_communicator(*context.source, {"half", half}, me / 2, nullptr);
    auto other = make_communicator(*context.source, {"back", backwards}, ranks - 1 - me, nullptr);
    // Ranks wait for several under way in orders of their own, and start them in others: what one
    // group does never waits for another.
    for (int trial = 0; trial < 10; ++trial) {
      std::mt19937 random(static_cast<unsigned>(trial * 100 + me));
      std::vector<at::Tensor> tensors;
      std::vector<Pending> pending(4);
      std::vector<int> order{0, 1, 2, 3};
      for (int i = 0; i < 4; ++i) tensors.push_back(values(at::kFloat, 60'000 + i, me));
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) {
        if (i == 0) pending[0] = world->all_reduce(tensors[0], Reduction::sum, {});
        if (i == 1) pending[1] = some->all_reduce(tensors[1], Reduction::sum, {});
        if (i == 2) pending[2] = other->all_reduce(tensors[2], Reduction::sum, {});
        if (i == 3 && me < 2) {
          pending[3] = me == 0 ? world->send(tensors[3], 1, trial, {})
                               : world->recv(tensors[3], 0, trial, {});
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) pending[static_cast<std::size_t>(i)].wait();
      if (trial > 0) continue;
      const auto& all = world->group();
      if (!at::equal(tensors[0], reduced(at::kFloat, 60'000, all, Reduction::sum))) ++wrong;
      if (!at::equal(tensors[1], reduced(at::kFloat, 60'001, half, Reduction::sum))) ++wrong;
      if (!at::equal(tensors[2], reduced(at::kFloat, 60'002, backwards, Reduction::sum))) ++wrong;
      if (me == 1 && !at::equal(tensors[3], values(at::kFloat, 60'003, 0))) ++wrong;
    }
  }));
  CHECK(wrong == 0);
}

TEST_CASE("A run after a run, and messages of processes beside both", "[.][collectives]") {
  auto& all = carrier();
  const int me = all.process();
  for (int round = 0; round < 3; ++round) {
    const std::string text(round == 2 ? 700'000 : 10, static_cast<char>('a' + me));
    for (int p = 0; p < all.processes(); ++p) all.post(p, text + std::to_string(round));
    none_failed(run([&](RankContext& context) {
      auto tensor = at::ones({10});
      world_communicator(context)->all_reduce(tensor, Reduction::sum, {}).wait();
    }));
    for (int p = 0; p < all.processes(); ++p) {
      const auto got = all.take(p, std::chrono::seconds(60));
      REQUIRE(got);
      // Not compared by Catch2, which would print all of it.
      const bool right =
          *got == std::string(text.size(), static_cast<char>('a' + p)) + std::to_string(round);
      INFO(fmt::format("round {}, from {}: {} bytes, {}…{}", round, p, got->size(),
                       got->substr(0, 5), got->substr(got->size() - 3)));
      CHECK(right);
    }
  }
}

TEST_CASE("Ends", "[.][collectives][failures]") {
  // All but this one's own are here.
  CHECK(!carrier().take(carrier().process(), std::chrono::milliseconds(1)));
  carrier().end(true);
}
