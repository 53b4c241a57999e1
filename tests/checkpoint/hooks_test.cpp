// What reduction hooks keep, in checkpoints: it comes back in the same mix, and a hook that keeps
// something else by the same name is refused.
#include <catch2/catch.hpp>
#include <mutex>

#include "checkpoint/run_checkpoints.h"
#include "meshwright/passes.h"
#include "meshwright/strategy.h"
#include "support/hooks.h"
#include "support/problems.h"
#include "support/setup.h"
#include "support/temporary_folder.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

std::mutex seen_lock;

// Counts its reductions in a tensor of so many elements, which it keeps.
class Counting final : public PlainReduction {
 public:
  Counting(std::int64_t elements, at::ScalarType type, std::vector<double>* seen)
      : count_(at::zeros({elements}, type)), seen_(seen) {}
  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    {
      const std::lock_guard lock(seen_lock);
      seen_->push_back(count_[0].item<double>());
    }
    count_.add_(1);
    PlainReduction::start(std::move(gradient), ranks, purpose);
  }
  std::vector<at::Tensor> state() override { return {count_}; }

 private:
  at::Tensor count_;
  std::vector<double>* seen_;
};

class Counts final : public PlainSum {
 public:
  Counts(std::int64_t elements, at::ScalarType type, std::vector<double>* seen)
      : elements_(elements), type_(type), seen_(seen) {}
  std::unique_ptr<BucketReduction> make(const BucketShape&, at::TensorOptions) const override {
    return std::make_unique<Counting>(elements_, type_, seen_);
  }

 private:
  std::int64_t elements_;
  at::ScalarType type_;
  std::vector<double>* seen_;
};

struct Run {
  std::string end = "none";  // what it threw
  std::string message;
  std::vector<double> seen;  // how many reductions the hooks had counted, at each of their own
};

// Two ranks, one bucket; from step 2 on where a checkpoint of the folder is given.
Run run(const std::filesystem::path& folder, std::int64_t elements,
        const std::filesystem::path& from = {}, at::ScalarType type = at::kDouble) {
  Run done;
  Setup setup;
  setup.plan = {dp(2, 1 << 24, false), does("counts", {}, [&](Draft& draft) {
                  draft.add_pass(hook_reductions(
                      "dp", [hook = std::make_shared<Counts>(elements, type, &done.seen)](
                                const BucketShape&) { return hook; }));
                })};
  Experiment e = experiment(setup);
  e.steps = from.empty() ? 2 : 4;
  Checkpoints::Setup start;
  start.path = folder;
  start.folder = std::make_shared<CheckpointFolder>(folder);
  start.here = {0, 1};
  start.writes = true;
  if (!from.empty()) start.from = std::make_shared<Checkpoint>(from);
  try {
    Checkpoints checkpoints(e, std::move(start));
    e.first_step = checkpoints.first_step();
    train(e, nullptr, nullptr, nullptr, &checkpoints);
    checkpoints.complete();
  } catch (const Error& error) {
    done.end = codes(error.problems());
    done.message = error.problems().front().message;
  }
  return done;
}

}  // namespace

TEST_CASE("what a hook keeps comes back in its mix, and nothing else takes its place") {
  const TemporaryFolder folder;
  const Run first = run(folder.path() / "a", 3);
  CHECK(first.end == "none");
  CHECK(first.seen == std::vector<double>{0, 0, 1, 1});
  const std::filesystem::path written = folder.path() / "a" / checkpoint_name(2);
  const Run again = run(folder.path() / "b", 3, written);
  CHECK(again.end == "none");
  CHECK(again.seen == std::vector<double>{2, 2, 3, 3});
  const Run other = run(folder.path() / "c", 5, written);
  CHECK(other.end == "checkpoint.lacks resume");
  CHECK_THAT(other.message, Catch::Contains("of what the reduction hook of bucket 0 keeps, number "
                                            "0 is Double of [3] there and Double of [5] here"));
  CHECK(other.seen.empty());
  // Numbers of another type are not cast: they would not be the same.
  const Run rounded = run(folder.path() / "d", 3, written, at::kFloat);
  CHECK(rounded.end == "checkpoint.lacks resume");
  CHECK_THAT(rounded.message, Catch::Contains("number 0 is Double of [3] there and Float of [3] "
                                              "here"));
  CHECK(rounded.seen.empty());
}
