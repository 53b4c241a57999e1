// Makes a plan from a script's request: batch split, mesh, graph, draft and programs; and
// describes it as JSON.
#include "meshwright/engine/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <set>

#include "graph/data_values.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/mix.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "plan/axes.h"
#include "plan/build.h"

namespace mw {
namespace {

const Dim batch_dim("batch");

// What a graph is built with: batch, sequence, tokens of a step, and 1 if labels are masked.
using Sizes = std::array<std::int64_t, 4>;

// The multiples of `ways` next to `batch`, as "12 or 15".
std::string nearest_multiples(std::int64_t batch, std::int64_t ways) {
  const std::int64_t below = batch / ways * ways;
  return below > 0 ? fmt::format("{} or {}", below, below + ways) : std::to_string(ways);
}

// The ranks over which the strategies split the batch, and their names for messages.
struct BatchSplit {
  std::int64_t ways = 1;
  std::string who;
};
BatchSplit batch_split(const Draft& draft, const Mesh& mesh) {
  BatchSplit split;
  std::set<int> atoms;
  std::vector<std::string> entries;
  for (const Rule& rule : draft.rules()) {
    if (rule.dim != batch_dim || rule.named || rule.where) continue;
    const Axis& axis = mesh.axis(rule.axis);
    atoms.insert(axis.atoms.begin(), axis.atoms.end());
    entries.push_back(entry_text(rule.strategy, std::to_string(axis.ways), ""));
  }
  split.who = mix_text(entries);
  for (int atom : atoms) split.ways *= mesh.atoms()[atom].ways;
  return split;
}

bool check_split(const PlanRequest& request, const BatchSplit& split, Problems& problems) {
  if (request.batch % split.ways != 0) {
    problems.add(Stage::plan, "batch.uneven", "batch",
                 fmt::format("batch: {} cannot split {} sequences evenly over {} ranks", split.who,
                             request.batch, split.ways),
                 fmt::format("nearest: batch = {}", nearest_multiples(request.batch, split.ways)));
    return false;
  }
  const std::int64_t own = request.batch / split.ways;
  if (request.microbatch > own && !request.smaller_batches) {
    problems.add(
        Stage::plan, "microbatch.too-large", "microbatch",
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
        Stage::plan, "microbatch.sum", "microbatch",
        fmt::format("microbatch: {} are {} sequences, and each rank has {} (batch {} over {} "
                    "ranks)",
                    fmt::join(request.sizes, " + "), given, own, request.batch, split.ways),
        fmt::format("make them {} together", own));
    return false;
  }
  return true;
}

// The sequences of each microbatch on a rank that has `own` of them in a step.
std::vector<std::int64_t> microbatch_sizes(const PlanRequest& request, std::int64_t own) {
  if (!request.sizes.empty()) return request.sizes;
  if (request.microbatch == 0 || request.microbatch >= own) return {own};
  std::vector<std::int64_t> sizes(own / request.microbatch, request.microbatch);
  if (own % request.microbatch > 0) sizes.push_back(own % request.microbatch);
  return sizes;
}

PlanSize size_of(const Draft& draft, const Graph& graph, const PlanRequest& request,
                 const BatchSplit& split) {
  PlanSize size;
  size.ops = static_cast<std::int64_t>(graph.ops().size());
  if (draft.pipeline() && !draft.pipeline()->axis.empty()) {
    size.stages = draft.mesh().axis(draft.pipeline()->axis).ways;
    size.vstages = std::max<std::int64_t>(
        size.stages, static_cast<std::int64_t>(draft.pipeline()->layers.size()));
  }
  const std::int64_t own = std::max<std::int64_t>(1, request.batch / split.ways);
  if (!request.sizes.empty()) {
    size.microbatches = static_cast<std::int64_t>(request.sizes.size());
  } else if (request.microbatch > 0) {
    size.microbatches = (own + request.microbatch - 1) / request.microbatch;
  }
  return size;
}

// Keeps the graphs that were asked for last, of models that are still in use: searches and sweeps
// plan the same graphs again and again.
class RecentGraphs {
 public:
  using Pointer = std::shared_ptr<const Graph>;

  // `any_batch`: the batch is only a size to the model, so that a graph of any will do.
  Pointer find(const std::shared_ptr<const Model>& model, const Sizes& sizes, bool any_batch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& entry) { return entry.model.expired(); });
    const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return std::equal(sizes.begin() + (any_batch ? 1 : 0), sizes.end(),
                        entry.sizes.begin() + (any_batch ? 1 : 0)) &&
             entry.model.lock() == model;
    });
    if (known == entries_.end()) return nullptr;
    std::rotate(known, known + 1, entries_.end());
    return entries_.back().graph;
  }
  void add(const std::shared_ptr<const Model>& model, const Sizes& sizes, const Pointer& graph) {
    const std::lock_guard lock(mutex_);
    if (entries_.size() == most) entries_.erase(entries_.begin());
    entries_.push_back({model, sizes, graph});
  }

 private:
  static constexpr std::size_t most = 16;
  struct Entry {
    std::weak_ptr<const Model> model;
    Sizes sizes;
    Pointer graph;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;  // sorted by last use: the last one was asked for last
};

std::shared_ptr<const Graph> build_graph(const PlanRequest& request, std::int64_t batch) {
  // never destroyed: plugins' ops must not be destroyed at the program's end
  static RecentGraphs& recent = *new RecentGraphs;
  const Sizes sizes{batch, request.sequence, request.batch * request.sequence,
                    (request.masked_labels ? 1 : 0) + (request.documents ? 2 : 0)};
  if (auto graph = recent.find(request.model, sizes, false)) return graph;
  if (request.model->batch_is_a_size()) {
    if (const auto other = recent.find(request.model, sizes, true)) {
      auto graph = std::make_shared<const Graph>(other->with_size(batch_dim, batch));
      recent.add(request.model, sizes, graph);
      return graph;
    }
  }
  auto graph = call_plugin(PluginPlace{request.model->name(), "model"}, "built its graph", [&] {
    Graph built = request.model->build(sizes[0], sizes[1], sizes[2]);
    if (request.masked_labels) built = built.with_masked_losses();
    if (request.documents) built = built.with_documents();
    return std::make_shared<const Graph>(std::move(built));
  });
  recent.add(request.model, sizes, graph);
  return graph;
}

}  // namespace

Precision precision_of(const std::string& name) {
  for (const Precision precision : {Precision::fp64, Precision::fp32, Precision::bf16}) {
    if (name == name_of(precision)) return precision;
  }
  return Precision::fp16;
}

std::shared_ptr<const Plan> make_plan(const PlanRequest& request, Problems& problems) {
  throw_if_stopped();
  if (request.recompute.kind == RecomputePolicy::Kind::fit)
    return request.recompute.search(request, problems);
  Problems found;
  std::vector<WrongWays> wrong;
  auto give_up = [&]() -> std::shared_ptr<const Plan> {
    try_nearest(request, wrong, found);
    problems.add(found);
    return nullptr;
  };
  auto plan = std::make_shared<Plan>();
  plan->request = request;
  plan->mesh = ask_axes(plan->request.strategies, found, wrong);
  if (!found.empty()) return give_up();

  std::shared_ptr<const Graph> whole;
  try {
    whole = build_graph(request, request.batch);
  } catch (const Error& error) {
    found.add(error);
    return give_up();
  }
  const auto* declares = dynamic_cast<const ModelInputs*>(request.model.get());
  check_data_values(
      *whole, declares == nullptr ? std::vector<DataInput>() : declares->inputs(request.sequence),
      found);
  check_sizes(*whole, found);
  if (request.masked_labels) check_masked_losses(*whole, found);
  if (!found.empty()) return give_up();
  Draft draft(*whole, plan->mesh);
  for (const StrategyChoice& choice : request.strategies) {
    draft.set_strategy(choice.name, choice.path);
    try {
      call_plugin({choice.name, choice.path}, "edited the plan",
                  [&] { choice.strategy->edit(draft); });
    } catch (const Error& error) {
      draft.problems().add(error);
    }
  }
  found.add(draft.problems());
  plan->notes = request.notes;
  plan->notes.insert(plan->notes.end(), draft.notes().begin(), draft.notes().end());
  if (!request.recompute.note.empty()) plan->notes.push_back(request.recompute.note);
  plan->rules = draft.rules();
  // `where` may look at the draft, which goes when the plan is made
  for (Rule& rule : plan->rules) {
    rule.named = rule.named || rule.where;
    rule.where = {};
  }

  const BatchSplit split = batch_split(draft, plan->mesh);
  plan->batch_ways = split.ways;
  const bool splits = check_split(request, split, found);
  const PlanSize size = size_of(draft, *whole, request, split);
  plan->work = size.work();
  Problems beyond;
  check_work(size, *whole, beyond);
  found.add(beyond);
  if (!beyond.empty()) return give_up();
  if (splits) {
    plan->sizes = microbatch_sizes(request, request.batch / split.ways);
  } else {
    plan->sizes = {1};  // any even split will do, so that the rest is checked too
  }
  plan->microbatch = *std::max_element(plan->sizes.begin(), plan->sizes.end());
  plan->microbatches = static_cast<std::int64_t>(plan->sizes.size());
  plan->graph = build_graph(request, plan->microbatch * split.ways);
  Problems derived;
  try {
    make_programs(*plan, draft, derived, wrong);
  } catch (const Error& error) {  // thrown by a strategy that was asked about an op or a program
    derived.add(error);
  }
  for (WrongWays& ways : wrong) ways.problem += found.list().size();
  found.add(derived);
  return found.empty() ? plan : give_up();
}

static void widen(Program& program) {
  for (Dtype* dtype :
       {&program.dtype, &program.gradient_dtype, &program.optimizer_dtype, &program.reduce_dtype})
    *dtype = Dtype::fp64;
  for (Slot& slot : program.slots) {
    if (slot.dtype == Dtype::fp32) slot.dtype = Dtype::fp64;
  }
  for (const Bucket& bucket : program.buckets)
    if (bucket.flat.outer_gradient >= 0)
      program.slots[bucket.flat.outer_gradient].dtype = Dtype::fp64;
}

std::shared_ptr<const Plan> in_double(const Plan& plan) {
  if (bytes_of(plan.request.precision) >= 4) {  // fp32 or more: no tensor is cast
    // Keeps these very programs: another plan might choose otherwise where a choice depends on
    // bytes.
    auto same = std::make_shared<Plan>(plan);
    same->request.precision = Precision::fp64;
    for (Program& program : same->programs) widen(program);
    return same;
  }
  PlanRequest request = plan.request;
  request.precision = Precision::fp64;
  request.schedule = plan.schedule;  // times and sizes differ in float64; what is run must not
  Problems problems;
  auto same = make_plan(request, problems);
  if (problems.empty()) return same;
  const Problem& first = problems.list().front();
  throw Error(
      Stage::plan, "plan.float64", "plan",
      fmt::format(
          "plan: the plan can be made in {} and not in float64, in which it is compared with one "
          "rank: {}",
          name_of(plan.request.precision), first.message),
      "make choices that look at bytes, as of a bucket or a tensor, in another way, or verify the "
      "plan with precision = \"fp32\"");
}

// A plan of the same model, batch and precision without recompute and offload, with one entry for
// each of these strategies.
static std::shared_ptr<const Plan> plain_plan(const Plan& plan,
                                              std::vector<StrategyChoice> strategies,
                                              bool same_microbatches) {
  PlanRequest request = plan.request;
  request.strategies = std::move(strategies);
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

std::shared_ptr<const Plan> one_rank_plan(const Plan& plan, bool same_microbatches) {
  return plain_plan(plan, {}, same_microbatches);
}

const StrategyChoice* Plan::replicas() const {
  const std::vector<int>& atoms = programs.front().replica_atoms();
  const auto found = std::ranges::find_if(request.strategies, [&](const StrategyChoice& choice) {
    return std::ranges::any_of(
        choice.axes, [&](const AxisRequest& axis) { return mesh.axis(axis.name).atoms == atoms; });
  });
  return atoms.empty() || found == request.strategies.end() ? nullptr : &*found;
}

std::shared_ptr<const Plan> one_rank_replicas(const Plan& plan) {
  return plain_plan(plan, {*plan.replicas()}, false);
}

Json Plan::description() const {
  Json json;
  json["model"] = Json::object({{"kind", request.model->name()}});
  for (const auto& [key, value] : request.model_options.json().items()) {
    if ((key.empty() || key[0] != '$') && !is_function(value)) json["model"][key] = value;
  }
  if (Json made_of = request.model->made_of(); !made_of.is_null())
    json["model"]["made_of"] = std::move(made_of);
  json["mix"] = mix();
  json["ranks"] = ranks();
  json["axes"] = Json::object();
  for (const Axis& axis : mesh.axes()) json["axes"][axis.name] = axis.ways;
  json["plan"] = Json::array();
  for (const StrategyChoice& choice : request.strategies) {
    Json entry = {{"plugin", choice.name}};
    for (const auto& [key, value] : choice.options.items()) {
      // The name of a schedule's file decides nothing; the schedule itself is described below.
      const bool file = value.is_string() && value.get<std::string>().ends_with(".csv");
      if (!file && !is_function(value)) entry[key] = without_hidden(value);
    }
    json["plan"].push_back(entry);
  }
  json["batch"] = request.batch;
  json["sequence"] = request.sequence;
  json["microbatch"] = microbatch;
  json["microbatches"] = microbatches;
  if (std::count(sizes.begin(), sizes.end(), microbatch) < microbatches) json["sizes"] = sizes;
  json["precision"] = name_of(request.precision);
  if (bytes_of(request.precision) < 4) {
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
  if (!stage_layers.empty()) json["layers"] = stage_layers;
  return json;
}

std::int64_t highest_peak(const Plan& plan) {
  return highest_peak(plan.programs, plan.request.scratch.get()) + plan.request.kept_by_libraries;
}

bool Plan::holds(const Rule& rule) const {
  const Program& program = programs.front();
  const std::vector<int>& atoms = rule.atoms(mesh);
  const auto cuts = [&](const Layout& layout) {
    return std::any_of(atoms.begin(), atoms.end(), [&](int atom) {
      return static_cast<std::size_t>(atom) < layout.size() && layout[atom].is_shard() &&
             layout[atom].dim == rule.dim;
    });
  };
  return std::any_of(program.cut.begin(), program.cut.end(), cuts) ||
         std::any_of(program.follow.begin(), program.follow.end(), cuts);
}

int Plan::stage_of(int rank) const {
  const int atom = programs.front().stage_atom;
  return atom < 0 ? 0 : mesh.coordinates(rank)[atom];
}

std::string ways_of(const StrategyChoice& choice) {
  if (choice.axes.empty()) return "";
  int ways = 1;
  const bool own = std::any_of(choice.axes.begin(), choice.axes.end(),
                               [](const AxisRequest& axis) { return axis.borrow.empty(); });
  for (const AxisRequest& axis : choice.axes) {
    if (axis.borrow.empty() || !own) ways *= axis.ways;
  }
  return std::to_string(ways);
}

std::string Plan::mix() const {
  std::vector<std::string> entries;
  for (const StrategyChoice& choice : request.strategies)
    entries.push_back(entry_text(choice.name, ways_of(choice), choice.differs));
  return mix_text(entries);
}

}  // namespace mw
