#include "plan/build.h"

#include <algorithm>
#include <map>

#include "plan/backward.h"

namespace mw {
namespace {

// Slots of values, views and parameters, then the forward segment.
class Forward {
 public:
  Forward(Program& program, const Derived& derived, Tape& tape)
      : program_(program), graph_(*program.graph), derived_(derived), tape_(tape) {}

  void run() {
    tape_.value_slot.assign(graph_.values().size(), -1);
    tape_.view_slot.assign(derived_.views.size(), -1);
    tape_.saved.resize(graph_.ops().size());
    for (int value : graph_.parameters()) add_parameter(value);
    load();
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) compute(static_cast<int>(i));
    Instruction report;
    report.code = Code::report;
    report.inputs = {tape_.value_slot[graph_.loss]};
    report.label = graph_.value(graph_.loss).name;
    code_.push_back(report);
    program_.segments.push_back({"forward", std::move(code_)});
  }

 private:
  int add_slot(Slot slot) {
    program_.slots.push_back(std::move(slot));
    return static_cast<int>(program_.slots.size()) - 1;
  }

  Slot slot_of(int value, const Layout& layout) const {
    const Value& v = graph_.value(value);
    Slot slot;
    slot.name = v.name;
    slot.dims = v.dims;
    slot.layout = layout;
    slot.scalar = v.scalar;
    slot.value = value;
    return slot;
  }

  // The gradient accumulates Partial, over all microbatches, wherever some use leaves it so.
  void add_parameter(int value) {
    ProgramParameter parameter;
    parameter.value = value;
    parameter.stored = derived_.layout[value];
    parameter.accumulated = parameter.stored;
    for (const View& view : derived_.views) {
      if (view.value != value) continue;
      for (std::size_t a = 0; a < view.gradient.size(); ++a) {
        if (view.gradient[a].is_partial() && parameter.stored[a].is_replicate()) {
          parameter.accumulated[a] = Placement::partial();
        }
      }
    }
    Slot slot = slot_of(value, parameter.stored);
    slot.persistent = true;
    slot.category = Category::parameters;
    Slot gradient = slot;
    gradient.name = "d " + slot.name;
    gradient.layout = parameter.accumulated;
    gradient.category = Category::gradients;
    parameter.slot = add_slot(slot);
    parameter.gradient_slot = add_slot(gradient);
    tape_.value_slot[value] = parameter.slot;
    tape_.parameter_of[value] = static_cast<int>(program_.parameters.size());
    program_.parameters.push_back(std::move(parameter));
  }

  void load() {
    Instruction instruction;
    instruction.code = Code::load;
    instruction.label = "data";
    for (std::size_t v = 0; v < graph_.values().size(); ++v) {
      if (graph_.value(static_cast<int>(v)).source != Value::Source::data) continue;
      Slot slot = slot_of(static_cast<int>(v), derived_.layout[v]);
      slot.category = Category::buffers;
      tape_.value_slot[v] = add_slot(slot);
      instruction.outputs.push_back(tape_.value_slot[v]);
    }
    code_.push_back(std::move(instruction));
  }

  // The slot that holds a view; its moves are emitted at the first use.
  int materialise(int index) {
    int& slot = tape_.view_slot[index];
    if (slot >= 0) return slot;
    const View& view = derived_.views[index];
    slot = emit_moves(program_, code_, view.forward, tape_.value_slot[view.value],
                      derived_.layout[view.value], "forward");
    tape_.entries.push_back({Tape::Entry::view, index});
    return slot;
  }

  void compute(int index) {
    const Op& op = graph_.ops()[index];
    const OpTraits traits = op.type->traits(op);
    Instruction instruction;
    instruction.code = Code::compute;
    instruction.op = index;
    instruction.label = op.name;
    for (int view : derived_.view_of[index]) instruction.inputs.push_back(materialise(view));
    for (int value : op.outputs) {
      tape_.value_slot[value] = add_slot(slot_of(value, derived_.layout[value]));
      instruction.outputs.push_back(tape_.value_slot[value]);
    }
    for (const SavedValue& saved : traits.saved) {
      Slot slot;
      slot.name = op.name + "." + saved.name;
      slot.dims = saved.dims;
      slot.extra = saved.extra;
      slot.fp32_at_least = saved.fp32_at_least;
      slot.layout = saved_layout(index, saved.dims);
      instruction.saved.push_back(add_slot(slot));
    }
    tape_.saved[index] = instruction.saved;
    code_.push_back(std::move(instruction));
    tape_.entries.push_back({Tape::Entry::op, index});
  }

  Layout saved_layout(int op, const Dims& dims) const {
    Layout layout(program_.mesh.atoms().size());
    for (std::size_t a = 0; a < layout.size(); ++a) {
      for (const Layout* cut : {&derived_.cut[op], &derived_.follow[op]}) {
        const Placement& place = (*cut)[a];
        if (place.is_shard() && std::find(dims.begin(), dims.end(), place.dim) != dims.end()) {
          layout[a] = place;
        }
      }
    }
    return layout;
  }

  Program& program_;
  const Graph& graph_;
  const Derived& derived_;
  Tape& tape_;
  std::vector<Instruction> code_;
};

// One bucket for each pair (axes to reduce over, axes that shard): their parameters can share flat
// tensors, one collective, and one share of the gradient norm.
void make_buckets(Program& program) {
  std::map<std::pair<std::vector<int>, std::vector<int>>, std::vector<int>> sets;
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    const ProgramParameter& parameter = program.parameters[p];
    std::vector<int> reduce, sharded;
    for (std::size_t a = 0; a < parameter.stored.size(); ++a) {
      if (parameter.accumulated[a].is_partial()) reduce.push_back(static_cast<int>(a));
      if (parameter.stored[a].is_shard()) sharded.push_back(static_cast<int>(a));
    }
    sets[{reduce, sharded}].push_back(static_cast<int>(p));
  }
  for (auto& [key, parameters] : sets) {
    Bucket bucket;
    bucket.reduce = key.first;
    bucket.sharded = key.second;
    bucket.parameters = parameters;
    bucket.name = "bucket " + std::to_string(program.buckets.size());
    program.buckets.push_back(std::move(bucket));
  }
}

}  // namespace

int emit_moves(Program& program, std::vector<Instruction>& code, const std::vector<Move>& list,
               int slot, const Layout& layout, const char* phase) {
  Layout now = layout;
  for (const Move& move : list) {
    now = after(now, move);
    Slot target = program.slots[slot];
    target.layout = now;
    target.persistent = false;
    target.alias_of = -1;
    target.category = Category::activations;
    program.slots.push_back(target);
    const int moved = static_cast<int>(program.slots.size()) - 1;
    Instruction instruction;
    instruction.code = communicates(move.kind) ? Code::start : Code::move;
    instruction.inputs = {slot};
    instruction.outputs = {moved};
    instruction.move = move;
    instruction.phase = phase;
    instruction.label = target.name;
    if (communicates(move.kind)) {
      instruction.pending = program.pendings++;
      Instruction wait = instruction;
      wait.code = Code::wait;
      code.push_back(std::move(instruction));
      code.push_back(std::move(wait));
    } else {
      code.push_back(std::move(instruction));
    }
    slot = moved;
  }
  return slot;
}

Program build(std::shared_ptr<const Graph> graph, const Mesh& mesh, const Derived& derived,
              const BuildOptions& options) {
  Program program;
  program.graph = std::move(graph);
  program.mesh = mesh;
  program.microbatches = options.microbatches;
  program.element = options.element;
  program.cut = derived.cut;
  program.follow = derived.follow;
  program.loss = derived.layout[program.graph->loss];
  Tape tape;
  Forward(program, derived, tape).run();
  make_buckets(program);
  build_backward(program, derived, tape, false);
  if (options.split) build_backward(program, derived, tape, true);
  return program;
}

}  // namespace mw
