#include "plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/json_text.h"
#include "plan/make_programs.h"
#include "plan/recompute_fit.h"

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
    for (const AxisRequest& axis : borrowed) {
      std::vector<std::string> lenders;
      std::copy_if(axis.borrow_from.begin(), axis.borrow_from.end(), std::back_inserter(lenders),
                   [&](const std::string& name) { return mesh.has(name); });
      if (lenders.empty()) {
        problems.add(Stage::plan,
                     fmt::format("{}({}) takes ranks of {}, and the plan has none of these axes",
                                 axis.name, axis.ways, fmt::join(axis.borrow_from, ", ")),
                     fmt::format("add {}({})", axis.borrow_from.front(), axis.ways));
        continue;
      }
      mesh.borrow(axis.name, axis.ways, lenders);
    }
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
  if (request.microbatch > own && !request.smaller_batches) {
    problems.add(
        Stage::plan,
        fmt::format("microbatch: {} sequences are more than the {} of each rank (batch {} over {} "
                    "ranks)",
                    request.microbatch, own, request.batch, split.ways),
        fmt::format("nearest: {}", own));
    return false;
  }
  const std::int64_t given =
      std::accumulate(request.sizes.begin(), request.sizes.end(), std::int64_t{0});
  if (!request.sizes.empty() && given != own) {
    problems.add(
        Stage::plan,
        fmt::format("microbatch: {} are {} sequences, and each rank has {} (batch {} over {} "
                    "ranks)",
                    fmt::join(request.sizes, " + "), given, own, request.batch, split.ways),
        fmt::format("make them {} together", own));
    return false;
  }
  return true;
}

// Of each microbatch, on a rank that has `own` sequences.
std::vector<std::int64_t> microbatch_sizes(const PlanRequest& request, std::int64_t own) {
  if (!request.sizes.empty()) return request.sizes;
  if (request.microbatch == 0 || request.microbatch >= own) return {own};
  std::vector<std::int64_t> sizes(own / request.microbatch, request.microbatch);
  if (own % request.microbatch > 0) sizes.push_back(own % request.microbatch);
  return sizes;
}

std::shared_ptr<const Graph> build_graph(const PlanRequest& request, std::int64_t batch) {
  return std::make_shared<Graph>(request.model->build(
      request.model_options, batch, request.sequence, request.batch * request.sequence));
}

}  // namespace

int element_bytes(Precision precision) {
  return precision == Precision::fp64 ? 8 : precision == Precision::fp32 ? 4 : 2;
}
const char* name_of(Precision precision) {
  static const char* const names[] = {"fp64", "fp32", "bf16", "fp16"};
  return names[static_cast<std::size_t>(precision)];
}
Precision precision_of(const std::string& name) {
  for (const Precision precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    if (name == name_of(precision)) return precision;
  }
  return Precision::fp16;
}

std::shared_ptr<const Plan> make_plan(const PlanRequest& request, Problems& problems) {
  if (request.recompute.kind == RecomputePolicy::Kind::fit) return fit_recompute(request, problems);
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
  plan->notes = request.notes;
  plan->notes.insert(plan->notes.end(), draft.notes().begin(), draft.notes().end());
  if (!request.recompute.note.empty()) plan->notes.push_back(request.recompute.note);
  plan->rules = draft.rules();
  for (Rule& rule : plan->rules) {  // what it was asked by may look at the draft, which goes
    rule.named = rule.named || rule.where;
    rule.where = {};
  }

  const BatchSplit split = batch_split(draft, plan->mesh);
  plan->batch_ways = split.ways;
  if (check_split(request, split, found)) {
    plan->sizes = microbatch_sizes(request, request.batch / split.ways);
  } else {
    plan->sizes = {1};  // any even split: the rest is still checked
  }
  plan->microbatch = *std::max_element(plan->sizes.begin(), plan->sizes.end());
  plan->microbatches = static_cast<std::int64_t>(plan->sizes.size());
  plan->graph = build_graph(request, plan->microbatch * split.ways);
  Problems derived;
  make_programs(*plan, draft, derived);
  for (const Problem& p : derived.list()) found.add(p.stage, p.message, p.hint);
  return found.empty() ? plan : give_up();
}

std::shared_ptr<const Plan> one_rank_plan(const Plan& plan, bool same_microbatches) {
  PlanRequest request = plan.request;
  request.strategies.clear();
  request.schedule.reset();
  request.recompute = {};
  request.offload = {};
  request.microbatch = 0;
  request.sizes.clear();
  request.notes.clear();
  if (same_microbatches) {
    for (std::int64_t size : plan.sizes) request.sizes.push_back(size * plan.batch_ways);
  }
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
    for (const auto& [key, value] : choice.options.items()) {
      // Where a schedule was written down decides nothing; what it says is below.
      const bool file = value.is_string() && value.get<std::string>().ends_with(".csv");
      if (!file && !is_function(value)) entry[key] = value;
    }
    json["plan"].push_back(entry);
  }
  json["batch"] = request.batch;
  json["sequence"] = request.sequence;
  json["microbatch"] = microbatch;
  json["microbatches"] = microbatches;
  if (std::count(sizes.begin(), sizes.end(), microbatch) < microbatches) json["sizes"] = sizes;
  json["precision"] = name_of(request.precision);
  if (request.ns_steps > 0) json["ns_steps"] = request.ns_steps;
  if (element_bytes(request.precision) < 4) {
    json["main_gradients"] = request.fp32_gradients ? "fp32" : name_of(request.precision);
    if (request.fp32_sums) json["reductions"] = "fp32";
  }
  if (request.recompute.kind != RecomputePolicy::Kind::none || request.recompute.gathers) {
    json["recompute"] = request.recompute.describe();
  }
  if (request.offload.kind != OffloadPolicy::Kind::none) {
    json["offload"] = request.offload.describe();
  }
  if (programs.front().stage_atom >= 0) json["schedule"] = to_csv(schedule);
  return json;
}

std::string Plan::hash() const {
  std::uint64_t h = 14695981039346656037ull;  // FNV-1a, 64 bits
  for (const unsigned char c : json_text(description())) h = (h ^ c) * 1099511628211ull;
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
    int ways = 1;
    const bool own = std::any_of(axes.begin(), axes.end(),
                                 [](const AxisRequest& axis) { return axis.borrow_from.empty(); });
    for (const AxisRequest& axis : axes) {
      if (axis.borrow_from.empty() || !own) ways *= axis.ways;
    }
    text += axes.empty() ? choice.name + "()" : fmt::format("{}({})", choice.name, ways);
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace mw
