// Runs programs for two steps and compares what every rank has with what it must have.
#include "prove/runs.h"

#include <fmt/format.h>

#include <mutex>

#include "check/observe.h"
#include "meshwright/engine/ranks.h"

namespace mw::test {
namespace {

constexpr std::int64_t steps_run = 2;

// The same program with every real one size wider: what bf16 rounds away would hide a small fault.
// What lasts keeps its difference in width (masters, wide gradients); what is made on the way has
// the width of what computes.
void widen(Program& program) {
  const auto wide = [](Dtype dtype) {
    return dtype == Dtype::bf16 ? Dtype::fp32 : dtype == Dtype::fp32 ? Dtype::fp64 : dtype;
  };
  for (Slot& slot : program.slots) {
    if (slot.dtype == Dtype::int64) continue;
    slot.dtype = slot.persistent ? wide(slot.dtype) : Dtype::fp32;
  }
  for (Dtype* dtype :
       {&program.dtype, &program.gradient_dtype, &program.optimizer_dtype, &program.reduce_dtype})
    *dtype = wide(*dtype);
}

}  // namespace

// Keeps what a run does, or holds it to what is kept.
class Subject::Look : public StepWatcher {
 public:
  Look(const Subject& subject, Steps* keep, std::string& differs, std::mutex& mutex)
      : subject_(subject), must_(subject.must_), keep_(keep), differs_(differs), mutex_(mutex) {}

  void computed(const Instruction&, int, int, const at::Tensor&) override {}
  void gradients(RankRun& executor) override {
    seen_ = true;
    look(executor, true);
  }
  void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) override {
    look(executor, false);
    const std::lock_guard lock(mutex_);
    if (!seen_) tell("no gradients in a step");
    seen_ = false;
    if (keep_ != nullptr) {
      if (executor.rank() > 0) return;
      keep_->losses.push_back(outcome.loss);
      keep_->norms.push_back(outcome.grad_norm);
    } else {
      hold("the loss", relative(outcome.loss, must_.losses[at_], 1e-6));
      hold("the gradient norm", relative(outcome.grad_norm, must_.norms[at_], 1e-6));
    }
    at_ = static_cast<std::size_t>(step) + 1;
  }

 private:
  void look(RankRun& executor, bool gradients) {
    for_each_parameter(executor, gradients, [&](int p, const at::Tensor& whole) {
      const std::string& name = executor.program().name_of_parameter(p);
      const std::lock_guard lock(mutex_);
      if (keep_ != nullptr) {
        auto& kept = gradients ? keep_->gradients : keep_->parameters;
        if (kept.size() <= at_) kept.resize(at_ + 1);
        kept[at_].try_emplace(name, whole.to(at::kDouble, false, true));
        return;
      }
      const at::Tensor& must = (gradients ? must_.gradients : must_.parameters)[at_].at(name);
      const double floor = gradients ? 1e-6 * must_.norms[at_] : 1e-3;
      if (whole.sizes() != must.sizes()) return tell("the shape of " + name);
      hold((gradients ? "the gradient of " : "") + name,
           relative(whole.to(at::kDouble), must, floor));
    });
  }
  // The next two under the lock.
  void hold(const std::string& what, double error) {
    if (error > subject_.tolerance_)
      tell(fmt::format("{} is off by {:.1e} in step {}", what, error, at_));
  }
  void tell(const std::string& what) {
    if (differs_.empty()) differs_ = what;
  }

  const Subject& subject_;
  const Steps& must_;
  Steps* const keep_;
  std::string& differs_;
  std::mutex& mutex_;
  std::size_t at_ = 0;
  bool seen_ = false;
};

Subject::Subject(const Setup& setup) : experiment_(experiment(setup)) {
  experiment_.schedule = [](std::int64_t) { return 1e-2; };
  experiment_.threads = 1;
  experiment_.stops_on_nan = false;
  narrow_ = setup.precision != Precision::fp64;
  const bool lossy = !lossy_hooks(*experiment_.plan).names.empty();
  if (narrow_) tolerance_ = 1e-4;
  if (lossy) tolerance_ = 1e-2;
  if (narrow_ || lossy) {
    Plan plan = *experiment_.plan;
    if (narrow_)
      for (Program& program : plan.programs) widen(program);
    run(plan, 60, &must_);
  } else {
    run(*one_rank_plan(*experiment_.plan, false), 60, &must_);
  }
}

std::string Subject::differs(const Stages& stages, double timeout) const {
  Plan plan = *experiment_.plan;
  plan.programs = stages;
  if (narrow_)
    for (Program& program : plan.programs) widen(program);
  try {
    return run(plan, timeout, nullptr);
  } catch (const std::exception& error) {
    return fmt::format("a rank failed: {}", error.what());
  }
}

std::string Subject::run(const Plan& plan, double timeout, Steps* keep) const {
  std::string differs;
  std::mutex mutex;
  Experiment e = experiment_;
  e.timeout = timeout;
  run_steps(e, plan, steps_run, nullptr,
            [&](RankRun&) { return std::make_unique<Look>(*this, keep, differs, mutex); });
  return differs;
}

}  // namespace mw::test
