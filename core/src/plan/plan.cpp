#include "plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "meshwright/reduction_hook.h"
#include "plan/build.h"
#include "plan/derive.h"
#include "plan/nearest.h"
#include "plan/stages.h"
#include "plan/work.h"

namespace mw {
namespace {

const Dim batch_dim("batch");

// The multiples of `ways` next to `batch`, as "12 or 15".
std::string nearest_multiples(std::int64_t batch, std::int64_t ways) {
  const std::int64_t below = batch / ways * ways;
  return below > 0 ? fmt::format("{} or {}", below, below + ways) : std::to_string(ways);
}

Mesh make_mesh(const PlanRequest& request, Problems& problems) {
  std::vector<std::pair<std::string, int>> own;
  std::vector<AxisRequest> borrowed;
  std::set<std::string> seen;
  for (const StrategyChoice& choice : request.strategies) {
    for (const AxisRequest& axis : choice.strategy->axes()) {
      if (!seen.insert(axis.name).second) {
        problems.add(Stage::plan,
                     fmt::format("{}: two strategies ask for the axis {}", choice.path, axis.name),
                     "name each strategy once");
      } else if (axis.borrow_from.empty()) {
        own.emplace_back(axis.name, axis.ways);
      } else {
        borrowed.push_back(axis);
      }
    }
  }
  try {
    Mesh mesh(own);
    for (const AxisRequest& axis : borrowed) mesh.borrow(axis.name, axis.ways, axis.borrow_from);
    return mesh;
  } catch (const Error& error) {
    problems.add(error);
    return {};
  }
}

// The ranks over which the strategies split the batch, and their names for messages.
struct BatchSplit {
  std::int64_t ways = 1;
  std::string who;
};
BatchSplit batch_split(const Draft& draft, const Mesh& mesh) {
  BatchSplit split;
  std::set<int> atoms;
  for (const Rule& rule : draft.rules()) {
    if (rule.dim != batch_dim || rule.named || rule.where) continue;
    const Axis& axis = mesh.axis(rule.axis);
    atoms.insert(axis.atoms.begin(), axis.atoms.end());
    split.who += fmt::format("{}{}({})", split.who.empty() ? "" : " x ", rule.strategy, axis.ways);
  }
  for (int atom : atoms) split.ways *= mesh.atoms()[atom].ways;
  return split;
}

bool check_split(const PlanRequest& request, const BatchSplit& split, Problems& problems) {
  if (request.batch % split.ways != 0) {
    problems.add(Stage::plan,
                 fmt::format("batch: {} cannot split {} sequences evenly over {} ranks", split.who,
                             request.batch, split.ways),
                 fmt::format("nearest: batch = {}", nearest_multiples(request.batch, split.ways)));
    return false;
  }
  const std::int64_t own = request.batch / split.ways;
  if (request.microbatch > 0 && own % request.microbatch != 0) {
    problems.add(
        Stage::plan,
        fmt::format("microbatch: {} sequences do not divide the {} of each rank (batch {} "
                    "over {} ranks)",
                    request.microbatch, own, request.batch, split.ways),
        fmt::format("nearest: {}", fmt::join(nearest_divisors(own, request.microbatch), ", ")));
    return false;
  }
  return true;
}

std::shared_ptr<const Graph> build_graph(const PlanRequest& request, std::int64_t batch) {
  return std::make_shared<Graph>(request.model->build(
      request.model_options, batch, request.sequence, request.batch * request.sequence));
}

// Gradient accumulation on one stage: one microbatch after the other.
Schedule accumulate(const ScheduleRequest& request) {
  Schedule schedule;
  schedule.name = "accumulate";
  schedule.microbatches = request.microbatches;
  schedule.stage_of = {0};
  schedule.order.resize(1);
  for (int m = 0; m < request.microbatches; ++m) {
    schedule.order[0].push_back({0, Work::forward, m});
    schedule.order[0].push_back({0, Work::backward, m});
  }
  return schedule;
}

class ProgramMaker {
 public:
  ProgramMaker(Plan& plan, const Draft& draft, Problems& problems)
      : plan_(plan), draft_(draft), problems_(problems) {
    if (draft.pipeline()) {
      pipeline_ = *draft.pipeline();
    } else {
      pipeline_.schedule = accumulate;
    }
    request_.stages = pipeline_.axis.empty() ? 1 : plan.mesh.axis(pipeline_.axis).ways;
    request_.microbatches = static_cast<int>(plan.microbatches);
    request_.times = pipeline_.times;
    request_.memory_limit = pipeline_.memory_limit;
    const auto parts = static_cast<int>(pipeline_.layers.size());
    request_.chunks = std::max(1, parts / request_.stages);
  }

  void run() {
    const Derived derived =
        derive(*plan_.graph, plan_.mesh, draft_.rules(), draft_.storage(), problems_);
    // The placement is the strategy's, or follows from a schedule that needs no times.
    if (pipeline_.stage_of.empty() && !pipeline_.axis.empty()) {
      make_schedule();
      pipeline_.stage_of = plan_.schedule.stage_of;
    }
    if (!problems_.empty()) return;
    const Partition partition = part_layers(*plan_.graph, plan_.mesh, pipeline_, problems_);
    if (!problems_.empty()) return;
    BuildOptions options;
    options.microbatches = static_cast<int>(plan_.microbatches);
    options.element = element_bytes(plan_.request.precision);
    options.split = draft_.pipeline().has_value();
    plan_.programs = build(plan_.graph, plan_.mesh, derived, partition, options);
    if (draft_.pipeline()) weigh();
    // What had to be made for its placement alone is made again, now that times are known.
    if (problems_.empty()) make_schedule();
    if (problems_.empty()) check(plan_.schedule, request_, problems_);
    if (problems_.empty() && plan_.schedule.stage_of != partition.stage_of) {
      problems_.add(
          Stage::plan,
          fmt::format("the schedule {} places virtual stages on stages {}, the plan on {}",
                      plan_.schedule.name, fmt::join(plan_.schedule.stage_of, " "),
                      fmt::join(partition.stage_of, " ")),
          "make both the same");
    }
    if (!problems_.empty()) return;
    add_timelines(plan_.programs, partition, plan_.schedule);
    std::vector<Pass> passes = draft_.passes();
    std::stable_sort(passes.begin(), passes.end(),
                     [](const Pass& a, const Pass& b) { return a.order < b.order; });
    for (Program& program : plan_.programs) {
      try {
        for (const Pass& pass : passes) pass.run(program);
      } catch (const Error& error) {
        problems_.add(error);
        return;
      }
      if (!check_reductions(program)) return;
      complete(program);
    }
  }

 private:
  // What the schedule is to know of the works.
  void weigh() {
    if (request_.times.empty()) request_.times = work_times(plan_.programs);
    if (request_.memory_limit > 0) request_.bytes = work_bytes(plan_.programs);
  }

  // Hooks and reductions in every microbatch are for gradients that each rank keeps whole.
  bool check_reductions(const Program& program) {
    for (const Bucket& bucket : program.buckets) {
      if (bucket.parts.empty() || (bucket.hook == nullptr && !bucket.each)) continue;
      problems_.add(
          Stage::plan,
          fmt::format("plan: {} gradients that are summed in parts over {} ({} parameters of "
                      "{})",
                      bucket.hook ? fmt::format("the hook {} cannot reduce", bucket.hook->name())
                                  : "no reduction in every microbatch for",
                      program.mesh.name_of(bucket.parts), bucket.parameters.size(), bucket.name),
          bucket.hook ? "use zero without a hook, or dp alone with it"
                      : "use reduce = \"last\" beside zero; its stages 2 and 3 reduce their parts "
                        "in every microbatch");
      return false;
    }
    return true;
  }

  void make_schedule() {
    try {
      plan_.schedule = pipeline_.schedule(request_);
    } catch (const Error& error) {
      problems_.add(error);
    }
  }

  Plan& plan_;
  const Draft& draft_;
  Problems& problems_;
  Pipeline pipeline_;
  ScheduleRequest request_;
};

}  // namespace

int element_bytes(Precision precision) {
  return precision == Precision::fp64 ? 8 : 4;
}
const char* name_of(Precision precision) {
  return precision == Precision::fp64 ? "fp64" : "fp32";
}

std::shared_ptr<const Plan> make_plan(const PlanRequest& request, Problems& problems) {
  Problems found;
  auto give_up = [&]() -> std::shared_ptr<const Plan> {
    for (const Problem& p : found.list()) problems.add(p.stage, p.message, p.hint);
    return nullptr;
  };
  auto plan = std::make_shared<Plan>();
  plan->request = request;
  plan->mesh = make_mesh(request, found);
  if (!found.empty()) return give_up();

  const auto whole = build_graph(request, request.batch);
  Draft draft(*whole, plan->mesh);
  for (const StrategyChoice& choice : request.strategies) {
    draft.speaks(choice.name);
    try {
      choice.strategy->edit(draft);
    } catch (const Error& error) {
      found.add(error);
    } catch (const std::exception& thrown) {
      found.add(Stage::plan,
                fmt::format("{}: the plugin \"{}\" threw while it edited the plan: {}", choice.path,
                            choice.name, thrown.what()),
                "mend the plugin");
    }
  }
  for (const Problem& p : draft.problems().list()) found.add(p.stage, p.message, p.hint);
  plan->notes = draft.notes();
  plan->rules = draft.rules();

  const BatchSplit split = batch_split(draft, plan->mesh);
  plan->batch_ways = split.ways;
  if (check_split(request, split, found)) {
    const std::int64_t own = request.batch / split.ways;
    plan->microbatch = request.microbatch > 0 ? request.microbatch : own;
    plan->microbatches = own / plan->microbatch;
  } else {
    plan->microbatch = 1;  // any even split: the rest is still checked
  }
  plan->graph = build_graph(request, plan->microbatch * split.ways);
  Problems derived;
  ProgramMaker(*plan, draft, derived).run();
  for (const Problem& p : derived.list()) found.add(p.stage, p.message, p.hint);
  return found.empty() ? plan : give_up();
}

std::shared_ptr<const Plan> one_rank_plan(const Plan& plan, bool same_microbatches) {
  PlanRequest request = plan.request;
  request.strategies.clear();
  request.microbatch = same_microbatches ? plan.microbatch * plan.batch_ways : 0;
  Problems problems;
  auto one = make_plan(request, problems);
  problems.throw_if_any();
  return one;
}

Json Plan::description() const {
  Json json;
  json["model"] = Json::object({{"kind", request.model->name()}});
  for (const auto& [key, value] : request.model_options.json().items()) {
    if (key.empty() || key[0] != '$') json["model"][key] = value;
  }
  json["mix"] = mix();
  json["ranks"] = ranks();
  json["axes"] = Json::object();
  for (const Axis& axis : mesh.axes()) json["axes"][axis.name] = axis.ways;
  json["plan"] = Json::array();
  for (const StrategyChoice& choice : request.strategies) {
    Json entry = {{"plugin", choice.name}};
    for (const auto& [key, value] : choice.options.items()) entry[key] = value;
    json["plan"].push_back(entry);
  }
  json["batch"] = request.batch;
  json["sequence"] = request.sequence;
  json["microbatch"] = microbatch;
  json["microbatches"] = microbatches;
  json["precision"] = name_of(request.precision);
  if (stages() > 1) json["schedule"] = to_csv(schedule);
  return json;
}

std::string Plan::hash() const {
  std::uint64_t h = 14695981039346656037ull;  // FNV-1a, 64 bits
  for (const unsigned char c : description().dump()) h = (h ^ c) * 1099511628211ull;
  return fmt::format("{:016x}", h);
}

int Plan::stage_of(int rank) const {
  const int atom = programs.front().stage_atom;
  return atom < 0 ? 0 : mesh.coordinates(rank)[atom];
}

std::string Plan::mix() const {
  std::string text;
  for (const StrategyChoice& choice : request.strategies) {
    text += text.empty() ? "" : " x ";
    const auto axes = choice.strategy->axes();
    text +=
        axes.empty() ? choice.name + "()" : fmt::format("{}({})", choice.name, axes.front().ways);
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace mw
