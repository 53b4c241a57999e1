// Several collectives under way at once: on one group, on crossing groups, waited for in any order.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "comm_testing.h"
#include "meshwright/mesh.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT

TEST_CASE("Many collectives in flight on one group, waited for in any order") {
  std::atomic<int> wrong{0};
  run_ranks(4, [&](RankContext& context) {
    auto comm = world_communicator(context);
    std::mt19937 random(7u + static_cast<unsigned>(context.rank));
    for (int round = 0; round < 30; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<Pending> pending;
      for (int i = 0; i < 6; ++i) {
        const std::int64_t size = i % 2 == 0 ? 40'000 : 3;
        tensors.push_back(at::full({size}, context.rank + i, at::kFloat));
        pending.push_back(comm->all_reduce(tensors.back(), Reduction::sum, {}));
      }
      std::vector<std::size_t> order{0, 1, 2, 3, 4, 5};
      std::shuffle(order.begin(), order.end(), random);
      for (const auto i : order) {
        pending[i].wait();
        const double expected = 0 + 1 + 2 + 3 + 4.0 * static_cast<double>(i);
        if (!at::all(tensors[i] == expected).item<bool>()) ++wrong;
      }
    }
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("A grid of dp x tp: groups that cross, with collectives under way on both") {
  const Mesh mesh({{"dp", 2}, {"tp", 4}});
  std::atomic<int> wrong{0};
  run_ranks(8, [&](RankContext& context) {
    const auto communicator = [&](const char* name) {
      const auto& atoms = mesh.axis(name).atoms;
      return make_communicator(*context.source, {name, mesh.group(context.rank, atoms)},
                               mesh.index_in_group(context.rank, atoms), nullptr);
    };
    auto dp = communicator("dp");
    auto tp = communicator("tp");
    const int row = context.rank / 4, column = context.rank % 4;
    for (int step = 0; step < 50; ++step) {
      auto gradient = at::full({70'000}, context.rank, at::kFloat);
      auto pending = dp->all_reduce(gradient, Reduction::sum, {"gradients"});
      auto part = at::full({2'000}, context.rank + step, at::kFloat);
      auto whole = at::empty({8'000}, at::kFloat);
      tp->all_gather(whole, part, {}).wait();
      for (int t = 0; t < 4; ++t) {
        const auto slice = whole.narrow(0, t * 2'000, 2'000);
        if (!at::all(slice == row * 4 + t + step).item<bool>()) ++wrong;
      }
      pending.wait();
      if (!at::all(gradient == column + column + 4).item<bool>()) ++wrong;
    }
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("Sends and recvs match by tag in any order, and first to first within one") {
  std::atomic<int> wrong{0};
  run_ranks(2, [&](RankContext& context) {
    auto comm = world_communicator(context);
    constexpr int count = 8;
    std::vector<at::Tensor> tensors;
    std::vector<Pending> pending;
    if (context.rank == 0) {
      for (int i = 0; i < count; ++i) {  // tags 0 1 0 1 ...
        tensors.push_back(at::full({i % 3 == 0 ? 90'000 : 10}, i, at::kDouble));
        pending.push_back(comm->send(tensors.back(), 1, i % 2, {}));
      }
      for (auto& p : pending) p.wait();
    } else {
      for (const int tag : {1, 0}) {  // all of tag 1 first
        for (int i = tag; i < count; i += 2) {
          tensors.push_back(at::empty({i % 3 == 0 ? 90'000 : 10}, at::kDouble));
          pending.push_back(comm->recv(tensors.back(), 0, tag, {}));
        }
      }
      for (auto p = pending.rbegin(); p != pending.rend(); ++p) p->wait();
      std::size_t at = 0;
      for (const int tag : {1, 0}) {
        for (int i = tag; i < count; i += 2) {
          if (!at::all(tensors[at++] == i).item<bool>()) ++wrong;
        }
      }
    }
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("A rank may send to itself, and both may send before either receives") {
  std::atomic<int> wrong{0};
  run_ranks(2, [&](RankContext& context) {
    auto comm = world_communicator(context);
    const int me = context.rank;
    auto self = at::full({20'000}, me, at::kFloat), own = at::empty({20'000}, at::kFloat);
    auto to_self = comm->send(self, me, 5, {});
    auto from_self = comm->recv(own, me, 5, {});
    auto there = comm->send(self, 1 - me, 6, {});
    auto other = at::empty({20'000}, at::kFloat);
    auto back = comm->recv(other, 1 - me, 6, {});
    to_self.wait();
    from_self.wait();
    there.wait();
    back.wait();
    if (!at::all(own == me).item<bool>() || !at::all(other == 1 - me).item<bool>()) ++wrong;
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("Two axes over the same ranks do not mix") {
  std::atomic<int> wrong{0};
  run_ranks(2, [&](RankContext& context) {
    auto a = make_communicator(*context.source, {"a", {0, 1}}, context.rank, nullptr);
    auto b = make_communicator(*context.source, {"b", {0, 1}}, context.rank, nullptr);
    auto x = at::ones({4}), y = at::full({4}, 10.0);
    // Rank 0 begins with a, rank 1 with b: wrong on one group, right on two.
    Pending first = context.rank == 0 ? a->all_reduce(x, Reduction::sum, {})
                                      : b->all_reduce(y, Reduction::sum, {});
    Pending second = context.rank == 0 ? b->all_reduce(y, Reduction::sum, {})
                                       : a->all_reduce(x, Reduction::sum, {});
    first.wait();
    second.wait();
    if (!at::all(x == 2).item<bool>() || !at::all(y == 20).item<bool>()) ++wrong;
  });
  REQUIRE(wrong == 0);
}

// The last to arrive has other things to do: whoever sleeps must be woken to carry the round out,
// even if it is a single chunk.
TEST_CASE("A sleeping receiver takes what a sender that does not wait has left") {
  const std::int64_t size = GENERATE(1'000, 65'536, 300'000);
  std::atomic<bool> received{false};
  bool in_time = false;
  run_ranks(2, [&](RankContext& context) {
    auto comm = world_communicator(context);
    if (context.rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the other is asleep by now
      Pending sent = comm->send(at::full({size}, 1.0, at::kFloat), 1, 0, {});
      for (int i = 0; i < 3'000 && !received; ++i) {  // far less than what a rank waits at most
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      in_time = received;
      sent.wait();
    } else {
      comm->recv(at::zeros({size}, at::kFloat), 0, 0, {}).wait();
      received = true;
    }
  });
  CHECK(in_time);
}
