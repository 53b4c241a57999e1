// A sum over ranks that says that replicas differ, where they do not.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
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

// Hands on all calls of a plan of `dp`, and changes what rank 1 adds to the sum that tells whether
// replicas differ.
class WrongSum final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  explicit WrongSum(c10::intrusive_ptr<c10d::Backend> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  WorkPtr allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
    const Purpose* purpose = current_purpose();
    if (getRank() == 1 && purpose != nullptr && purpose->label != nullptr &&
        *purpose->label == "what ranks keep alike")
      t.at(0).data_ptr<std::int64_t>()[0] ^= 1;
    return inner_->allreduce(t, o);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override { return inner_->barrier(o); }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
};

class WrongSums final : public CommunicatorSource {
 public:
  explicit WrongSums(std::unique_ptr<CommunicatorSource> inner) : inner_(std::move(inner)) {}
  const char* name() const override { return inner_->name(); }
  int ranks() const override { return inner_->ranks(); }
  c10::intrusive_ptr<c10d::Backend> backend(const std::string& axis, const std::vector<int>& group,
                                            int index) override {
    return c10::make_intrusive<WrongSum>(inner_->backend(axis, group, index));
  }
  c10::intrusive_ptr<c10d::Backend> backend_on(const std::string& stream, const std::string& axis,
                                               const std::vector<int>& group, int index) override {
    return c10::make_intrusive<WrongSum>(inner_->backend_on(stream, axis, group, index));
  }
  void abort(int rank, const std::string& reason) override { inner_->abort(rank, reason); }
  void ended(int rank) override { inner_->ended(rank); }

 private:
  const std::unique_ptr<CommunicatorSource> inner_;
};

}  // namespace

TEST_CASE("A sum that says replicas differ where none does ends the run") {
  Setup setup;
  setup.plan = {dp(2)};
  Experiment e = experiment(setup);
  e.check_every = 2;
  e.steps = 4;
  comm::stand_between_ranks([](std::unique_ptr<CommunicatorSource> source) {
    return std::make_unique<WrongSums>(std::move(source));
  });
  std::string said;
  try {
    train(e, nullptr, nullptr);
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "check.replicas");
    said = error.problems().front().message;
  }
  comm::stand_between_ranks(nullptr);
  CHECK_THAT(said, Catch::Contains("no tensor does") && Catch::Contains("(step 1)"));
}
