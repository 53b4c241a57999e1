// Makes the programs of all stages from derived placements: parameters and buckets first, then
// the segments of each virtual stage.
#include "plan/build.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "meshwright/optimizer.h"
#include "plan/assembly.h"

namespace mw {
namespace {

// The placements in which a parameter that several stages use is replicated along the stage axis:
// each stage leaves a partial sum of its gradient.
Derived with_shared(const Derived& derived, const Partition& partition) {
  Derived amended = derived;
  for (View& view : amended.views) {
    if (partition.shared.count(view.value) > 0) {
      view.gradient[partition.stage_atom] = Placement::partial();
    }
  }
  return amended;
}

// The gradient accumulates as Partial, over all microbatches, on each atom where some use leaves it
// so.
void add_parameter(Assembly& assembly, Program& program, int value,
                   const std::vector<const View*>& views) {
  ProgramParameter parameter;
  parameter.value = value;
  parameter.stored = assembly.derived.layout[value];
  parameter.accumulated = parameter.stored;
  for (const View* view : views) {
    for (std::size_t a = 0; a < view->gradient.size(); ++a) {
      if (view->gradient[a].is_partial() && parameter.stored[a].is_replicate()) {
        parameter.accumulated[a] = Placement::partial();
      }
    }
  }
  Slot slot = slot_of(program, value, parameter.stored);
  slot.persistent = true;
  slot.category = Category::parameters;
  Slot gradient = slot;
  gradient.name = "d " + slot.name;
  gradient.layout = parameter.accumulated;
  gradient.dtype = program.gradient_dtype;
  gradient.category = Category::gradients;
  parameter.slot = add_slot(program, std::move(slot));
  if (!assembly.graph.value(value).frozen)
    parameter.gradient_slot = add_slot(program, std::move(gradient));
  assembly.parameter_of[program.stage][value] = static_cast<int>(program.parameters.size());
  program.parameters.push_back(std::move(parameter));
}

void add_parameters(Assembly& assembly) {
  std::vector<std::vector<bool>> used(assembly.programs.size(),
                                      std::vector<bool>(assembly.graph.values().size(), false));
  for (int v = 0; v < assembly.partition.vstages(); ++v) {
    for (int op : assembly.partition.ops[v]) {
      for (const Use& use : assembly.graph.ops()[op].inputs) {
        used[assembly.stage(v)][use.value] = true;
      }
    }
  }
  std::vector<std::vector<const View*>> views(assembly.graph.values().size());
  for (const View& view : assembly.derived.views) {
    if (assembly.graph.value(view.value).source == Value::Source::parameter)
      views[view.value].push_back(&view);
  }
  const std::vector<int> parameters = assembly.graph.parameters();
  for (Program& program : assembly.programs) {
    const auto count = std::count_if(parameters.begin(), parameters.end(),
                                     [&](int value) { return used[program.stage][value]; });
    make_room(program, 2 * static_cast<std::size_t>(count));
    program.parameters.reserve(static_cast<std::size_t>(count));
  }
  for (int value : parameters) {
    for (Program& program : assembly.programs) {
      if (used[program.stage][value]) add_parameter(assembly, program, value, views[value]);
    }
  }
}

// Makes one bucket for each set of axes to reduce over, axes that shard, stages that hold the
// parameters, and kind of update. The parameters of a bucket can share flat tensors, one collective
// and one share of the gradient norm.
void make_buckets(Program& program, const Partition& partition) {
  using Key = std::tuple<bool, bool, int, std::vector<int>, std::vector<int>, std::vector<int>>;
  std::map<Key, std::vector<int>> sets;
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const ProgramParameter& parameter = program.parameters[p];
    std::vector<int> reduce, sharded, stages;
    for (std::size_t a = 0; a < parameter.stored.size(); ++a) {
      if (parameter.accumulated[a].is_partial()) reduce.push_back(static_cast<int>(a));
      if (parameter.stored[a].is_shard()) sharded.push_back(static_cast<int>(a));
    }
    const auto shared = partition.shared.find(parameter.value);
    if (shared != partition.shared.end()) stages = shared->second;
    const Value& value = program.graph->value(parameter.value);
    sets[{value.counts, value.frozen, parameter.group, stages, reduce, sharded}].push_back(
        static_cast<int>(p));
  }
  for (auto& [key, parameters] : sets) {
    Bucket bucket;
    std::tie(bucket.counts, bucket.frozen, bucket.group, bucket.stages, bucket.reduce_atoms,
             bucket.parameter_atoms) = key;
    bucket.parameters = parameters;
    bucket.matrix = program.parameters[static_cast<std::size_t>(parameters.front())].rows > 0;
    program.buckets.push_back(std::move(bucket));
  }
  name_buckets(program);
}

}  // namespace

void name_buckets(Program& program) {
  // A bucket of several stages is named by what it holds: they must agree on the name.
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    Bucket& bucket = program.buckets[b];
    bucket.name = bucket.stages.empty()
                      ? "bucket " + std::to_string(b)
                      : "shared " + program.name_of_parameter(bucket.parameters.front());
  }
}

std::vector<Program> build(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                           const Derived& derived, const Partition& partition,
                           const BuildOptions& options) {
  std::vector<Program> programs(partition.stages);
  for (int stage = 0; stage < partition.stages; ++stage) {
    Program& program = programs[stage];
    program.graph = graph;
    program.mesh = mesh;
    program.stage = stage;
    program.stages = partition.stages;
    program.stage_atom = partition.stage_atom;
    program.stage_of = partition.stage_of;
    program.vstage_of = partition.vstage_of;
    program.microbatches = options.microbatches;
    program.threads = options.threads;
    program.dtype = options.dtype;
    program.gradient_dtype = options.gradient_dtype;
    program.optimizer_dtype = options.optimizer_dtype;
    program.reduce_dtype = options.reduce_dtype;
    program.update_needs_totals = options.update_needs_totals;
    program.optimizer = options.optimizer;
    program.cut = derived.cut;
    program.follow = derived.follow;
    program.rotations = derived.rotations;
    program.token_permutation = options.order;
    program.document_parts = options.document_parts;
    program.imbalance = options.imbalance;
  }
  // empty unless needed: placements of a large model are slow to copy
  std::optional<Derived> amended;
  if (!partition.shared.empty()) amended = with_shared(derived, partition);
  Assembly assembly{*graph, amended ? *amended : derived, partition, programs, {}, {}, {}};
  assembly.parameter_of.assign(programs.size(), std::vector<int>(graph->values().size(), -1));
  assembly.tapes.resize(partition.vstages());
  assembly.boundaries.resize(partition.crossings.size());
  add_parameters(assembly);
  set_groups(programs);
  for (Program& program : programs) {
    Slot loss;
    loss.name = "the step's loss";
    loss.layout = Layout(mesh.atoms().size());
    loss.dtype = Dtype::fp64;
    loss.persistent = true;
    loss.category = Category::buffers;
    program.loss = add_slot(program, std::move(loss));
    make_buckets(program, partition);
  }
  for (int v = 0; v < partition.vstages(); ++v) build_forward(assembly, v);
  for (int v = partition.vstages(); v-- > 0;) {
    build_backward(assembly, v, false);
    if (options.split) build_backward(assembly, v, true);
  }
  return programs;
}

}  // namespace mw
