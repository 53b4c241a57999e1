// Finds the weights that Muon updates as whole matrices and writes the instructions that gather,
// orthogonalise and apply their updates.
#include "plan/matrices.h"

#include <algorithm>
#include <optional>

#include "plan/assembly.h"
#include "plan/build.h"
#include "plan/op_choice.h"

namespace mw {
namespace {

struct Shape {
  int stacked = 0, rows = 0;
  bool operator==(const Shape&) const = default;
};

// A weight's dims in the order: those that input and output share, those of the output,
// those of the input.
std::optional<Shape> shape_of(const Op& op) {
  const Dims &in = op.inputs[0].dims, &weight = op.inputs[1].dims, &out = op.output_dims[0];
  const auto kind = [&](Dim dim) { return !contains(out, dim) ? 2 : contains(in, dim) ? 0 : 1; };
  Shape shape;
  int last = 0;
  for (Dim dim : weight) {
    const int next = kind(dim);
    if (next < last) return std::nullopt;
    last = next;
    if (next == 0) ++shape.stacked;
    if (next == 1) ++shape.rows;
  }
  if (shape.rows == 0 || last != 2) return std::nullopt;
  return shape;
}

// What it is as a matrix in every op that uses it; nothing if it is not one everywhere.
std::optional<Shape> shape_of(const Graph& graph, int parameter) {
  std::optional<Shape> shape;
  for (const Op& op : graph.ops()) {
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (op.inputs[k].value != parameter) continue;
      const bool linear = op.kind() == "linear" || op.kind() == "expert_linear";
      if (k != 1 || !linear || !in_layers(op, graph)) return std::nullopt;
      const auto here = shape_of(op);
      if (!here || (shape && !(*shape == *here))) return std::nullopt;
      shape = here;
    }
  }
  return shape;
}

// Whole but for the dims that number matrices.
Layout gathered(const ProgramParameter& parameter, const Dims& dims) {
  Layout layout = parameter.stored;
  for (Placement& placement : layout) {
    const auto stacked = dims.begin() + parameter.stacked;
    if (placement.is_shard() && std::find(dims.begin(), stacked, placement.dim) == stacked)
      placement = Placement::replicate();
  }
  return layout;
}

}  // namespace

void mark_matrices(Program& program) {
  for (ProgramParameter& parameter : program.parameters) {
    if (const auto shape = shape_of(*program.graph, parameter.value)) {
      parameter.stacked = shape->stacked;
      parameter.rows = shape->rows;
    }
  }
}

void add_matrix_updates(Program& program, int bucket, std::vector<Instruction>& code) {
  const std::vector<int> parameters = program.buckets[bucket].parameters;
  std::vector<int> slots;
  for (int p : parameters) {
    const ProgramParameter& parameter = program.parameters[p];
    Slot slot = slot_of(program, parameter.value, parameter.stored);
    slot.name = "update of " + slot.name;
    slot.value = -1;
    slot.dtype = program.optimizer_dtype;
    slots.push_back(add_slot(program, std::move(slot)));
  }
  const bool together = !program.buckets[bucket].parts.empty();
  Instruction direct = of_bucket(Code::direct, bucket, program, "optimizer");
  if (together) {
    direct.outputs = slots;
    code.push_back(direct);
  }
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    const ProgramParameter parameter = program.parameters[parameters[k]];
    const Value& value = program.graph->value(parameter.value);
    if (!together) {
      direct.parameter = parameters[k];
      direct.label = value.name;
      direct.outputs = {slots[k]};
      code.push_back(direct);
    }
    const Layout whole = gathered(parameter, value.dims);
    const int slot = emit_moves(program, code, moves(parameter.stored, whole, program.mesh),
                                slots[k], parameter.stored, "optimizer");
    Instruction update = of_bucket(Code::update, bucket, program, "optimizer");
    update.parameter = parameters[k];
    update.label = value.name;
    update.inputs = {slot};
    code.push_back(std::move(update));
  }
}

}  // namespace mw
