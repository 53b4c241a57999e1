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
#include "meshwright/engine/plan.h"
#include "meshwright/engine/processes.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "predict/fit.h"
#include "predict/imbalance.h"
#include "predict/lighter.h"
#include "predict/node_memory.h"
#include "predict/stage_layout.h"
#include "predict/variants.h"

namespace mw {
namespace {

class Search {
 public:
  Search(const RunRequest& asked, const Plan& plan, const Plan& needs_most, MemoryNeed limit,
         int most_ranks)
      : source_(asked.strategies),
        plan_(plan),
        base_(needs_most),
        request_(plan.request),
        together_(limit.together),
        variants_{std::min(limit.bytes, predicted_need(needs_most, limit.together) - 1), plan.work},
        most_ranks_(most_ranks) {
    // Where a policy chooses the microbatch, changes name the size that it chose for this plan.
    if (asked.table.contains("microbatch") && asked.table["microbatch"].is_object())
      fixed_ = base_.microbatch;
    if (request_.recompute.fit > 0) request_.recompute.kind = RecomputePolicy::Kind::fit;
  }

  MemoryHint run() {
    try_all();
    if (const auto& found = variants_.found)
      return {fmt::format("{} would fit: {}", found->text, text_of(found->need)), found->text,
              found->need, found->request};
    std::string none = fmt::format(
        "none of the {} changes that were tried would fit, and planning the other changes would "
        "take too long",
        variants_.tried);
    if (!variants_.too_long()) {
      none.clear();
      for (const std::string& what : mild_) none += "no " + what + ", ";
      none += "no recompute and no smaller microbatch would fit";
      for (const std::string& what : drastic_) none += ", nor " + what;
    }
    const auto& lowest = variants_.lowest;
    return {lowest
                ? fmt::format("{}; the lowest is {}: {}", none, lowest->text, text_of(lowest->need))
                : none};
  }

 private:
  void try_all() {
    const std::vector<std::int64_t> sizes = smaller();
    const std::vector<std::string> again = heavier();
    const std::vector<LighterFamily> families = lighter_families(source_, request_.strategies);
    std::vector<const LighterPlan*> lightest = {nullptr};  // and the last mild plan of each family
    for (const LighterFamily& family : families) {
      for (const LighterPlan& plan : family.mild) consider(&plan);
      if (!family.mild.empty()) lightest.push_back(&family.mild.back());
    }
    for (const LighterPlan* plan : lightest) {
      for (const std::int64_t size : sizes) consider(plan, size);
      for (const std::string& what : again) consider(plan, 0, what);
    }
    for (const LighterPlan* plan : lightest) {
      if (again.empty()) break;
      for (const std::int64_t size : sizes) consider(plan, size, again.back());
    }
    try_each(with_data(), again);
    for (const LighterFamily& family : families) try_each(family.drastic, again);
  }

  // Tries each plan alone, then each with microbatches of 1, without and with recompute.
  void try_each(const std::vector<LighterPlan>& plans, const std::vector<std::string>& again) {
    for (const LighterPlan& plan : plans) consider(&plan);
    for (const LighterPlan& plan : plans) {
      consider(&plan, 1);
      if (!again.empty()) consider(&plan, 1, again.back());
    }
  }

  // Plans with an added axis of data parallelism, where nothing splits the data.
  std::vector<LighterPlan> with_data() const {
    std::vector<LighterPlan> plans;
    const std::vector<StrategyChoice>& now = request_.strategies;
    if (variants_.found || std::any_of(now.begin(), now.end(), [](const StrategyChoice& choice) {
          return splits(choice, Role::data);
        })) {
      return plans;
    }
    for (int ways = 2; ways <= most_thread_ranks; ways *= 2) {
      for (LighterPlan& plan : with_data_axis(source_, now, ways)) plans.push_back(std::move(plan));
    }
    return plans;
  }

  std::string text_of(std::int64_t bytes) const {
    return memory_text(bytes) +
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

  void consider(const LighterPlan* plan, std::int64_t microbatch = 0,
                const std::string& recompute = "") {
    if (variants_.found || variants_.too_long()) return;
    Change change{nullptr, microbatch == 0 ? fixed_ : microbatch, recompute};
    if (plan != nullptr) {
      change.strategies = &plan->strategies;
      (plan->drastic ? drastic_ : mild_).insert(plan->what);
    }
    Variant one{{}, change.of(request_)};
    one.plan = variants_.plan(one.request, [&](const PlanRequest& request, Problems& problems) {
      return make_plan_within(request, together_ ? 0 : variants_.limit, problems);
    });
    if (one.plan == nullptr || one.plan->ranks() > most_ranks_) return;
    one.text = change.text(one.request);
    one.need = predicted_need(*one.plan, together_);
    variants_.keep(std::move(one));
  }

  const StrategySource& source_;
  const Plan& plan_;
  const Plan& base_;
  PlanRequest request_;
  const bool together_;
  Variants variants_;
  const int most_ranks_;
  std::int64_t fixed_ = 0;                // sequences of a microbatch, where a policy chooses them
  std::set<std::string> mild_, drastic_;  // what strategies changed in the plans made so far
};

// The memory that ranks need: the highest peak of a rank of each program, the sum over all ranks,
// and the part of that sum in host memory.
struct Needs {
  std::map<const Program*, std::int64_t> peak;
  TotalMemory together;
  double host = 0;
};
Needs needs_of(const Plan& plan) {
  Needs needs;
  for (const Program& program : plan.programs) {
    for (const RankClass& kind : rank_classes(program)) {
      const MemoryForecast memory =
          forecast_memory(RankView(program, kind.at, 0, plan.request.scratch.get()));
      std::int64_t& peak = needs.peak[&program];
      peak = std::max(peak, memory.peak);
      needs.together.add(kind, memory);
      needs.host += static_cast<double>(kind.ranks) * static_cast<double>(memory[Category::host]);
    }
  }
  return needs;
}

}  // namespace

std::int64_t predicted_need(const Plan& plan, bool together) {
  return together ? needs_of(plan).together.bytes() : highest_peak(plan);
}

MemoryHint what_fits(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                     MemoryNeed limit, int most_ranks) {
  return Search(asked, plan, needs_most, limit, most_ranks).run();
}

namespace {

// The text of what_fits(). `runs`: see memory_hint().
std::string hint_text(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                      MemoryNeed limit, bool runs) {
  return what_fits(asked, plan, needs_most, limit,
                   runs ? most_thread_ranks : std::max(most_thread_ranks, plan.ranks()))
      .text;
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
      asked.force ? ""
                  : fmt::format("{}; meshwright plan (mw.plan) predicts it without running; {}",
                                hint_text(asked, plan, needs_most, limit, /*runs=*/true), anyway));
}

}  // namespace

std::int64_t predicted_peak(const Plan& plan) {
  return predicted_need(plan, /*together=*/false);
}

std::string memory_hint(const RunRequest& asked, const RunSetup& setup, bool runs) {
  return hint_text(asked, *setup.plan, highest(setup, false), {setup.memory, false}, runs);
}

Ledger::LimitHint check_memory_limit(const RunRequest& asked, const RunSetup& setup) {
  std::int64_t step = 0;
  const Plan& plan = highest(setup, false, &step);
  const std::int64_t peak = predicted_peak(plan);
  if (peak > setup.memory) {
    throw Error(
        Stage::plan, "memory.limit", "memory",
        fmt::format("memory: {} needs {} a rank ({} bytes predicted{}), the limit is {} ({} bytes)",
                    setup.plan->mix(), memory_text(peak), peak,
                    setup.step_plans ? fmt::format(" in step {}", step) : "",
                    memory_text(setup.memory), setup.memory),
        memory_hint(asked, setup, /*runs=*/true));
  }
  return [&plan, peak](double rows_share) {
    const std::string entry = entry_for_rows(plan, rows_share);
    return fmt::format(
        "{} were predicted{}; a smaller microbatch, or more recompute, holds less",
        memory_text(peak),
        entry.empty()
            ? ", and the run needs more"
            : fmt::format(", which assumes {}; this rank had {:.2f} times as many rows so far, "
                          "and {} predicts for so many rows in all layers (more may come)",
                          supposed_choices(plan), rows_share, entry));
  };
}

namespace {

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
  const std::string what = most.first > there.bytes
                               ? fmt::format("{} of one device need {} together, and it has {}",
                                             plural(most.second, "rank"), memory_text(most.first),
                                             memory_text(there.bytes))
                               : fmt::format("ranks here keep {} in host memory, and there are {}",
                                             memory_text(in_host), memory_text(host));
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
  return does_not_fit(asked, *setup.plan, plan,
                      fmt::format("{} of up to {}, {} together, against {} of memory here",
                                  plural(plan.ranks(), "rank"), memory_text(peak),
                                  memory_text(need), memory_text(available)),
                      {available, true});
}

std::string check_verify_memory(const RunRequest& asked, const RunSetup& setup,
                                std::int64_t available) {
  const auto plan = in_double(highest(setup, true));
  const int replicas = plan->programs.front().replicas();
  const auto one = replicas > 1 ? one_rank_replicas(*plan) : one_rank_plan(*plan, false);
  const std::int64_t ranks = on_this_host(setup.processes, predicted_need(*plan, true));
  const std::int64_t alone = copies_here(setup.processes) * predicted_need(*one, true);
  // The comparison keeps whole tensors: of the one rank its first gradients and each step's
  // parameters; where it follows the mix (check/verify_follow.h), also each step's gradients and
  // parameters of the mix, and parameters of its own.
  const std::int64_t steps = std::min<std::int64_t>(3, setup.steps);
  const std::int64_t kept = copies_here(setup.processes) * (1 + steps + 3 * steps) * 8 * replicas *
                            plan->graph->parameter_count();
  // Ranks on accelerators take none of this machine's memory, in which the kept tensors lie.
  const bool here = setup.platform->type() == at::kCPU;
  const std::int64_t need = (here ? std::max(ranks, alone) : 0) + kept;
  if (need <= available) return "";
  return refuse(
      asked.force,
      fmt::format(
          "plan: {} cannot be verified within {} of memory here: in float64, {} hold {}, the "
          "one rank that computes the whole batch {}, and {} is kept of what they did",
          setup.plan->mix(), memory_text(available), plural(plan->ranks(), "rank"),
          memory_text(ranks), memory_text(alone), memory_text(kept)),
      fmt::format(
          "verify the mix with a smaller model, batch or sequence, where the same rules hold "
          "(--set model.layers=2); {}",
          anyway));
}

}  // namespace mw
