// What verify says of ranks that part after the first step, where each by itself looks right.
#include <catch2/catch.hpp>

#include <cstring>

#include "meshwright/passes.h"
#include "support/hooks.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// A sum that is right, but for one rank from the second step on.
class LateFault final : public PlainReduction {
 public:
  explicit LateFault(int rank) : rank_(rank) {}
  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    gradient_ = gradient;
    ranks_ = &ranks;
    PlainReduction::start(std::move(gradient), ranks, purpose);
  }
  void finish() override {
    PlainReduction::finish();
    if (++calls_ > 1 && ranks_->index() == rank_) gradient_.mul_(1 + 1e-6);
    gradient_ = at::Tensor();
  }

 private:
  const int rank_;
  int calls_ = 0;
  at::Tensor gradient_;
  Communicator* ranks_ = nullptr;
};

class LateHook final : public PlainSum {
 public:
  explicit LateHook(int rank) : rank_(rank) {}
  std::string name() const override { return "late"; }
  std::unique_ptr<BucketReduction> make(const BucketShape&, at::TensorOptions) const override {
    return std::make_unique<LateFault>(rank_);
  }

 private:
  const int rank_;
};

VerifyOutcome with_fault_on(int rank) {
  Setup setup;
  setup.plan = {dp(2), does("late", {}, [=](Draft& draft) {
                  draft.add_pass(hook_reductions(
                      "dp", [=](const BucketShape&) { return std::make_shared<LateHook>(rank); }));
                })};
  return verify(experiment(setup));
}

}  // namespace

TEST_CASE(
    "A rank that parts from its replica after the first step is no rounding of the optimizer's") {
  const int rank = GENERATE(0, 1);
  const VerifyOutcome outcome = with_fault_on(rank);
  INFO("rank " << rank << ": " << describe(outcome, "dp(2)"));
  CHECK(std::strcmp(verdict_of(outcome), "different") == 0);
  CHECK(outcome.parted_step == 1);
  CHECK_FALSE(outcome.parted_update);
  CHECK(outcome.parted_error == Approx(1e-6).epsilon(0.01));
}

TEST_CASE("... and without a fault the same hook's mix is equal") {
  CHECK(with_fault_on(-1).equal);
}
