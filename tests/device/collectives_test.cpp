// Collectives of thread ranks whose tensors lie on accelerators, one for each rank or one for all.
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "meshwright/world.h"
#include "on_devices.h"
#include "run/devices.h"

using namespace mw;        // NOLINT
using namespace mw::test;  // NOLINT
using Catch::Contains;

namespace {

// A body for each of four ranks, in its thread and on its device.
template <class Body>
void on_ranks(Ranks where, const Body& body) {
  const OnDevices devices(where);
  run_ranks(4, [&](RankContext& context) {
    const at::Device device = device_of(*devices.platform, context.rank);
    const DeviceScope scope(*devices.platform, device);
    const auto comm =
        make_communicator(*context.source, {"world", {0, 1, 2, 3}}, context.rank, nullptr);
    body(*comm, at::TensorOptions().device(device).dtype(at::kDouble));
  });
}

}  // namespace

TEST_CASE("Each collective moves what it says, many times, and no access is out of order") {
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  std::atomic<int> wrong{0};
  on_ranks(where, [&](Communicator& comm, const at::TensorOptions& options) {
    const int me = comm.index();
    const auto is = [&](const at::Tensor& t, const std::vector<double>& expected) {
      wrong += !at::equal(t.cpu(), at::tensor(expected, at::kDouble));
    };
    for (int k = 0; k < 20; ++k) {
      at::Tensor sum = at::full({3}, me + k, options), most = at::full({2}, me, options);
      Pending a = comm.all_reduce(sum, Reduction::sum, {});
      Pending b = comm.all_reduce(most, Reduction::max, {});
      at::Tensor all = at::empty({4}, options), one = at::full({1}, me, options);
      comm.all_gather(all, one, {}).wait();
      is(all, {0, 1, 2, 3});
      at::Tensor part = at::arange(4, options).add(me), own = at::empty({1}, options);
      comm.reduce_scatter(own, part, Reduction::sum, {}).wait();
      is(own, {4.0 * me + 6});
      at::Tensor out = at::empty({4}, options), in = at::full({4}, me, options);
      comm.all_to_all(out, in, {}, {}, {}).wait();
      is(out, {0, 1, 2, 3});
      at::Tensor shared = at::full({1}, me, options);
      comm.broadcast(shared, 2, {}).wait();
      is(shared, {2});
      at::Tensor sent = at::full({2}, me, options), came = at::empty({2}, options);
      Pending to = comm.send(sent, (me + 1) % 4, k, {}),
              from = comm.recv(came, (me + 3) % 4, k, {});
      from.wait();
      to.wait();
      is(came, std::vector<double>(2, (me + 3) % 4));
      b.wait();
      a.wait();
      is(sum, std::vector<double>(3, 6 + 4 * k));
      is(most, {3, 3});
    }
  });
  CHECK(wrong == 0);
  CHECK(reported() == "");
}

// A rank that waits may look at any moment of another's start(). On the host these addresses end
// the process.
TEST_CASE("No rank carries out on the host what lies on accelerators") {
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  std::atomic<int> wrong{0};
  on_ranks(where, [&](Communicator& comm, const at::TensorOptions& options) {
    at::Tensor t = at::empty({64}, options);
    for (int k = 0; k < 4000; ++k) {
      t.fill_(comm.index());
      comm.all_reduce(t, Reduction::sum, {}).wait();
    }
    wrong += !t.cpu().eq(6).all().item<bool>();
  });
  CHECK(wrong == 0);
  CHECK(reported() == "");
}

TEST_CASE("Half types are summed in fp32 there too") {
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  std::atomic<int> wrong{0};
  on_ranks(where, [&](Communicator& comm, const at::TensorOptions& options) {
    // 256 + 1 + 1 + 1 in bf16 stays 256, whose next number is 258.
    at::Tensor t = at::full({8}, comm.index() == 0 ? 256 : 1, options.dtype(at::kBFloat16));
    comm.all_reduce(t, Reduction::sum, {}).wait();
    wrong += !t.cpu().to(at::kFloat).eq(260).all().item<bool>();
  });
  CHECK(wrong == 0);
}

TEST_CASE("Who writes to a buffer in flight, or lets it go, is found") {
  on_ranks(GENERATE(Ranks::apart, Ranks::together),
           [&](Communicator& comm, const at::TensorOptions& options) {
             at::Tensor t = at::ones({8}, options);
             Pending pending = comm.all_reduce(t, Reduction::sum, {});
             t.add_(1);
             pending.wait();
           });
  CHECK_THAT(reported(), Contains("race: "));
}

namespace {

// Four ranks; each has a group with one neighbour and a group with the other one. It begins a
// transfer in the first and one in the second, awaits the second alone, and reads what the first
// brought. `streams`: of the two transfers, by name.
void begin_two(Ranks where, const std::string& first, const std::string& second, bool crossed) {
  const OnDevices devices(where);
  run_ranks(4, [&](RankContext& context) {
    const int me = context.rank;
    const at::Device device = device_of(*devices.platform, me);
    const DeviceScope scope(*devices.platform, device);
    const auto group = [&](const std::string& axis, std::vector<int> ranks,
                           const std::string& stream) {
      const int index = ranks[0] == me ? 0 : 1;
      return make_communicator(*context.source, {axis, ranks, stream}, index, nullptr);
    };
    const bool even = me % 2 == 0;
    const auto a = group("a", even ? std::vector{me, me + 1} : std::vector{me - 1, me}, first);
    const auto b = group("b", me < 2 ? std::vector{me, me + 2} : std::vector{me - 2, me}, second);
    const auto options = at::TensorOptions().device(device).dtype(at::kDouble);
    for (int k = 0; k < 5; ++k) {
      at::Tensor x = at::full({3}, me, options), y = at::full({3}, me, options);
      // Some ranks are late with the first, so that the second is complete before it.
      if (crossed && me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      Pending one = a->all_reduce(x, Reduction::sum, {});
      Pending two = b->all_reduce(y, Reduction::sum, {});
      two.wait();
      const at::Tensor read = x.add(1);
      one.wait();
    }
  });
}

}  // namespace

TEST_CASE("Transfers of one stream go in their order, whatever their groups") {
  const Ranks where = GENERATE(Ranks::apart, Ranks::together);
  const bool crossed = GENERATE(false, true);
  begin_two(where, "one", "one", crossed);
  CHECK(reported() == "");
  CHECK(sim::reset() == 0);
  begin_two(where, "one", "two", crossed);  // nothing orders these
  CHECK(reported() != "");
  begin_two(where, "", "", crossed);
  CHECK(reported() != "");
}
