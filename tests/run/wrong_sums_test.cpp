// Sums over ranks to which one rank brings something wrong: what the run says of them.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/backend.h"
#include "meshwright/carrier.h"
#include "meshwright/engine/ranks.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

// Changes what a rank of the run brings to a sum.
using Change = std::function<void(int rank, const at::Tensor& brought)>;

// Hands on all calls of plans of `dp` and `tp`, after the change.
class ChangedSums final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  ChangedSums(c10::intrusive_ptr<c10d::Backend> inner, int rank, Change change)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        global_(rank),
        change_(std::move(change)) {}
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  WorkPtr allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
    change_(global_, t.at(0));
    return inner_->allreduce(t, o);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override { return inner_->barrier(o); }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const int global_;
  const Change change_;
};

class ChangedSource final : public CommunicatorSource {
 public:
  ChangedSource(std::unique_ptr<CommunicatorSource> inner, Change change)
      : inner_(std::move(inner)), change_(std::move(change)) {}
  const char* name() const override { return inner_->name(); }
  int ranks() const override { return inner_->ranks(); }
  c10::intrusive_ptr<c10d::Backend> backend(const Connection& connection, int index) override {
    return c10::make_intrusive<ChangedSums>(inner_->backend(connection, index),
                                            connection.ranks.at(static_cast<std::size_t>(index)),
                                            change_);
  }
  void abort(int rank, const std::string& reason) override { inner_->abort(rank, reason); }
  void ended(int rank) override { inner_->ended(rank); }

 private:
  const std::unique_ptr<CommunicatorSource> inner_;
  const Change change_;
};

// The problem with which the training ends; an empty one if it does not fail.
Problem problem_of(const Experiment& e, const Change& change) {
  comm::stand_between_ranks([&](std::unique_ptr<CommunicatorSource> source) {
    return std::make_unique<ChangedSource>(std::move(source), change);
  });
  Problem problem;
  try {
    train(e, nullptr, nullptr);
  } catch (const Error& error) {
    problem = error.problems().front();
  }
  comm::stand_between_ranks(nullptr);
  return problem;
}

}  // namespace

TEST_CASE("A sum that says replicas differ where none does ends the run") {
  Setup setup;
  setup.plan = {dp(2)};
  Experiment e = experiment(setup);
  e.check_every = 2;
  e.steps = 4;
  const Problem problem = problem_of(e, [](int rank, const at::Tensor& brought) {
    const Purpose* purpose = current_purpose();
    if (rank == 1 && purpose != nullptr && purpose->label != nullptr &&
        *purpose->label == "what ranks keep alike")
      brought.data_ptr<std::int64_t>()[0] ^= 1;
  });
  CHECK(problem.code == "check.replicas");
  CHECK_THAT(problem.message, Catch::Contains("no tensor does") && Catch::Contains("(step 1)"));
}

// Ranks of tp hold the gradients of norms alike, and one of them counts those for the gradient
// norm: a NaN in the sum of another one must end the run before its parameters have it.
TEST_CASE("A NaN in any sum of gradients ends the run at its step, whichever rank brings it") {
  Setup setup;
  setup.plan = {dp(2), tp(2)};
  Experiment e = experiment(setup);
  e.steps = 2;
  e.stops_on_nan = true;
  int sums = 0;  // of rank 0, in two steps
  const auto is_gradient = [] {
    const Purpose* purpose = current_purpose();
    return purpose != nullptr && std::string(purpose->phase) == "gradients";
  };
  CHECK(problem_of(e, [&](int rank, const at::Tensor&) {
          sums += rank == 0 && is_gradient();
        }).code.empty());
  REQUIRE(sums % 2 == 0);
  REQUIRE(sums > 2);
  for (int at = 0; at < 4 * sums; ++at) {
    const int chosen = at / sums, nth = at % sums;
    INFO("rank " << chosen << ", sum " << nth);
    int seen = 0;
    const Problem problem = problem_of(e, [&](int rank, const at::Tensor& brought) {
      if (rank == chosen && is_gradient() && seen++ == nth)
        brought.view(-1)[0] = std::numeric_limits<double>::quiet_NaN();
    });
    CHECK(problem.code == "run.not-finite-once");
    CHECK_THAT(problem.message, Catch::Contains(nth < sums / 2 ? "of step 0 is" : "of step 1 is"));
  }
}

// Both stages hold the gradient of a tied embedding, and the first counts it for the gradient norm.
TEST_CASE("The totals of each rank read all of its gradients, copies that others count too") {
  Setup setup;
  setup.options["tied"] = true;
  setup.plan = {dp(2), pp(2, "gpipe", {1, 1})};
  const Experiment e = experiment(setup);
  for (const Program& program : e.plan->programs) {
    std::set<int> read;
    for (const Segment& segment : program.segments) {
      for (const Instruction& i : segment.code)
        if (i.code == Code::totals) read.insert(i.inputs.begin(), i.inputs.end());
    }
    CHECK(program.buckets.size() > 1);
    for (const Bucket& bucket : program.buckets) CHECK(read.contains(bucket.flat.reduced));
  }
}
