// The books: memory exact to the byte, autograd's too; communication by axis, op and phase.
#include <catch2/catch.hpp>

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "comm_testing.h"
#include "support/problems.h"

using namespace mw;           // NOLINT
using namespace mw::testing;  // NOLINT

TEST_CASE("Memory goes to the category of the innermost scope, and leaves it when freed") {
  Ledger ledger;
  const MemoryWatch watch(ledger);
  at::Tensor weight, gradient;
  {
    const Ledger::Scope outer(ledger, Category::parameters);
    weight = at::empty({100}, at::kFloat);
    const Ledger::Scope inner(ledger, Category::gradients);
    gradient = at::empty({10}, at::kDouble);
  }
  auto scratch = at::empty({3}, at::kByte);
  CHECK(ledger.memory(Category::parameters).bytes == 400);
  CHECK(ledger.memory(Category::gradients).bytes == 80);
  CHECK(ledger.memory(Category::buffers).bytes == 3);
  CHECK(ledger.bytes() == 483);
  scratch.reset();
  gradient.reset();
  CHECK(ledger.bytes() == 400);
  CHECK(ledger.peak_bytes() == 483);
  CHECK(ledger.memory(Category::gradients).peak == 80);
  ledger.reset_peaks();
  CHECK(ledger.peak_bytes() == 400);
  weight.reset();
  CHECK(ledger.memory(Category::parameters).bytes == 0);
  CHECK(ledger.bytes() == 0);
}

TEST_CASE("What a kernel takes beyond what it leaves is its scratch") {
  Ledger ledger;
  const MemoryWatch watch(ledger);
  const Ledger::Scope scope(ledger, Category::activations);
  at::Tensor input = at::empty({1000}, at::kByte), result, more;
  const auto allocate = [](std::int64_t bytes) { return at::empty({bytes}, at::kByte); };
  {
    const Ledger::Kernel kernel(ledger);
    {
      const at::Tensor first = allocate(300);
      const Ledger::Kernel within(ledger);
      const at::Tensor second = allocate(400);
      result = allocate(50);
    }
    const at::Tensor third = allocate(600);
    input.reset();  // no scratch: it was there before
    more = allocate(70);
  }
  CHECK(ledger.memory(Category::scratch).bytes == 0);
  // 750 at most, of which 120 are left.
  CHECK(ledger.memory(Category::scratch).peak == 630);
  CHECK(ledger.memory(Category::activations).bytes == 120);
  CHECK(ledger.memory(Category::activations).peak == 1000);
  CHECK(ledger.peak_bytes() == 1750);
  CHECK(ledger.peak_without_scratch() == 1000);
  CHECK(ledger.bytes() == 120);
  more.reset();
  CHECK(ledger.memory(Category::activations).bytes == 50);
  ledger.reset_peaks();
  CHECK(ledger.memory(Category::scratch).peak == 0);
  CHECK(ledger.peak_without_scratch() == 50);
  // The limit counts it.
  ledger.set_limit(250, 3);
  CHECK_THROWS_WITH(
      [&] {
        const Ledger::Kernel kernel(ledger);
        allocate(201);
      }(),
      Catch::Contains("Rank 3 is out of its memory limit: 201 bytes for activations"));
  CHECK(ledger.bytes() == 50);
}

TEST_CASE("Ranks allocate without libtorch's table of all blocks, for whose lock they would wait") {
  Ledger ledger;
  const MemoryWatch watch(ledger);
  const auto tensor = at::empty({100}, at::kFloat);
  CHECK(tensor.storage().allocator() != c10::GetDefaultCPUAllocator());
}

TEST_CASE("Memory that was there before, or is kept past the watch, does no harm") {
  auto early = at::empty({64}, at::kFloat);
  Ledger ledger;
  at::Tensor late;
  {
    const MemoryWatch watch(ledger);
    early.reset();
    late = at::empty({64}, at::kFloat);
    CHECK(ledger.bytes() == 256);
  }
  late.reset();  // out of sight
  CHECK(ledger.bytes() == 256);
}

TEST_CASE("A forward and backward pass of autograd is booked to the byte, on each thread rank") {
  std::atomic<int> wrong{0};
  run_ranks(3, [&](RankContext& context) {
    const std::int64_t n = 50 + 10 * context.rank;
    const auto square = n * n * 4;
    Ledger ledger;
    const MemoryWatch watch(ledger);
    const auto expect = [&](std::int64_t got, std::int64_t want) {
      if (got != want) ++wrong;
    };
    auto x = torch::randn({n, n});
    auto weight = torch::randn({n, n}).set_requires_grad(true);
    expect(ledger.bytes(), 2 * square);
    ledger.reset_peaks();
    const Ledger::Scope scope(ledger, Category::activations);
    auto hidden = x.mm(weight);   // kept for relu's backward
    auto out = at::relu(hidden);  // kept
    auto loss = out.sum();        // 4 bytes
    expect(ledger.memory(Category::activations).bytes, 2 * square + 4);
    hidden.reset();  // relu keeps its result only
    expect(ledger.memory(Category::activations).bytes, square + 4);
    out.reset();
    loss.backward();
    // The gradient of the weight stays, and the loss.
    expect(weight.grad().numel() * 4, square);
    expect(ledger.bytes(), 3 * square + 4);
    // At the worst: x, weight, relu's result, two gradients of it, or one and the weight's.
    if (ledger.peak_bytes() < 4 * square + 4) ++wrong;
    loss.reset();
    weight.mutable_grad().reset();
    weight.reset();
    x.reset();
    expect(ledger.bytes(), 0);
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("An allocation over the limit throws out of its op, is not booked and does not leak") {
  Ledger ledger;
  const MemoryWatch watch(ledger);
  auto weight = torch::ones({1000}).set_requires_grad(true);
  ledger.set_limit(10'000, 3);
  const auto refused = [&](auto op) { return test::thrown(op); };
  const Ledger::Scope scope(ledger, Category::activations);
  const auto before = ledger.bytes();
  CHECK(refused([] { at::empty({1'000'000}, at::kFloat); }) == "memory.exceeded memory");
  CHECK(ledger.bytes() == before);

  SECTION("the process does not grow") {
    for (int i = 0; i < 1000; ++i) {  // 100 GB if it leaked and were touched; address space anyhow
      CHECK(refused([] { at::empty({25'000'000}, at::kFloat); }) == "memory.exceeded memory");
    }
    CHECK(ledger.bytes() == before);
  }
  SECTION("in autograd's backward, which stays usable") {
    auto loss = (weight * 2).sum();  // 4000 of weight, 4 of loss; the product is freed
    ledger.set_limit(ledger.bytes() + 100, 3);
    CHECK(refused([&] { loss.backward(); }) == "memory.exceeded memory");
    ledger.set_limit(0, 3);
    loss = (weight * 2).sum();
    loss.backward();
    CHECK(at::all(weight.grad() == 2).item<bool>());
  }
}

TEST_CASE("Where the machine has no memory left, the error has a code of its own") {
  Ledger ledger;
  const MemoryWatch watch(ledger);
  const auto before = ledger.bytes();
  CHECK(test::thrown([] { at::empty({std::int64_t{1} << 50}, at::kFloat); }) == "run.memory");
  CHECK(ledger.bytes() == before);
}

TEST_CASE("Collectives are booked by axis, op and phase, with the bytes of the optimal algorithm") {
  std::atomic<int> wrong{0};
  run_ranks(4, [&](RankContext& context) {
    Ledger ledger;
    const MemoryWatch watch(ledger);
    auto comm = world_communicator(context, &ledger);
    auto whole = at::ones({4000}), part = at::ones({1000});
    auto other = at::ones({4000});
    const auto memory = ledger.bytes();
    const auto peak = ledger.peak_bytes();
    for (int i = 0; i < 3; ++i) {
      comm->all_reduce(whole, Reduction::sum, {"gradients"}).wait();
      comm->all_gather(whole, part, {"forward"}).wait();
      comm->reduce_scatter(part, whole, Reduction::sum, {"backward"}).wait();
      comm->all_to_all(other, whole, {}, {}, {"forward"}).wait();
      auto sent = comm->send(whole, (context.rank + 1) % 4, 0, {"forward"});
      comm->recv(other, (context.rank + 3) % 4, 0, {"forward"}).wait();
      sent.wait();
      comm->barrier({"report"}).wait();
    }
    const auto check = [&](const char* op, const char* phase, std::int64_t bytes) {
      const auto use = ledger.communication().at({"world", op, phase});
      if (use.calls != 3 || use.bytes != 3 * bytes || use.seconds <= 0) ++wrong;
    };
    check("all-reduce", "gradients", 24'000);
    check("all-gather", "forward", 12'000);
    check("reduce-scatter", "backward", 12'000);
    check("all-to-all", "forward", 12'000);
    check("send", "forward", 16'000);
    check("recv", "forward", 0);
    check("barrier", "report", 0);
    if (ledger.communication().size() != 7) ++wrong;
    // A collective needs no memory of its own.
    if (ledger.bytes() != memory || ledger.peak_bytes() != peak) ++wrong;
    ledger.clear_step();
    if (!ledger.communication().empty()) ++wrong;
  });
  REQUIRE(wrong == 0);
}

TEST_CASE("What to do about a limit may go by the rows that a rank has had") {
  Ledger ledger;
  std::vector<double> asked;
  const auto hint = [&](double share) {
    asked.push_back(share);
    return std::string("as it is");
  };
  ledger.set_limit(100, 3, hint);
  CHECK(ledger.limit_hint() == "as it is");
  ledger.compare_rows(30, 10);
  ledger.compare_rows(0, 10);
  CHECK(ledger.rows_share() == 1.5);
  ledger.clear_step();
  CHECK(ledger.rows_share() == 0);
  ledger.compare_rows(5, 10);  // a step after it, with fewer
  CHECK(test::thrown([&] { ledger.allocated(&ledger, 1000); }) == "memory.exceeded memory");
  CHECK(asked == std::vector<double>{0, 1.5});
  ledger.set_limit(100, 3);
  CHECK(ledger.limit_hint() != "as it is");
}

TEST_CASE("Seconds of communication are added up over all phases but one") {
  Ledger ledger;
  ledger.waited(ledger.communication_entry("dp", "all-reduce", "gradients"), 2);
  ledger.waited(ledger.communication_entry("tp", "all-reduce", "forward"), 3);
  ledger.waited(ledger.communication_entry("dp", "all-reduce", "check"), 5);
  CHECK(ledger.communication_seconds("check") == 5);
  CHECK(ledger.communication_seconds("") == 10);
}

TEST_CASE("Work and rows are booked by place and read by key") {
  Ledger ledger;
  const Ledger::Entry forward = ledger.work_entry("linear", "forward");
  const Ledger::Entry dgrad = ledger.work_entry("linear", "dgrad");
  REQUIRE(forward != dgrad);
  CHECK(ledger.work().empty());
  ledger.worked(forward, 10, 0.5);
  ledger.worked(forward, 20, 0.5);
  ledger.took_rows(-1, 2, 0);
  ledger.took_rows(3, 1, 4);
  ledger.took_rows(3, 1, 5);
  REQUIRE(ledger.work().size() == 1);
  const WorkUse use = ledger.work().at({"linear", "forward"});
  CHECK((use.calls == 2 && use.flops == 30 && use.seconds == 1));
  CHECK(ledger.rows() ==
        std::map<std::pair<int, std::int64_t>, std::int64_t>{{{-1, 2}, 0}, {{3, 1}, 9}});
  ledger.clear_step();
  CHECK((ledger.work().empty() && ledger.rows().empty()));
  CHECK(ledger.work_entry("linear", "dgrad") == dgrad);
}

TEST_CASE("What is sent early for the next step is in its book") {
  Ledger ledger;
  const Ledger::Entry gathers = ledger.communication_entry("zero", "all-gather", "parameters");
  CHECK(ledger.communication_entry("zero", "all-gather", "parameters") == gathers);
  ledger.communicated(gathers, 8);
  {
    const Ledger::OfNextStep next(ledger);
    ledger.communicated(gathers, 100);
  }
  REQUIRE(ledger.communication().size() == 1);
  CHECK(ledger.communication().begin()->second.bytes == 8);
  ledger.clear_step();
  REQUIRE(ledger.communication().size() == 1);
  CHECK(ledger.communication().begin()->second.bytes == 100);
  ledger.clear_step();
  CHECK(ledger.communication().empty());
}

TEST_CASE("Bytes on the wire of a bandwidth-optimal algorithm") {
  CHECK(wire_bytes(Collective::all_reduce, 1000, 4) == 1500);
  CHECK(wire_bytes(Collective::all_gather, 1000, 4) == 750);
  CHECK(wire_bytes(Collective::reduce_scatter, 1000, 4) == 750);
  CHECK(wire_bytes(Collective::all_to_all, 1000, 4) == 750);
  CHECK(wire_bytes(Collective::broadcast, 1000, 4) == 750);
  CHECK(wire_bytes(Collective::all_reduce, 1001, 3) == 1334);  // rounded down
  CHECK(wire_bytes(Collective::send, 1000, 4) == 1000);
  CHECK(wire_bytes(Collective::recv, 1000, 4) == 0);
  CHECK(wire_bytes(Collective::all_reduce, 1000, 1) == 0);
}

TEST_CASE("Host memory is booked beside a rank's own") {
  Ledger ledger;
  ledger.set_limit(100, 3);
  {
    const Ledger::Scope scope(ledger, Category::host);
    ledger.allocated(&ledger, 1000);
  }
  CHECK(ledger.memory(Category::host).bytes == 1000);
  CHECK(ledger.bytes() == 0);
  CHECK(ledger.peak_bytes() == 0);
  const int own = 0;
  ledger.allocated(&own, 60);
  CHECK(ledger.bytes() == 60);
  ledger.freed(&ledger);
  ledger.freed(&own);
  CHECK(ledger.memory(Category::host).bytes == 0);
  CHECK(ledger.memory(Category::host).peak == 1000);
  CHECK(ledger.bytes() == 0);
}
