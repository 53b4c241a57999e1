// Compares predicted memory with the experiment's limit and with this machine's, before any rank
// starts.
#include "predict/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/processes.h"
#include "predict/imbalance.h"

namespace mw {
namespace {

std::string text_of(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// The plan of its steps that needs most, and the first step that has it.
const Plan& highest(const Experiment& experiment, bool together, std::int64_t* step = nullptr) {
  if (!experiment.step_plans) return *experiment.plan;
  const StepPlans& steps = *experiment.step_plans;
  std::size_t fullest = 0;
  std::int64_t need = -1;
  for (std::size_t p = 0; p < steps.plans.size(); ++p) {
    const std::int64_t own = predicted_need(*steps.plans[p], together);
    if (own <= need) continue;
    need = own;
    fullest = p;
  }
  if (step != nullptr) {
    *step = std::find(steps.of_step.begin(), steps.of_step.end(), static_cast<int>(fullest)) -
            steps.of_step.begin();
  }
  return *steps.plans[fullest];
}

// Refused, or where the experiment is forced a note.
std::string refuse(const Experiment& experiment, const std::string& message,
                   const std::string& hint) {
  if (experiment.force) return "forced: " + message;
  throw Error(Stage::plan, "memory.machine", "plan", message, hint);
}

// Of ranks that several machines share: what those on this one need.
std::int64_t on_this_host(const Experiment& experiment, std::int64_t of_all) {
  const Processes* processes = experiment.processes;
  return processes == nullptr ? of_all : of_all / processes->count() * processes->on_this_host();
}
// What each process has by itself.
std::int64_t copies_here(const Experiment& experiment) {
  return experiment.processes == nullptr ? 1 : experiment.processes->on_this_host();
}

constexpr const char* anyway = "--force (or force = true) starts it all the same";

}  // namespace

std::int64_t predicted_peak(const Plan& plan) {
  return predicted_need(plan, /*together=*/false);
}

std::string memory_hint(const Experiment& experiment, bool runs) {
  return memory_hint(experiment, highest(experiment, false), {experiment.memory, false}, runs);
}

Ledger::LimitHint check_memory_limit(const Experiment& experiment) {
  std::int64_t step = 0;
  const Plan& plan = highest(experiment, false, &step);
  const std::int64_t peak = predicted_peak(plan);
  if (peak > experiment.memory) {
    throw Error(
        Stage::plan, "memory.limit", "memory",
        fmt::format("memory: {} needs {} a rank ({} bytes predicted{}), the limit is {} ({} bytes)",
                    experiment.plan->mix(), text_of(peak), peak,
                    experiment.step_plans ? fmt::format(" in step {}", step) : "",
                    text_of(experiment.memory), experiment.memory),
        memory_hint(experiment, plan, {experiment.memory, false}, /*runs=*/true));
  }
  return [&plan, peak](double rows_share) {
    const std::string entry = entry_for_rows(plan, rows_share);
    return fmt::format(
        "{} were predicted{}; a smaller microbatch, or more recompute, holds less", text_of(peak),
        entry.empty()
            ? ", and the run needs more"
            : fmt::format(
                  ", which supposes {}; this rank had {:.2f} times the rows of that so far, "
                  "and {} predicts for as many in all layers (more may come)",
                  supposed_choices(plan), rows_share, entry));
  };
}

std::string check_machine_memory(const Experiment& experiment, std::int64_t available) {
  const Plan& plan = highest(experiment, true);
  const std::int64_t need = on_this_host(experiment, predicted_need(plan, true));
  if (need <= available) return "";
  const std::int64_t peak = predicted_peak(plan);
  return refuse(
      experiment,
      fmt::format("plan: {} does not fit: {} of up to {}, {} together, against {} of memory here",
                  plan.mix(), plan.ranks() == 1 ? "1 rank" : fmt::format("{} ranks", plan.ranks()),
                  text_of(peak), text_of(need), text_of(available)),
      experiment.force
          ? ""
          : fmt::format("{}; meshwright plan (mw.plan) predicts it without running; {}",
                        memory_hint(experiment, plan, {available, true}, /*runs=*/true), anyway));
}

std::string check_verify_memory(const Experiment& experiment, std::int64_t available) {
  const auto plan = in_double(highest(experiment, true));
  const auto one = one_rank_plan(*plan, false);
  const std::int64_t ranks = on_this_host(experiment, predicted_need(*plan, true));
  const std::int64_t alone = copies_here(experiment) * predicted_need(*one, true);
  // Whole tensors of what was done stay: of the one rank its first gradients and each step's
  // parameters; and where it follows the mix (check/verify_follow.h), each step's gradients and
  // parameters of that, and parameters of its own.
  const std::int64_t steps = std::min<std::int64_t>(3, experiment.steps);
  const std::int64_t kept =
      copies_here(experiment) * (1 + steps + 3 * steps) * 8 * plan->graph->parameter_count();
  const std::int64_t need = std::max(ranks, alone) + kept;
  if (need <= available) return "";
  return refuse(
      experiment,
      fmt::format(
          "plan: {} cannot be verified within {} of memory here: in float64, {} hold {}, the "
          "one rank that computes the whole batch {}, and {} is kept of "
          "what they did",
          experiment.plan->mix(), text_of(available),
          plan->ranks() == 1 ? "1 rank" : fmt::format("{} ranks", plan->ranks()), text_of(ranks),
          text_of(alone), text_of(kept)),
      fmt::format(
          "verify the mix with a smaller model, batch or sequence, where the same rules hold "
          "(--set model.layers=2); {}",
          anyway));
}

}  // namespace mw
