// Judges the steps after the first, where one rank and the mix may differ by rounding alone: one
// rank follows the mix's parameters, and each step is compared by itself.
#include "check/verify_follow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "check/verify_pack.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/processes.h"
#include "observers/not_finite.h"

namespace mw {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Floor of relative differences between copies on several ranks, whose bits are equal unless there
// is a fault.
constexpr double least_scale = 1e-12;

// By step: the largest relative difference between copies on several ranks, before and after the
// update.
struct Spread {
  std::vector<double> before, after;
};
template <class Pack>
void members(Pack& pack, Spread& spread) {
  pack(spread.before, spread.after);
}

// Records a number that the mix reports in a step, or how far it differs from the one recorded.
void note(std::vector<double>& of_steps, std::size_t step, double value, Spread& spread) {
  if (of_steps.size() <= step) {
    of_steps.push_back(value);
  } else if (std::isfinite(value) != std::isfinite(of_steps[step])) {
    spread.before[step] = infinity;
  } else if (std::isfinite(value)) {
    spread.before[step] =
        std::max(spread.before[step], relative(value, of_steps[step], least_scale));
  }
}
void note(at::Tensor& kept, const at::Tensor& tensor, double& spread) {
  if (kept.defined()) {
    spread = std::max(spread, relative_where_finite(tensor, kept, least_scale));
  } else {
    kept = tensor.clone();
  }
}

// Watches a rank of the mix, and records its gradients and parameters. Keeps the first copy of a
// tensor, and how far others differ from it.
class Taker : public StepWatcher {
 public:
  Taker(RunRecord& record, Spread& spread, std::mutex& mutex)
      : record_(record), spread_(spread), mutex_(mutex) {}
  void computed(const Instruction&, int, int, const at::Tensor&) override {}
  void gradients(RankRun& executor) override {
    take(executor, true, record_.gradients, spread_.before);
  }
  void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) override {
    take(executor, false, record_.parameters, spread_.after);
    const std::lock_guard lock(mutex_);
    note(record_.losses, at_, outcome.loss, spread_);
    note(record_.norms, at_, outcome.grad_norm, spread_);
    at_ = static_cast<std::size_t>(step) + 1;
  }

 private:
  void take(RankRun& executor, bool gradients, std::vector<std::map<std::string, at::Tensor>>& into,
            std::vector<double>& spread) {
    for_each_parameter(executor, gradients, [&](int p, const at::Tensor& whole) {
      const std::lock_guard lock(mutex_);
      if (into.size() <= at_) into.resize(at_ + 1);
      for (std::vector<double>* each : {&spread_.before, &spread_.after})
        if (each->size() <= at_) each->resize(at_ + 1, 0);
      note(into[at_][executor.program().name_of_parameter(p)], whole, spread[at_]);
    });
  }

  RunRecord& record_;
  Spread& spread_;
  std::mutex& mutex_;
  std::size_t at_ = 0;  // index of the current step
};

// Adds what another process has recorded of the same run.
void merge(RunRecord& record, Spread& spread, const RunRecord& other, const Spread& of_other) {
  const auto tensors = [](std::vector<std::map<std::string, at::Tensor>>& into,
                          const std::vector<std::map<std::string, at::Tensor>>& from,
                          std::vector<double>& spreads, const std::vector<double>& of_from) {
    into.resize(std::max(into.size(), from.size()));
    spreads.resize(std::max(spreads.size(), into.size()), 0);
    for (std::size_t step = 0; step < from.size(); ++step) {
      spreads.at(step) = std::max(spreads.at(step), of_from.at(step));
      for (const auto& [name, tensor] : from[step])
        note(into.at(step)[name], tensor, spreads[step]);
    }
  };
  tensors(record.gradients, other.gradients, spread.before, of_other.before);
  tensors(record.parameters, other.parameters, spread.after, of_other.after);
  for (std::size_t step = 0; step < other.losses.size(); ++step) {
    note(record.losses, step, other.losses[step], spread);
    note(record.norms, step, other.norms[step], spread);
  }
}

struct StepErrors {
  double loss = 0, norm = 0;
  std::map<std::string, double> gradients, parameters;
};

// Watches the one rank that follows: compares its gradients and parameters with the mix's, and
// replaces them by the mix's.
class Follower : public StepWatcher {
 public:
  Follower(const RunRecord& mix, RunRecord& own, std::vector<StepErrors>& errors)
      : mix_(mix), own_(own), errors_(errors) {}
  void computed(const Instruction&, int, int, const at::Tensor&) override {}

  void gradients(RankRun& executor) override {
    const Program& program = executor.program();
    const std::size_t step = errors_.size();
    errors_.emplace_back();
    const double floor = std::isfinite(mix_.norms[step]) ? 1e-6 * mix_.norms[step] : 0;
    for (std::size_t p = 0; p < program.parameters.size(); ++p) {
      if (program.parameters[p].gradient_slot < 0) continue;
      const std::string& name = program.name_of_parameter(static_cast<int>(p));
      at::Tensor own = executor.gradient(static_cast<int>(p));
      const at::Tensor& of_mix = mix_.gradients[step].at(name);
      errors_[step].gradients[name] =
          relative_where_finite(of_mix, unscaled(executor, own).cpu(), floor);
      own.copy_(of_mix.view(own.sizes()) * executor.loss_scale());
    }
  }

  void stepped(RankRun& executor, std::int64_t step, const StepOutcome& outcome) override {
    const Program& program = executor.program();
    const auto at = static_cast<std::size_t>(step);
    own_.losses.push_back(outcome.loss);
    own_.norms.push_back(outcome.grad_norm);
    own_.parameters.emplace_back();
    errors_[at].loss = relative(mix_.losses[at], outcome.loss, loss_floor);
    errors_[at].norm = relative(mix_.norms[at], outcome.grad_norm, norm_floor);
    for (std::size_t p = 0; p < program.parameters.size(); ++p) {
      const std::string& name = program.name_of_parameter(static_cast<int>(p));
      at::Tensor own = executor.parameter(static_cast<int>(p));
      const at::Tensor& of_mix = mix_.parameters[at].at(name);
      const double floor = outcome.lr * std::sqrt(static_cast<double>(own.numel()));
      errors_[at].parameters[name] = relative_where_finite(of_mix, own.cpu(), floor);
      own_.parameters[at][name] = own.cpu().clone();
      own.copy_(of_mix.view(own.sizes()));
    }
  }

 private:
  const RunRecord& mix_;
  RunRecord& own_;
  std::vector<StepErrors>& errors_;
};

}  // namespace

std::optional<NotFinite> not_finite_before(std::int64_t step, double loss, double norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) return std::nullopt;
  return NotFinite{
      step, true,
      fmt::format("the {} of step {}", std::isfinite(loss) ? "gradient norm" : "loss", step)};
}

std::optional<NotFinite> not_finite_after(std::int64_t step,
                                          const std::map<std::string, at::Tensor>& parameters) {
  for (const auto& [name, tensor] : parameters) {
    if (finite(tensor)) continue;
    return NotFinite{step, false, fmt::format("{} after the update of step {}", name, step)};
  }
  return std::nullopt;
}

NotFinite first_not_finite(const RunRecord& record) {
  for (std::size_t at = 0; at < record.losses.size(); ++at) {
    const auto step = static_cast<std::int64_t>(at);
    if (const auto place = not_finite_before(step, record.losses[at], record.norms[at]))
      return *place;
    if (const auto place = not_finite_after(step, record.parameters[at])) return *place;
  }
  return {static_cast<std::int64_t>(record.losses.size()), false, ""};
}

double relative_where_finite(const at::Tensor& x, const at::Tensor& reference, double floor) {
  const at::Tensor finite = at::isfinite(reference);
  if (finite.all().item<bool>()) return relative(x.view(reference.sizes()), reference, floor);
  const at::Tensor other = x.view(reference.sizes());
  if (!at::isfinite(other).equal(finite)) return infinity;
  return relative(other.masked_select(finite), reference.masked_select(finite), floor);
}

namespace {

// Runs one rank that follows the recorded mix, and judges each step.
void judge(const RunSetup& experiment, const Plan& one, std::int64_t steps,
           const std::atomic<bool>* stop, const RunRecord& mix, const Spread& spread,
           VerifyOutcome& outcome) {
  RunRecord own;
  std::vector<StepErrors> errors;
  run_steps(experiment, one, steps, stop,
            [&](RankRun&) { return std::make_unique<Follower>(mix, own, errors); });

  const NotFinite at = first_not_finite(own), mixes = first_not_finite(mix);
  VerifyOutcome found;
  const auto take = [](double& most, double error) { most = std::max(most, error); };
  for (std::int64_t step = 0; step < steps && step <= at.step; ++step) {
    if (step == at.step && at.before_update) break;
    const StepErrors& e = errors[static_cast<std::size_t>(step)];
    found.steps = step + 1;
    take(found.loss, e.loss);
    take(found.grad_norm, e.norm);
    for (const auto& [name, error] : e.gradients) take(found.gradients, error);
    for (const auto& [name, error] : e.parameters) take(found.parameters, error);
  }
  const auto most = [](const std::map<std::string, double>& of) {
    double largest = 0;
    for (const auto& [name, error] : of) largest = std::max(largest, error);
    return largest;
  };
  for (std::int64_t step = 0; step < steps; ++step) {
    const StepErrors& e = errors[static_cast<std::size_t>(step)];
    const bool last = step == at.step && at.before_update;
    const auto at_step = static_cast<std::size_t>(step);
    const double before =
        last ? 0 : std::max({e.loss, e.norm, most(e.gradients), spread.before[at_step]});
    const double after = last ? 0 : std::max(most(e.parameters), spread.after[at_step]);
    // Where one rank is not finite, the mix must not be finite either.
    const bool alike = step < std::min(at.step, mixes.step) ||
                       (at.step == mixes.step && at.before_update == mixes.before_update);
    if (before <= outcome.tolerance && after <= outcome.tolerance && alike) {
      if (step == at.step) break;
      continue;
    }
    outcome.parted_step = step;
    outcome.parted_update = before <= outcome.tolerance && alike;
    outcome.parted_error = !alike ? infinity : outcome.parted_update ? after : before;
    return;
  }
  outcome.undecided = at.step < steps;
  outcome.equal = !outcome.undecided;
  outcome.not_finite = at.what;
  outcome.followed = true;
  outcome.apart = outcome.parameters;
  outcome.steps = found.steps;
  outcome.loss = found.loss;
  outcome.grad_norm = found.grad_norm;
  outcome.gradients = found.gradients;
  outcome.parameters = found.parameters;
}

}  // namespace

void follow(const RunSetup& experiment, const Plan& plan, const Plan& one, std::int64_t steps,
            const std::atomic<bool>* stop, VerifyOutcome& outcome) {
  RunRecord mix;
  Spread spread;
  std::mutex mutex;
  run_steps(experiment, plan, steps, stop,
            [&](RankRun&) { return std::make_unique<Taker>(mix, spread, mutex); });
  Processes* const processes = experiment.processes;
  if (processes == nullptr) return judge(experiment, one, steps, stop, mix, spread, outcome);
  // The first process runs the one rank that follows.
  const std::vector<std::string> all =
      processes->gather("the steps of the mix", processes->first() ? "" : pack(mix, spread));
  for (std::size_t p = 1; p < all.size(); ++p) {
    RunRecord other;
    Spread of_other;
    Unpacker unpacker(all[p]);
    unpacker(other, of_other);
    merge(mix, spread, other, of_other);
  }
  by_the_first(experiment, stop, [&](const std::atomic<bool>* end) {
    judge(experiment, one, steps, end, mix, spread, outcome);
  });
  outcome = unpack<VerifyOutcome>(
      processes->broadcast("what followed", processes->first() ? pack(outcome) : ""));
}

}  // namespace mw
