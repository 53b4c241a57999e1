// Compares predicted memory with the experiment's limit and with this machine's, before any rank
// starts, and searches for a change with which a plan fits.
#include "predict/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/mix.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "predict/fit.h"
#include "predict/imbalance.h"
#include "predict/lighter.h"
#include "predict/node_memory.h"

namespace mw {
namespace {

// The settings of a plan that a change sets; an empty one stays as it is.
struct Change {
  const LighterPlan* plan = nullptr;
  std::int64_t microbatch = 0;
  std::string recompute;
};

struct Candidate {
  std::string text;
  std::int64_t need = 0;
  PlanRequest request;
};

class Search {
 public:
  Search(const RunRequest& asked, const Plan& plan, const Plan& needs_most, MemoryNeed limit,
         int most_ranks)
      : source_(asked.strategies),
        plan_(plan),
        base_(needs_most),
        request_(plan.request),
        together_(limit.together),
        limit_(std::min(limit.bytes, predicted_need(needs_most, limit.together) - 1)),
        most_ranks_(most_ranks) {
    // Where a policy chooses the microbatch, changes name the size that it chose for this plan.
    if (asked.table.contains("microbatch") && asked.table["microbatch"].is_object())
      fixed_ = base_.microbatch;
    if (request_.recompute.fit > 0) request_.recompute.kind = RecomputePolicy::Kind::fit;
  }

  MemoryHint run() {
    try_all();
    if (found_) {
      return {fmt::format("{} would fit: {}", found_->text, text_of(found_->need)), found_->text,
              found_->need, std::move(found_->request)};
    }
    const std::string none =
        work_ > most_search
            ? fmt::format(
                  "none of the {} changes that were tried would fit, and planning the other "
                  "changes would take too long",
                  tried_)
            : none_of(mild_) + "no recompute and no smaller microbatch would fit" + nor(drastic_);
    return {lowest_ ? fmt::format("{}; the lowest is {}: {}", none, lowest_->text,
                                  text_of(lowest_->need))
                    : none};
  }

 private:
  void try_all() {
    const std::vector<std::int64_t> sizes = smaller();
    const std::vector<std::string> again = heavier();
    const auto all = [&](const LighterPlan* plan, bool micro, bool recompute) {
      if (micro && recompute) {
        if (!again.empty())
          for (std::int64_t m : sizes) consider({plan, m, again.back()});
      } else if (micro) {
        for (std::int64_t m : sizes) consider({plan, m, ""});
      } else if (recompute) {
        for (const std::string& what : again) consider({plan, 0, what});
      }
    };
    const std::vector<LighterFamily> families = lighter_families(source_, request_.strategies);
    std::vector<const LighterPlan*> lightest;  // the last mild plan of each family
    for (const LighterFamily& family : families) {
      for (const LighterPlan& plan : family.mild) consider({&plan, 0, ""});
      if (!family.mild.empty()) lightest.push_back(&family.mild.back());
    }
    all(nullptr, true, false);
    all(nullptr, false, true);
    for (const LighterPlan* plan : lightest) {
      all(plan, true, false);
      all(plan, false, true);
    }
    all(nullptr, true, true);
    for (const LighterPlan* plan : lightest) all(plan, true, true);
    try_each(with_data(), again);
    for (const LighterFamily& family : families) try_each(family.drastic, again);
  }

  // Tries each plan alone, then each with microbatches of 1, without and with recompute.
  void try_each(const std::vector<LighterPlan>& plans, const std::vector<std::string>& again) {
    for (const LighterPlan& plan : plans) consider({&plan, 0, ""});
    for (const LighterPlan& plan : plans) {
      consider({&plan, 1, ""});
      if (!again.empty()) consider({&plan, 1, again.back()});
    }
  }

  // Plans with an added axis of data parallelism, where nothing splits the data.
  std::vector<LighterPlan> with_data() const {
    std::vector<LighterPlan> plans;
    const std::vector<StrategyChoice>& now = request_.strategies;
    if (found_ || std::any_of(now.begin(), now.end(), [](const StrategyChoice& choice) {
          return splits(choice, Role::data);
        })) {
      return plans;
    }
    for (int ways = 2; ways <= most_thread_ranks; ways *= 2) {
      for (LighterPlan& plan : with_data_axis(source_, now, ways)) plans.push_back(std::move(plan));
    }
    return plans;
  }

  static std::string none_of(const std::set<std::string>& tried) {
    std::string text;
    for (const std::string& what : tried) text += "no " + what + ", ";
    return text;
  }
  static std::string nor(const std::set<std::string>& tried) {
    std::string text;
    for (const std::string& what : tried) text += ", nor " + what;
    return text;
  }

  std::string text_of(std::int64_t bytes) const {
    return format_bytes(static_cast<double>(bytes)) +
           (together_ ? " predicted for all ranks together" : " a rank predicted");
  }

  // Smaller sizes of microbatches, as even as they can be, the largest first; of many sizes some,
  // each about half of the one before.
  std::vector<std::int64_t> smaller() const {
    std::vector<std::int64_t> list =
        even_sizes(request_.batch / plan_.batch_ways, base_.microbatches + 1);
    std::erase_if(list, [&](std::int64_t size) { return size >= base_.microbatch; });
    if (list.size() <= 6) return list;
    std::vector<std::int64_t> few;
    for (std::int64_t size : list) {
      if (few.empty() || 2 * size <= few.back() || size == list.back()) few.push_back(size);
    }
    return few;
  }

  // The names of the policies that recompute more than the experiment's policy.
  std::vector<std::string> heavier() const {
    using Kind = RecomputePolicy::Kind;
    const RecomputePolicy& now = request_.recompute;
    if (now.kind == Kind::full && now.every == 1 && !now.keep_collectives) return {};
    if (now.kind == Kind::none) return {"selective", "full"};
    return {"full"};
  }

  void consider(Change change) {
    throw_if_stopped();
    if (found_ || work_ > most_search) return;
    PlanRequest request = request_;
    if (change.plan != nullptr) {
      request.strategies = change.plan->strategies;
      request.stage_layers.clear();  // they belong to the stages that the plan has now
      (change.plan->drastic ? drastic_ : mild_).insert(change.plan->what);
    }
    if (change.microbatch == 0) change.microbatch = fixed_;
    if (change.microbatch > 0) {
      request.microbatch = change.microbatch;
      request.sizes.clear();
      request.smaller_batches = false;
    }
    if (!change.recompute.empty()) {
      request.recompute = {};
      request.recompute.kind = change.recompute == "full" ? RecomputePolicy::Kind::full
                                                          : RecomputePolicy::Kind::selective;
    }
    Problems problems;
    std::shared_ptr<const Plan> plan;
    try {
      plan = make_plan_within(request, together_ ? 0 : limit_, problems);
    } catch (const Error& error) {  // a strategy refuses the change
      if (ends_all(error)) throw;
    }
    work_ += plan ? plan->work : plan_.work;
    ++tried_;
    if (!plan || plan->ranks() > most_ranks_) return;
    Candidate candidate{text(*plan, change), predicted_need(*plan, together_), std::move(request)};
    if (!lowest_ || candidate.need < lowest_->need) lowest_ = candidate;
    if (candidate.need <= limit_) found_ = candidate;
  }

  // The change as a script writes it. A plan that stays is named too, so that all of it can be
  // copied, unless it has functions.
  std::string text(const Plan& plan, const Change& change) const {
    std::string settings;
    const std::vector<StrategyChoice>& strategies = plan.request.strategies;
    const bool functions =
        std::any_of(strategies.begin(), strategies.end(),
                    [](const StrategyChoice& choice) { return holds_function(choice.options); });
    if (change.microbatch > 0) settings = fmt::format("microbatch = {}", change.microbatch);
    if (!change.recompute.empty()) {
      settings +=
          fmt::format("{}recompute = \"{}\"", settings.empty() ? "" : ", ", change.recompute);
    }
    if (functions && change.plan == nullptr) return settings;
    return fmt::format("plan = {}{}{}", script_text(strategies), settings.empty() ? "" : ", ",
                       settings);
  }

  const StrategySource& source_;
  const Plan& plan_;
  const Plan& base_;
  PlanRequest request_;
  const bool together_;
  const std::int64_t limit_;
  const int most_ranks_;
  std::int64_t fixed_ =
      0;  // Sequences of a microbatch, where the experiment leaves them to a policy.
  std::optional<Candidate> found_, lowest_;
  std::set<std::string> mild_, drastic_;  // what strategies changed in the plans made so far
  double work_ = 0;                       // work of the plans made so far
  int tried_ = 0;
};

// Calls visit(program, kind, memory) for each class of ranks that are alike.
template <class Visit>
void for_each_forecast(const Plan& plan, const Visit& visit) {
  for (const Program& program : plan.programs) {
    for (const RankClass& kind : rank_classes(program)) {
      visit(program, kind,
            forecast_memory(RankView(program, kind.at, 0, plan.request.scratch.get())));
    }
  }
}

}  // namespace

std::int64_t predicted_need(const Plan& plan, bool together) {
  if (!together) return highest_peak(plan);
  TotalMemory all;
  for_each_forecast(plan, [&](const Program&, const RankClass& kind, const MemoryForecast& memory) {
    all.add(kind, memory);
  });
  return all.bytes();
}

MemoryHint what_fits(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                     MemoryNeed limit, int most_ranks) {
  return Search(asked, plan, needs_most, limit, most_ranks).run();
}

std::string memory_hint(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                        MemoryNeed limit, bool runs) {
  return what_fits(asked, plan, needs_most, limit,
                   runs ? most_thread_ranks : std::max(most_thread_ranks, plan.ranks()))
      .text;
}

namespace {

std::string text_of(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

// The plan of a run's steps that needs most; `step`: the first step that has it.
const Plan& highest(const RunSetup& setup, bool together, std::int64_t* step = nullptr) {
  if (!setup.step_plans) return *setup.plan;
  const StepPlans& steps = *setup.step_plans;
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

// Throws Error (memory.machine); where the run is forced, returns the message as a note.
std::string refuse(bool force, const std::string& message, const std::string& hint) {
  if (force) return "forced: " + message;
  throw Error(Stage::plan, "memory.machine", "plan", message, hint);
}

// Bytes that the ranks on this machine need, where several machines share the ranks; `of_all`: the
// need of all ranks.
std::int64_t on_this_host(const Processes* processes, std::int64_t of_all) {
  return processes == nullptr ? of_all : of_all / processes->count() * processes->on_this_host();
}
// How many copies this machine holds of what each process has by itself.
std::int64_t copies_here(const Processes* processes) {
  return processes == nullptr ? 1 : processes->on_this_host();
}

constexpr const char* anyway = "--force (or force = true) starts it all the same";

// Refuses the plan. `needs_most`, the plan of one of its steps, is too large, as `why` says. The
// hint has a change that stays within `limit`.
std::string does_not_fit(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                         const std::string& why, MemoryNeed limit) {
  return refuse(
      asked.force, fmt::format("plan: {} does not fit: {}", needs_most.mix(), why),
      asked.force
          ? ""
          : fmt::format("{}; meshwright plan (mw.plan) predicts it without running; {}",
                        memory_hint(asked, plan, needs_most, limit, /*runs=*/true), anyway));
}

}  // namespace

std::int64_t predicted_peak(const Plan& plan) {
  return predicted_need(plan, /*together=*/false);
}

std::string memory_hint(const RunRequest& asked, const RunSetup& setup, bool runs) {
  return memory_hint(asked, *setup.plan, highest(setup, false), {setup.memory, false}, runs);
}

Ledger::LimitHint check_memory_limit(const RunRequest& asked, const RunSetup& setup) {
  std::int64_t step = 0;
  const Plan& plan = highest(setup, false, &step);
  const std::int64_t peak = predicted_peak(plan);
  if (peak > setup.memory) {
    throw Error(
        Stage::plan, "memory.limit", "memory",
        fmt::format("memory: {} needs {} a rank ({} bytes predicted{}), the limit is {} ({} bytes)",
                    setup.plan->mix(), text_of(peak), peak,
                    setup.step_plans ? fmt::format(" in step {}", step) : "", text_of(setup.memory),
                    setup.memory),
        memory_hint(asked, *setup.plan, plan, {setup.memory, false}, /*runs=*/true));
  }
  return [&plan, peak](double rows_share) {
    const std::string entry = entry_for_rows(plan, rows_share);
    return fmt::format(
        "{} were predicted{}; a smaller microbatch, or more recompute, holds less", text_of(peak),
        entry.empty()
            ? ", and the run needs more"
            : fmt::format(", which assumes {}; this rank had {:.2f} times as many rows so far, "
                          "and {} predicts for so many rows in all layers (more may come)",
                          supposed_choices(plan), rows_share, entry));
  };
}

namespace {

// The highest peak of a rank of each program, and what all ranks keep in host memory.
struct Needs {
  std::map<const Program*, std::int64_t> peak;
  double host = 0;
};
Needs needs_of(const Plan& plan) {
  Needs needs;
  for_each_forecast(
      plan, [&](const Program& program, const RankClass& kind, const MemoryForecast& memory) {
        std::int64_t& peak = needs.peak[&program];
        peak = std::max(peak, memory.peak);
        needs.host += static_cast<double>(kind.ranks) * static_cast<double>(memory[Category::host]);
      });
  return needs;
}

// Refuses a plan whose ranks in this process need more than an accelerator has, or whose tensors in
// host memory need more than the `host` bytes of this machine.
std::string check_accelerators(const RunRequest& asked, const RunSetup& setup, std::int64_t host) {
  const Plan& plan = highest(setup, false);
  const Processes* processes = setup.processes;
  const int here = processes == nullptr ? plan.ranks() : plan.ranks() / processes->count();
  const int first = processes == nullptr ? 0 : processes->index() * here;
  const int before = processes == nullptr ? 0 : processes->before_on_this_host() * here;
  const Accelerators there = accelerators_of(*setup.platform, before, here);
  const Needs needs = needs_of(plan);
  std::map<int, std::pair<std::int64_t, int>> of_device;  // bytes and number of ranks
  for (int rank = 0; rank < here; ++rank) {
    auto& [bytes, ranks] = of_device[(before + rank) % there.count];
    bytes += needs.peak.at(&plan.program_of(first + rank));
    ++ranks;
  }
  std::pair<std::int64_t, int> most;
  for (const auto& [device, need] : of_device) most = std::max(most, need);
  const std::int64_t in_host = on_this_host(processes, static_cast<std::int64_t>(needs.host));
  if (most.first <= there.bytes && in_host <= host) return "";
  const std::string what =
      most.first > there.bytes
          ? fmt::format("{} of one device need {} together, and it has {}",
                        plural(most.second, "rank"), text_of(most.first), text_of(there.bytes))
          : fmt::format("ranks here keep {} in host memory, and there are {}", text_of(in_host),
                        text_of(host));
  return does_not_fit(asked, *setup.plan, plan, what,
                      {there.bytes / std::max(most.second, 1), false});
}

}  // namespace

std::string check_machine_memory(const RunRequest& asked, const RunSetup& setup,
                                 std::int64_t available) {
  if (setup.platform->type() != at::kCPU) return check_accelerators(asked, setup, available);
  const Plan& plan = highest(setup, true);
  const std::int64_t need = on_this_host(setup.processes, predicted_need(plan, true));
  if (need <= available) return "";
  const std::int64_t peak = predicted_peak(plan);
  return does_not_fit(
      asked, *setup.plan, plan,
      fmt::format("{} of up to {}, {} together, against {} of memory here",
                  plural(plan.ranks(), "rank"), text_of(peak), text_of(need), text_of(available)),
      {available, true});
}

std::string check_verify_memory(const RunRequest& asked, const RunSetup& setup,
                                std::int64_t available) {
  const auto plan = in_double(highest(setup, true));
  const auto one = one_rank_plan(*plan, false);
  const std::int64_t ranks = on_this_host(setup.processes, predicted_need(*plan, true));
  const std::int64_t alone = copies_here(setup.processes) * predicted_need(*one, true);
  // The comparison keeps whole tensors: of the one rank its first gradients and each step's
  // parameters; where it follows the mix (check/verify_follow.h), also each step's gradients and
  // parameters of the mix, and parameters of its own.
  const std::int64_t steps = std::min<std::int64_t>(3, setup.steps);
  const std::int64_t kept =
      copies_here(setup.processes) * (1 + steps + 3 * steps) * 8 * plan->graph->parameter_count();
  // Ranks on accelerators take none of this machine's memory, in which the kept tensors lie.
  const bool here = setup.platform->type() == at::kCPU;
  const std::int64_t need = (here ? std::max(ranks, alone) : 0) + kept;
  if (need <= available) return "";
  return refuse(
      asked.force,
      fmt::format(
          "plan: {} cannot be verified within {} of memory here: in float64, {} hold {}, the "
          "one rank that computes the whole batch {}, and {} is kept of what they did",
          setup.plan->mix(), text_of(available), plural(plan->ranks(), "rank"), text_of(ranks),
          text_of(alone), text_of(kept)),
      fmt::format(
          "verify the mix with a smaller model, batch or sequence, where the same rules hold "
          "(--set model.layers=2); {}",
          anyway));
}

}  // namespace mw
