// Collectives out of messages: what ranks of several processes get is what threads of one get, bit
// for bit, and whoever fails, leaves or calls something else is named. Processes are threads here,
// between which nothing passes but messages.
#include "meshwright/transport.h"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <thread>

#include "comm_testing.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT
using namespace std::chrono_literals;
using Catch::Contains;

namespace {

class Elsewhere final : public Platform {
 public:
  at::DeviceType type() const override { return at::kPrivateUse1; }
};

class Wire;
// What all processes have in common.
struct Office {
  std::mutex mutex;
  std::vector<Wire*> there;
};

class Wire : public TransportCarrier {
 public:
  Wire(Office& office, int processes, int process)
      : TransportCarrier("wire", processes, process), office_(office) {}
  void send(int to, const std::string& message) override {
    const std::lock_guard lock(office_.mutex);
    auto whole = message;
    if (cuts > 0 && whole.size() > cut_from) whole.resize(whole.size() - cuts);
    office_.there.at(static_cast<std::size_t>(to))->arrived(process(), std::move(whole));
  }
  void loses(int other) { gone(other, "its wire was cut"); }
  void hears_noise_of(int other) { arrived(other, "?"); }
  std::size_t cuts = 0;  // bytes that messages beyond some size lose

 private:
  static constexpr std::size_t cut_from = 1000;
  Office& office_;
};

using Places = std::vector<std::vector<int>>;
using Body = std::function<void(RankContext&)>;

// Runs `body` on each rank, `times` times, one run after the other; by rank, what the last threw.
std::map<int, std::string> across(const Places& ranks, const Body& body,
                                  std::chrono::milliseconds timeout = 60s, int times = 1,
                                  std::size_t cuts = 0) {
  Office office;
  std::vector<std::unique_ptr<Wire>> wires;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    wires.push_back(
        std::make_unique<Wire>(office, static_cast<int>(ranks.size()), static_cast<int>(p)));
    wires.back()->cuts = cuts;
    office.there.push_back(wires.back().get());
  }
  std::mutex mutex;
  std::map<int, std::string> errors;
  std::vector<std::thread> processes;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    processes.emplace_back([&, p] {
      for (int time = 0; time < times; ++time) {
        const auto source = wires[p]->connect(ranks, *cpu_platform(), timeout);
        std::vector<std::thread> threads;
        for (const int rank : ranks[p]) {
          threads.emplace_back([&, rank] {
            RankContext context{rank, source->ranks(), source.get()};
            std::string error;
            try {
              body(context);
              source->ended(rank);
            } catch (const Error& thrown) {
              error = thrown.problems().front().code + ": " + thrown.what();
              source->abort(rank, thrown.what());
            }
            const std::lock_guard lock(mutex);
            errors[rank] = error;
          });
        }
        for (auto& thread : threads) thread.join();
      }
    });
  }
  for (auto& process : processes) process.join();
  return errors;
}

std::string all_of(const std::map<int, std::string>& errors) {
  std::string text;
  for (const auto& [rank, error] : errors) text += error;
  return text;
}

at::Tensor brought(at::ScalarType dtype, std::int64_t count, int rank) {
  const auto draw = at::arange(count, at::kLong).mul_(7919).add_(104'729 * (rank + 1));
  const auto wide = draw.remainder(1009).to(at::kDouble).div_(7).sub_(60);
  return at::isFloatingType(dtype) ? wide.to(dtype) : draw.remainder(40).to(dtype);
}

// What one rank gets of each collective, one after the other.
std::vector<at::Tensor> each_collective(RankContext& context, at::ScalarType dtype) {
  const auto comm = world_communicator(context);
  const int n = context.ranks, me = context.rank;
  std::vector<at::Tensor> got;
  for (const auto op : {Reduction::sum, Reduction::max}) {
    auto tensor = brought(dtype, 1001, me);
    comm->all_reduce(tensor, op, {}).wait();
    got.push_back(tensor);
  }
  got.push_back(at::empty({n * 37}, dtype));
  comm->all_gather(got.back(), brought(dtype, 37, me), {}).wait();
  got.push_back(at::empty({41}, dtype));
  comm->reduce_scatter(got.back(), brought(dtype, n * 41, me), Reduction::sum, {}).wait();
  got.push_back(at::empty({2 * n, 3}, dtype));
  comm->all_to_all(got.back(), brought(dtype, 6 * n, me).view({2 * n, 3}), {}, {}, {}).wait();
  // Rank r has r + c + 1 rows for rank c.
  std::vector<std::int64_t> rows;
  std::int64_t all = 0;
  for (int c = 0; c < n; ++c) all += rows.emplace_back(me + c + 1);
  got.push_back(at::empty({all, 2}, dtype));
  comm->all_to_all(got.back(), brought(dtype, 2 * all, me).view({all, 2}), rows, rows, {}).wait();
  got.push_back(brought(dtype, 19, me));
  comm->broadcast(got.back(), n - 1, {}).wait();
  const auto mine = brought(dtype, 23, me);
  got.push_back(at::empty({23}, dtype));
  auto sent = comm->send(mine, (me + 1) % n, 7, {});
  comm->recv(got.back(), (me + n - 1) % n, 7, {}).wait();
  sent.wait();
  comm->barrier({}).wait();
  return got;
}

}  // namespace

TEST_CASE("Ranks of several processes get what threads get") {
  for (const Places& places : {Places{{0}, {1}}, Places{{0, 1}, {2, 3}}, Places{{0, 2}, {1}}}) {
    int ranks = 0;
    for (const auto& list : places) ranks += static_cast<int>(list.size());
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kLong}) {
      std::map<int, std::vector<at::Tensor>> expected, got;
      std::mutex mutex;
      const auto into = [&](auto& results) {
        return [&](RankContext& context) {
          auto own = each_collective(context, dtype);
          const std::lock_guard lock(mutex);
          results[context.rank] = std::move(own);
        };
      };
      run_ranks(ranks, into(expected));
      REQUIRE(all_of(across(places, into(got))).empty());
      for (const auto& [rank, tensors] : expected) {
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          INFO(fmt::format("rank {} of {}, {}, result {}", rank, ranks, c10::toString(dtype), i));
          REQUIRE(at::equal(got.at(rank).at(i), tensors[i]));
        }
      }
    }
  }
}

TEST_CASE("Calls under way are waited for in any order, and runs follow each other") {
  std::atomic<int> wrong{0};
  const auto errors = across(
      {{0, 1}, {2}},
      [&](RankContext& context) {
        const auto comm = world_communicator(context);
        auto first = at::full({100}, context.rank, at::kLong);
        auto second = at::full({200}, 10 * context.rank, at::kLong);
        auto a = comm->all_reduce(first, Reduction::sum, {});
        auto b = comm->all_reduce(second, Reduction::sum, {});
        if (context.rank == 1) a.wait();
        b.wait();
        if (context.rank != 1) a.wait();
        a.wait();  // again
        if (!first.eq(3).all().item<bool>() || !second.eq(30).all().item<bool>()) ++wrong;
      },
      60s, 3);
  CHECK(all_of(errors).empty());
  CHECK(wrong == 0);
}

TEST_CASE("Ranks of several processes that call different things are told what each called") {
  const auto differ = [](const Body& one, const Body& other) {
    return across({{0}, {1}}, [&](RankContext& c) { (c.rank == 0 ? one : other)(c); });
  };
  const auto reduce = [](std::int64_t count, Reduction op) {
    return [=](RankContext& context) {
      world_communicator(context)->all_reduce(at::ones({count}), op, {}).wait();
    };
  };
  for (const auto& errors : {differ(reduce(10, Reduction::sum), reduce(9, Reduction::sum)),
                             differ(reduce(10, Reduction::sum), reduce(10, Reduction::max))}) {
    CHECK_THAT(all_of(errors), Contains("collective.mismatch") && Contains("axis 'world'") &&
                                   Contains("all-reduce (sum) of 10 Float"));
  }
  const auto splits = across({{0}, {1}}, [](RankContext& context) {
    const std::vector<std::int64_t> even{2, 2}, odd{1, 3};
    const auto in = at::ones({4, 3}), out = at::empty({4, 3});
    world_communicator(context)
        ->all_to_all(out, in, even, context.rank == 0 ? odd : even, {})
        .wait();
  });
  CHECK_THAT(all_of(splits), Contains("Ranks disagree on axis 'world'"));
  const auto pair = across({{0}, {1}}, [](RankContext& context) {
    const auto comm = world_communicator(context);
    if (context.rank == 0) comm->send(at::ones({5}), 1, 3, {}).wait();
    if (context.rank == 1) comm->recv(at::ones({6}), 0, 3, {}).wait();
    comm->barrier({}).wait();
  });
  CHECK_THAT(all_of(pair), Contains("of 5 Float") && Contains("of 6 Float"));
}

TEST_CASE("Who waits for a rank of another process in vain is told why") {
  const auto waits = [](RankContext& context) { world_communicator(context)->barrier({}).wait(); };
  const auto with_last = [&](const Body& last, std::chrono::milliseconds timeout) {
    return across(
        {{0, 1}, {2}}, [&](RankContext& c) { (c.rank == 2 ? last : waits)(c); }, timeout);
  };
  const auto ended = with_last([](RankContext&) {}, 60s);
  CHECK_THAT(ended.at(0), Contains("Rank 2 has ended") || Contains("Stopped because rank 1"));
  CHECK_THAT(all_of(ended), Contains("collective.mismatch"));
  const auto failed = with_last(
      [](RankContext&) { throw Error(Stage::run, "test.fails", "", "no such file"); }, 60s);
  for (const int rank : {0, 1})
    CHECK_THAT(failed.at(rank), Contains("run.aborted") && Contains("rank 2 failed: no such file"));

  // The last rank comes once the others have given up.
  std::atomic<int> waiting{2};
  const auto late = across(
      {{0, 1}, {2}},
      [&](RankContext& context) {
        if (context.rank == 2) {
          while (waiting > 0) std::this_thread::sleep_for(1ms);
          return;
        }
        const auto thrown = test::thrown([&] { waits(context); });
        --waiting;
        throw Error(Stage::run, "test." + thrown, "", "waited in vain");
      },
      100ms);
  CHECK_THAT(all_of(late), Contains("test.collective.timeout"));
}

TEST_CASE("A process that is gone fails what waits for its ranks, and its words are still heard") {
  Office office;
  Wire wire(office, 2, 0), other(office, 2, 1);
  office.there = {&wire, &other};
  other.post(0, "the last word");
  const auto source = wire.connect({{0}, {1}}, *cpu_platform(), 60s);
  RankContext context{0, 2, source.get()};
  const auto comm = world_communicator(context);
  auto under_way = comm->barrier({});
  wire.loses(1);
  CHECK(test::thrown([&] { under_way.wait(); }) == "run.aborted");
  CHECK_THROWS_WITH(comm->barrier({}), Contains("rank 1") && Contains("its wire was cut"));
  CHECK(wire.take(1, 1s) == "the last word");
  CHECK(test::thrown([&] { wire.take(1, 60s); }) == "process.lost");
  CHECK(test::thrown([&] {
          wire.connect({{0}, {1}}, Elsewhere(), 60s);
        }) == "device.transport device");
}

TEST_CASE("A message that cannot be read is the end of who sent it, told to those who wait") {
  Office office;
  Wire wire(office, 2, 0), other(office, 2, 1);
  office.there = {&wire, &other};
  const auto source = wire.connect({{0}, {1}}, *cpu_platform(), 60s);
  RankContext context{0, 2, source.get()};
  const auto comm = world_communicator(context);
  auto under_way = comm->barrier({});
  CHECK_NOTHROW(wire.hears_noise_of(1));
  CHECK(test::thrown([&] { under_way.wait(); }) == "run.aborted");
  CHECK_THROWS_WITH(comm->barrier({}), Contains("rank 1") && Contains("cannot be read"));
}

TEST_CASE(
    "A transport that cuts messages off is told what is missing, and nothing beyond is read") {
  const auto with = [](const std::function<void(Communicator&, int)>& call) {
    return across(
        {{0}, {1}}, [&](RankContext& c) { call(*world_communicator(c), c.rank); }, 60s, 1, 8);
  };
  const auto whole = [] { return at::ones({400}, at::kDouble); };  // 3200 bytes
  const std::vector<std::function<void(Communicator&, int)>> calls = {
      [&](auto& comm, int) { comm.all_reduce(whole(), Reduction::sum, {}).wait(); },
      [&](auto& comm, int) { comm.all_gather(at::empty({800}, at::kDouble), whole(), {}).wait(); },
      [&](auto& comm, int) {
        comm.reduce_scatter(whole(), at::ones({800}, at::kDouble), Reduction::sum, {}).wait();
      },
      [&](auto& comm, int) {
        comm.all_to_all(at::empty({800}, at::kDouble), at::ones({800}, at::kDouble), {}, {}, {})
            .wait();
      },
      [&](auto& comm, int) { comm.broadcast(whole(), 0, {}).wait(); },
      [&](auto& comm, int rank) {
        if (rank == 0) comm.send(whole(), 1, 3, {}).wait();
        if (rank == 1) comm.recv(whole(), 0, 3, {}).wait();
      },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    INFO("call " << i);
    const std::string told = all_of(with(calls[i]));
    CHECK_THAT(told, Contains("process.message"));
    static const std::regex sizes(
        "wire delivered (\\d+) bytes from process [01], which sent (\\d+)");
    std::smatch found;
    REQUIRE(std::regex_search(told, found, sizes));
    CHECK(std::stoi(found[2]) - std::stoi(found[1]) == 8);
  }
}
