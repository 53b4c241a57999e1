// The rules of NCCL's that mixes are tested by: each breach fails, and says who waits for whom.
#include "support/nccl_rule.h"

#include <catch2/catch.hpp>

#include "comm_testing.h"
#include "meshwright/engine/ranks.h"

using namespace mw;           // NOLINT
using namespace mw::test;     // NOLINT
using namespace mw::testing;  // NOLINT
using Catch::Contains;

namespace {

// What two ranks' run fails with; "" if it does not.
std::string failure(const std::function<void(CommunicatorSource&, int rank)>& body,
                    const RankOptions& options = {}) {
  const NcclRule rule;
  RankRuntime runtime(2, nullptr);
  try {
    runtime.run([&](RankContext& context) { body(*context.source, context.rank); }, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::unique_ptr<Communicator> pair(CommunicatorSource& source, int from, int to, int rank) {
  const int index = rank == from ? 0 : 1;
  return make_communicator(source, {"pp", {from, to}, "", /*pair=*/true}, index, nullptr);
}

const std::string first_label = "layers.0.out", second_label = "layers.1.out";

}  // namespace

TEST_CASE("Ranks that make communicators in different orders wait for each other, and are named") {
  const std::string text = failure(
      [](CommunicatorSource& source, int rank) {
        // Each makes that by which it sends first.
        const auto goes = pair(source, rank, 1 - rank, rank);
        const auto comes = pair(source, 1 - rank, rank, rank);
      },
      impatient());
  CHECK_THAT(text, Contains("waited 0.5 s for rank") && Contains("communicator pp"));
}

TEST_CASE("Messages in one order pass, whatever their tags, and in another order are named") {
  const auto exchange = [](bool swapped) {
    return failure([=](CommunicatorSource& source, int rank) {
      const auto ranks = pair(source, 0, 1, rank);
      if (rank == 0) {
        Pending a = ranks->send(at::ones({3}), 1, 7, {"forward", &first_label});
        Pending b = ranks->send(at::zeros({3}), 1, 4, {"forward", &second_label});
        b.wait();
        a.wait();
        return;
      }
      const at::Tensor one = at::empty({3}), other = at::empty({3});
      Pending a = ranks->recv(one, 0, swapped ? 4 : 7, {"forward", &first_label});
      Pending b = ranks->recv(other, 0, swapped ? 7 : 4, {"forward", &second_label});
      b.wait();
      a.wait();
      if (!one.equal(at::ones({3})) || !other.equal(at::zeros({3})))
        throw std::runtime_error("the messages are mixed up");
    });
  };
  CHECK(exchange(false).empty());
  CHECK_THAT(exchange(true), Contains("that rank 0 sends to rank 1 on 'pp 0 -> 1' is 'layers.") &&
                                 Contains("and rank 1 receives 'layers."));
}

TEST_CASE("What goes both ways needs two communicators") {
  const std::string text = failure([](CommunicatorSource& source, int rank) {
    const auto ranks = pair(source, 0, 1, rank);
    const at::Tensor goes = at::ones({3}), comes = at::empty({3});
    Pending sent = ranks->send(goes, 1 - rank, 0, {});
    ranks->recv(comes, 1 - rank, 0, {}).wait();
    sent.wait();
  });
  CHECK_THAT(text, Contains("both sends and receives on the communicator 'pp 0 -> 1'"));
}

TEST_CASE("Transfers of one stream wait for each other, whatever their groups") {
  const auto meet = [](bool alike) {
    return failure(
        [=](CommunicatorSource& source, int rank) {
          const auto a = make_communicator(source, {"a", {0, 1}, "both"}, rank, nullptr);
          const auto b = make_communicator(source, {"b", {0, 1}, "both"}, rank, nullptr);
          const bool swapped = rank == 1 && !alike;
          at::Tensor one = at::ones({3}), other = at::ones({3});
          Pending first = (swapped ? b : a)->all_reduce(one, Reduction::sum, {});
          Pending second = (swapped ? a : b)->all_reduce(other, Reduction::sum, {});
          first.wait();
          second.wait();
        },
        alike ? RankOptions{} : impatient());
  };
  CHECK(meet(true).empty());
  CHECK_THAT(meet(false), Contains("waited 0.5 s for rank"));
}
