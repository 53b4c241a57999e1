// Plans the cells of a sweep, and tells a script's mistakes, which end the sweep, from a planner's
// refusals, which are results.
#include "app/sweep/planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "app/first_use.h"
#include "common/process.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/plugin_faults.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "predict/memory_limit.h"
#include "predict/prediction.h"
#include "predict/shared_cores.h"
#include "script/identity.h"
#include "script/plan_memo.h"

namespace mw {
namespace {

// Fewer cells are planned in this process, as copies of it and their pipes cost more.
constexpr std::size_t cells_for_processes = 24;

// Hands the members of a Planned, all but its problems, to `take`: in one order, which processes
// that write and read them share.
void each_member(auto& p, const auto& take) {
  take(p.hash, p.hash_without_seed, p.mix, p.precision, p.ranks, p.steps, p.memory, p.peak, p.cores,
       p.step_seconds, p.refused, p.hint, p.faults, p.prediction, p.beside_seconds, p.file_bytes,
       p.trace_bytes);
}

Json json_of_planned(const Planned& p) {
  Json json = Json::array({Json::array()});
  each_member(p, [&](const auto&... member) { (json.push_back(member), ...); });
  for (const Problem& one : p.wrong)
    json[0].push_back({one.stage, one.code, one.key, one.message, one.hint, one.place});
  return json;
}

Planned planned_of(const Json& json) {
  Planned p;
  std::size_t i = 0;
  each_member(p, [&](auto&... member) { (json.at(++i).get_to(member), ...); });
  for (const Json& one : json.at(0))
    p.wrong.push_back({one[0].get<Stage>(), one[1], one[2], one[3], one[4], one[5]});
  return p;
}

void refuse(Planned& planned, const Error& error) {
  std::string hint;
  for (const Problem& problem : error.problems()) {
    planned.refused += (planned.refused.empty() ? "" : "; ") + problem.message;
    if (hint.empty()) hint = problem.hint;
  }
  planned.hint = hint;
}

// Refuses a cell for what its run would be refused for before its ranks start.
void check_memory(const RunRequest& asked, const RunSetup& setup, std::int64_t limit,
                  Planned& planned) {
  const std::int64_t machine = this_device().memory;
  const std::int64_t available = limit > 0 ? std::min(limit, machine) : machine;
  try {
    check_thread_ranks(*setup.plan);
    // Memory of accelerators is asked for by the cell's own process, which alone opens them.
    if (setup.platform->type() == at::kCPU && planned.memory > available)
      check_machine_memory(asked, setup, available);
    if (setup.memory > 0 && planned.peak > setup.memory) check_memory_limit(asked, setup);
  } catch (const Error& error) {
    refuse(planned, error);
  }
}

// Keeps what was found for each plan, for later cells with the same plan.
class PlannedOnce {
 public:
  // Nothing if no cell had the plan.
  std::optional<Planned> find(const std::shared_ptr<const Plan>& plan) {
    const auto known = planned_.find(plan.get());
    if (known == planned_.end() || known->second.plan.lock() != plan) return {};
    return known->second.planned;
  }
  void keep(const std::shared_ptr<const Plan>& plan, const Planned& planned) {
    if (planned_.size() == most) planned_.clear();
    planned_[plan.get()] = {plan, planned};
  }

 private:
  static constexpr std::size_t most = 1024;
  struct Known {
    std::weak_ptr<const Plan> plan;  // an address alone may be used again by another plan
    Planned planned;
  };
  std::unordered_map<const Plan*, Known> planned_;
};

void look_at(const Experiment& experiment, std::int64_t limit, const ExperimentVerb& predict_it,
             Planned& planned) {
  const Plan& plan = *experiment.plan;
  planned.mix = plan.mix();
  planned.precision = name_of(plan.request.precision);
  planned.ranks = plan.ranks();
  if (predict_it) {
    planned.prediction = predict_it(experiment);
    planned.prediction.erase("text");
    planned.step_seconds = planned.prediction.value("step_seconds", 0.0);
    return;
  }
  planned.peak = predicted_need(plan, /*together=*/false);
  planned.memory = predicted_need(plan, /*together=*/true);
  planned.step_seconds = predict(plan, measured_machine(), experiment.threads).step_seconds;
  const std::int64_t threads =
      static_cast<std::int64_t>(threads_of_rank(plan.ranks(), experiment.threads)) * plan.ranks();
  planned.cores = static_cast<int>(std::min<std::int64_t>(core_count(), threads));
  check_memory(experiment, experiment, limit, planned);
}

// Approximate bytes of a run file: its tables when they are made, and their rows.
constexpr std::int64_t bytes_of_a_file = 350'000, bytes_of_a_step = 500, bytes_of_an_action = 104,
                       bytes_of_a_traced_work = 270;
constexpr double checkpoint_bytes_a_second = 5e8;
// bytes of a parameter's state: two moments and a master in fp32
constexpr std::int64_t state_bytes = 12;

// Predicts the seconds that the run takes beside its steps, and the bytes that it writes.
void look_beside(const RunSetup& setup, const Checkpointing& kept, const Evaluation& evaluation,
                 Planned& planned) {
  const Plan& plan = *setup.plan;
  const std::int64_t steps = setup.steps, ranks = plan.ranks(), parts = plan.microbatches;
  planned.beside_seconds = 0;
  planned.file_bytes =
      bytes_of_a_file + steps * ranks * (bytes_of_a_step + parts * bytes_of_an_action);
  std::int64_t works = 0;  // instructions of all stages in a microbatch
  for (const Program& program : plan.programs)
    for (const Segment& segment : program.segments)
      works += static_cast<std::int64_t>(segment.code.size());
  const auto traced = static_cast<std::int64_t>(setup.trace.size()) + 1;  // and the predicted step
  planned.trace_bytes =
      traced * works * parts * ranks / std::max(1, plan.stages()) * bytes_of_a_traced_work;
  const auto times = [&](std::int64_t every) { return every > 0 ? (steps - 1) / every + 1 : 1; };
  if (!kept.path.empty()) {
    const std::int64_t count = times(kept.every);
    const std::int64_t bytes =
        plan.graph->parameter_count() * (bytes_of(plan.request.precision) + state_bytes);
    planned.file_bytes += bytes * (kept.keep > 0 ? std::min(kept.keep, count) : count);
    planned.beside_seconds += static_cast<double>(bytes * count) / checkpoint_bytes_a_second;
  }
  if (setup.held_out_data) {
    planned.beside_seconds +=
        static_cast<double>(times(evaluation.every) * evaluation.batches) *
        predict(*setup.held_out_plan, measured_machine(), setup.threads).step_seconds;
  }
}

Planned planned_alone(const Cell& cell, const ReadContext& context, std::int64_t limit,
                      const ExperimentVerb& predict_it, PlannedOnce& once) {
  Planned planned;
  try {
    const Experiment experiment = experiment_of(cell, context);
    // the prediction has its evaluations, so it is not shared
    const bool apart = experiment.held_out_data != nullptr;
    const auto known = apart ? std::nullopt : once.find(experiment.plan);
    if (known) planned = *known;
    planned.hash = hash_of(cell, experiment.hash);
    planned.hash_without_seed = experiment.hash_without_seed;
    planned.steps = experiment.steps;
    if (known) {
      look_beside(experiment, experiment.checkpoint, experiment.evaluation, planned);
      if (predict_it) planned.prediction.update(identity_of(experiment, experiment.seed));
      return planned;
    }
    look_at(experiment, limit, predict_it, planned);
    look_beside(experiment, experiment.checkpoint, experiment.evaluation, planned);
    if (!apart) once.keep(experiment.plan, planned);
  } catch (const Error& error) {
    const auto& problems = error.problems();
    const bool planner = std::all_of(problems.begin(), problems.end(),
                                     [](const Problem& p) { return p.stage == Stage::plan; });
    if (planner) {
      refuse(planned, error);
      return planned;
    }
    for (Problem problem : problems) {
      if (problem.stage == Stage::plan) continue;  // it may follow from what is wrong in the script
      if (problem.place.empty()) problem.place = place_of(cell.table, problem.key);
      planned.wrong.push_back(std::move(problem));
    }
  }
  return planned;
}

Planned plan_cell(const Cell& cell, const ReadContext& context, std::int64_t limit,
                  const ExperimentVerb& predict_it, PlannedOnce& once) {
  Planned planned = planned_alone(cell, context, limit, predict_it, once);
  std::vector<Problem> said = planned.wrong;
  said.push_back({Stage::plan, "", "", planned.refused, ""});
  planned.faults = take_plugin_faults(said);
  return planned;
}

// The problem's key in the sweep's table: "over.model.layers", or one of `base`.
std::string key_for(const Cell& cell, const Problem& problem) {
  for (const CellValue& value : cell.values) {
    if (!value.value.is_null() && lies_in(problem.key, value.key)) return "over." + value.key;
  }
  return key_in("base", problem.key);
}

}  // namespace

Experiment experiment_of(const Cell& cell, const ReadContext& context) {
  return read_experiment(cell.table, context);
}

std::string hash_of(const Cell& cell, const std::string& hash) {
  return cell.repeat > 0 ? fmt::format("{}.{}", hash, cell.repeat) : hash;
}

std::vector<Planned> plan_cells(const std::vector<Cell>& cells, const ReadContext& given,
                                std::int64_t limit, const ExperimentVerb& predict) {
  PlanMemo memo;
  PlannedOnce once;
  ReadContext context = given;
  context.memo = &memo;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].skipped.empty()) open.push_back(i);
  }
  this_device();  // measured or read once, not in each process
  const int processes = open.size() < cells_for_processes ? 1 : core_count();
  std::vector<Planned> planned(cells.size());
  if (processes == 1) {
    for (const std::size_t i : open) {
      throw_if_stopped();
      planned[i] = plan_cell(cells[i], context, limit, predict, once);
    }
    return planned;
  }
  const auto texts = forked_map(open.size(), processes, [&](std::size_t k) {
    return json_text(json_of_planned(plan_cell(cells[open[k]], context, limit, predict, once)));
  });
  for (std::size_t k = 0; k < open.size(); ++k)
    planned[open[k]] = planned_of(Json::parse(texts[k]));
  return planned;
}

void check_planned(const std::vector<Cell>& cells, const std::vector<Planned>& planned) {
  Problems problems;
  std::set<std::string> said;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    for (const Problem& one : planned[i].wrong) {
      if (one.stage == Stage::environment || one.stage == Stage::run) {
        if (said.insert(one.message).second) problems.add(one);
        continue;
      }
      Problem problem = one;
      problem.key = key_for(cells[i], one);
      if (!said.insert(problem.key + one.message).second) continue;
      problem.message = fmt::format("{} (in {})", one.message, quote(cells[i].name));
      problems.add(std::move(problem));
    }
  }
  problems.throw_if_any();
}

}  // namespace mw
