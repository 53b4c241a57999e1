#include "simulate/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/json_text.h"
#include "engine/precision.h"
#include "engine/ranks.h"
#include "sizes/memory.h"

namespace mw {
namespace {

std::string text_of(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

struct Candidate {
  std::string text;  // as a script has it
  std::int64_t peak = 0;
};

class Search {
 public:
  Search(const Experiment& experiment, std::int64_t limit, bool runs)
      : experiment_(experiment),
        request_(experiment.plan->request),
        limit_(std::min(limit, predicted_peak(*experiment.plan, *experiment.optimizer) - 1)),
        most_ranks_(runs ? most_thread_ranks
                         : std::max(most_thread_ranks, experiment.plan->ranks())) {}

  std::string run() {
    for (int stage = 1; stage <= 3; ++stage) consider(with_zero(stage, 0), 0);
    for (std::int64_t m : smaller()) consider(request_.strategies, m);
    for (std::int64_t m : smaller()) consider(with_zero(3, 0), m);
    for (const std::int64_t m : {0, 1}) {
      for (int ways = 2; ways <= most_thread_ranks; ways *= 2) consider(with_zero(3, ways), m);
    }
    if (found_) {
      return fmt::format("{} would fit: {} a rank predicted", found_->text, text_of(found_->peak));
    }
    const std::string none = "no ZeRO stage and no smaller microbatch would fit";
    return lowest_ ? fmt::format("{}; the lowest is {}: {} a rank predicted", none, lowest_->text,
                                 text_of(lowest_->peak))
                   : none;
  }

 private:
  using Strategies = std::optional<std::vector<StrategyChoice>>;

  // Sequences of a microbatch with which there are more of them, as even as they can be, largest first.
  std::vector<std::int64_t> smaller() const {
    const std::int64_t own = request_.batch / experiment_.plan->batch_ways;
    std::vector<std::int64_t> list;
    for (std::int64_t count = experiment_.plan->microbatches + 1; count <= own; ++count) {
      const std::int64_t size = (own + count - 1) / count;
      if (list.empty() || size < list.back()) list.push_back(size);
    }
    return list;
  }

  // The plan with its data parallelism, or `more` ways of it where it has none, as ZeRO of that stage.
  // Nothing if that is no change.
  Strategies with_zero(int stage, int more) const {
    if (!experiment_.make_strategy) return std::nullopt;
    std::vector<StrategyChoice> list = request_.strategies;
    auto found = std::find_if(list.begin(), list.end(), named("zero"));
    if (found == list.end()) found = std::find_if(list.begin(), list.end(), named("dp"));
    if ((found == list.end()) != (more > 0)) return std::nullopt;
    Json entry = {{"plugin", "zero"}, {"ways", more}};
    if (found != list.end()) {
      if (found->name == "zero") entry = found->options;
      if (found->options.contains("bucket")) entry["bucket"] = found->options.at("bucket");
      if (entry.contains("stage") && entry["stage"].get<int>() > stage) return std::nullopt;
      entry["plugin"] = "zero";
      entry["ways"] = found->options.at("ways");
    } else {
      const bool stages = !list.empty() && list.front().name == "pp";
      found = list.insert(list.begin() + (stages ? 1 : 0), StrategyChoice{});
    }
    entry["stage"] = stage;
    try {
      *found = experiment_.make_strategy(entry);
    } catch (const Error&) {  // no such plugin here
      return std::nullopt;
    }
    return list;
  }

  void consider(const Strategies& strategies, std::int64_t microbatch) {
    if (found_ || !strategies) return;
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
        choice.options.contains("ways") ? json_text(choice.options.at("ways")) : "";
    if (options.empty()) return fmt::format("{}({})", choice.name, ways);
    return fmt::format("{} {{ {} }}", choice.name,
                       ways.empty() ? options.substr(2) : ways + options);
  }

  const Experiment experiment_;
  const PlanRequest request_;
  const std::int64_t limit_;
  const int most_ranks_;
  std::optional<Candidate> found_, lowest_;
};

}  // namespace

std::int64_t predicted_peak(const Plan& plan, const Optimizer& optimizer) {
  return highest_peak(plan.programs, optimizer_bytes(plan.programs.front(), optimizer));
}

namespace {

// The experiment with that plan of its steps that needs most, for all of them; and the first step that has it.
Experiment of_highest(const Experiment& experiment, std::int64_t& step) {
  step = 0;
  Experiment highest = experiment;
  if (!experiment.steps_apart) return highest;
  highest.steps_apart = nullptr;
  std::int64_t most = -1;
  const StepPlans& steps = *experiment.steps_apart;
  for (std::size_t p = 0; p < steps.plans.size(); ++p) {
    const std::int64_t peak = predicted_peak(*steps.plans[p], *experiment.optimizer);
    if (peak <= most) continue;
    most = peak;
    highest.plan = steps.plans[p];
    step = std::find(steps.of_step.begin(), steps.of_step.end(), static_cast<int>(p)) -
           steps.of_step.begin();
  }
  return highest;
}

}  // namespace

std::string memory_hint(const Experiment& experiment, bool runs) {
  std::int64_t step = 0;
  return Search(of_highest(experiment, step), experiment.memory, runs).run();
}

std::string check_memory_limit(const Experiment& experiment) {
  std::int64_t step = 0;
  const Experiment highest = of_highest(experiment, step);
  std::string hint = Search(highest, experiment.memory, /*runs=*/true).run();
  const std::int64_t peak = predicted_peak(*highest.plan, *experiment.optimizer);
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

}  // namespace mw
