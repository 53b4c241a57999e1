// Calls a plugin's reduction hook and puts the plugin's name on whatever it throws.
#include "plan/guarded_hook.h"

#include <utility>

#include "meshwright/reduction_hook.h"

namespace mw {
namespace {

class GuardedReduction final : public BucketReduction {
 public:
  GuardedReduction(std::unique_ptr<BucketReduction> inner, const Speaker& speaker)
      : inner_(std::move(inner)), speaker_(speaker) {}

  void start(at::Tensor gradient, Communicator& ranks, Purpose purpose) override {
    call_plugin(
        speaker_, "began a reduction", [&] { inner_->start(std::move(gradient), ranks, purpose); },
        Stage::run);
  }
  void finish() override {
    call_plugin(
        speaker_, "ended a reduction", [&] { inner_->finish(); }, Stage::run);
  }
  std::vector<at::Tensor> state() override {
    return call_plugin(
        speaker_, "gave what it keeps", [&] { return inner_->state(); }, Stage::run);
  }

 private:
  const std::unique_ptr<BucketReduction> inner_;
  const Speaker speaker_;
};

class GuardedHook final : public ReductionHook {
 public:
  GuardedHook(std::shared_ptr<const ReductionHook> inner, Speaker speaker)
      : inner_(std::move(inner)), speaker_(std::move(speaker)) {}

  std::string name() const override {
    return call_plugin(speaker_, "named a reduction", [&] { return inner_->name(); });
  }
  bool exact(const BucketShape& bucket) const override {
    return call_plugin(speaker_, "described a reduction", [&] { return inner_->exact(bucket); });
  }
  ReductionCost cost(const BucketShape& bucket) const override {
    return call_plugin(speaker_, "priced a reduction", [&] { return inner_->cost(bucket); });
  }
  std::unique_ptr<BucketReduction> make(const BucketShape& bucket,
                                        at::TensorOptions options) const override {
    auto made = call_plugin(
        speaker_, "made a reduction", [&] { return inner_->make(bucket, options); }, Stage::run);
    if (made == nullptr) {
      throw Error(attributed(speaker_,
                             {Stage::run, "plugin.fault", "",
                              "its hook made no reduction for " + bucket.name, "mend the plugin"}));
    }
    return std::make_unique<GuardedReduction>(std::move(made), speaker_);
  }

 private:
  const std::shared_ptr<const ReductionHook> inner_;
  const Speaker speaker_;
};

}  // namespace

void guard_hooks(Program& program, const Speaker& speaker) {
  for (Bucket& bucket : program.buckets) {
    if (bucket.hook == nullptr || dynamic_cast<const GuardedHook*>(bucket.hook.get()) != nullptr)
      continue;
    bucket.hook = std::make_shared<GuardedHook>(bucket.hook, speaker);
  }
}

}  // namespace mw
