#include "simulate/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/precision.h"
<<<<<<< HEAD
#include "engine/ranks.h"
#include "plan/limits.h"
#include "plan/microbatch_fit.h"
#include "sizes/memory.h"
=======
#include "engine/verify.h"
>>>>>>> snap-rules

namespace mw {
namespace {

std::string text_of(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// The plan of its steps that needs most, and the first step that has it.
const Plan& highest(const Experiment& experiment, bool together, std::int64_t* step = nullptr) {
  if (!experiment.steps_apart) return *experiment.plan;
  const StepPlans& steps = *experiment.steps_apart;
  std::size_t most = 0;
  std::int64_t need = -1;
  for (std::size_t p = 0; p < steps.plans.size(); ++p) {
    const std::int64_t own = predicted_need(*steps.plans[p], *experiment.optimizer, together);
    if (own <= need) continue;
    need = own;
    most = p;
  }
<<<<<<< HEAD

 private:
  using Strategies = std::optional<std::vector<StrategyChoice>>;

  // Sequences of a microbatch with which there are more of them, as even as they can be, largest first.
  std::vector<std::int64_t> smaller() const {
    const Plan& plan = *experiment_.plan;
    std::vector<std::int64_t> list =
        even_sizes(request_.batch / plan.batch_ways, plan.microbatches + 1);
    std::erase_if(list, [&](std::int64_t size) { return size >= plan.microbatch; });
    return list;
=======
  if (step != nullptr) {
    *step = std::find(steps.of_step.begin(), steps.of_step.end(), static_cast<int>(most)) -
            steps.of_step.begin();
>>>>>>> snap-rules
  }
  return *steps.plans[most];
}

// Refused, or where the experiment is forced a note.
std::string refuse(const Experiment& experiment, const std::string& message,
                   const std::string& hint) {
  if (experiment.force) return "forced: " + message;
  throw Error(Stage::plan, message, hint);
}

<<<<<<< HEAD
  void consider(const Strategies& strategies, std::int64_t microbatch) {
    if (found_ || !strategies || work_ > most_search) return;
    PlanRequest request = request_;
    request.strategies = *strategies;
    if (microbatch > 0) {
      request.microbatch = microbatch;
      request.sizes.clear();
    }
    Problems problems;
    std::shared_ptr<const Plan> plan;
    try {
      plan = make_plan(request, problems);
    } catch (const Error&) {  // of a strategy's own
    }
    work_ += plan ? plan->work : experiment_.plan->work;
    if (!plan || plan->ranks() > most_ranks_) return;
    Candidate candidate{text(*plan, microbatch), predicted_peak(*plan, *experiment_.optimizer)};
    if (!lowest_ || candidate.peak < lowest_->peak) lowest_ = candidate;
    if (candidate.peak <= limit_) found_ = candidate;
  }

  static std::function<bool(const StrategyChoice&)> named(const char* name) {
    return [name](const StrategyChoice& choice) { return choice.name == name; };
  }

  std::string text(const Plan& plan, std::int64_t microbatch) const {
    std::string entries;
    for (const StrategyChoice& choice : plan.request.strategies) {
      entries += (entries.empty() ? "" : ", ") + text(choice);
    }
    return fmt::format("plan = {{ {} }}{}", entries,
                       microbatch > 0 ? fmt::format(" with microbatch = {}", microbatch) : "");
  }

  // With every option that is not what it would be if left out.
  std::string text(const StrategyChoice& choice) const {
    Json plain = Json::object();
    if (experiment_.make_strategy && choice.options.contains("ways")) {
      try {
        plain = experiment_
                    .make_strategy({{"plugin", choice.name}, {"ways", choice.options.at("ways")}})
                    .options;
      } catch (const Error&) {  // needs more than ways
      }
    }
    std::string options;
    for (const auto& [key, value] : choice.options.items()) {
      if (key == "ways" || key.starts_with("$")) continue;
      if (key != "stage" && plain.contains(key) && plain.at(key) == value) continue;
      options += fmt::format(", {} = {}", key, lua_text(value));
    }
    const std::string ways =
        choice.options.contains("ways") ? choice.options.at("ways").dump() : "";
    if (options.empty()) return fmt::format("{}({})", choice.name, ways);
    return fmt::format("{} {{ {} }}", choice.name,
                       ways.empty() ? options.substr(2) : ways + options);
  }

  const Experiment experiment_;
  const PlanRequest request_;
  const std::int64_t limit_;
  const int most_ranks_;
  std::optional<Candidate> found_, lowest_;
  double work_ = 0;  // of the plans made so far
};
=======
constexpr const char* anyway = "--force (or force = true) starts it all the same";
>>>>>>> snap-rules

}  // namespace

std::int64_t predicted_peak(const Plan& plan, const Optimizer& optimizer) {
  return predicted_need(plan, optimizer, /*together=*/false);
}

std::string memory_hint(const Experiment& experiment, bool runs) {
  return memory_hint(experiment, highest(experiment, false), {experiment.memory, false}, runs);
}

std::string check_memory_limit(const Experiment& experiment) {
  std::int64_t step = 0;
  const Plan& plan = highest(experiment, false, &step);
  std::string hint = memory_hint(experiment, plan, {experiment.memory, false}, /*runs=*/true);
  const std::int64_t peak = predicted_peak(plan, *experiment.optimizer);
  if (peak > experiment.memory) {
    throw Error(
        Stage::plan,
        fmt::format("memory: {} needs {} a rank ({} bytes predicted{}), the limit is {} ({} bytes)",
                    experiment.plan->mix(), text_of(peak), peak,
                    experiment.steps_apart ? fmt::format(" in step {}", step) : "",
                    text_of(experiment.memory), experiment.memory),
        hint);
  }
  return hint;
}

std::string check_machine_memory(const Experiment& experiment, std::int64_t available) {
  const Plan& plan = highest(experiment, true);
  const std::int64_t need = predicted_need(plan, *experiment.optimizer, true);
  if (need <= available) return "";
  const std::int64_t peak = predicted_peak(plan, *experiment.optimizer);
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
  const Optimizer& optimizer = *experiment.optimizer;
  const std::int64_t ranks = predicted_need(*plan, optimizer, true);
  const std::int64_t alone = predicted_need(*one, optimizer, true);
  // Of the one rank, gradients and parameters stay.
  const std::int64_t kept = 2 * 8 * plan->graph->parameter_count();
  const std::int64_t need = std::max(ranks, alone) + kept;
  if (need <= available) return "";
  return refuse(
      experiment,
      fmt::format(
          "plan: {} cannot be verified within {} of memory here: in float64, {} hold {}, the "
          "one rank that computes the whole batch {}, and {} is kept of it",
          experiment.plan->mix(), text_of(available),
          plan->ranks() == 1 ? "1 rank" : fmt::format("{} ranks", plan->ranks()), text_of(ranks),
          text_of(alone), text_of(kept)),
      fmt::format(
          "verify the mix with a smaller model, batch or sequence, where the same rules hold "
          "(--set model.layers=2); {}",
          anyway));
}

}  // namespace mw
