// Gives an op whose keys go round a ring of ranks the slots in which they arrive: one instruction
// stands for all its steps (program/ring.h), so that a plan grows with layers alone.
#include <algorithm>

#include "plan/assembly.h"

namespace mw {
namespace {

bool rotates(const Op& op, std::size_t input, const Rotation& rotation) {
  const Dims& dims = op.inputs[input].dims;
  return std::find(dims.begin(), dims.end(), rotation.dim) != dims.end();
}

// Whether all ranks' parts of what goes round are of one size.
bool even(const Program& program, const Slot& slot, const Rotation& rotation) {
  return std::all_of(slot.dims.begin(), slot.dims.end(), [&](Dim dim) {
    std::int64_t ways = 1;
    bool goes = false;
    for (std::size_t a = 0; a < slot.layout.size(); ++a) {
      if (!slot.layout[a].is_shard() || slot.layout[a].dim != dim) continue;
      ways *= program.mesh.atoms()[a].ways;
      goes = goes || std::find(rotation.atoms.begin(), rotation.atoms.end(), static_cast<int>(a)) !=
                         rotation.atoms.end();
    }
    return !goes || program.graph->size(dim) % ways == 0;
  });
}

// Slots for what is like `slot`, but `first` steps on from there, and for `count` steps: two of
// them where all parts are of one size.
std::vector<int> slots_for(Program& program, int like, const Rotation& rotation, int first,
                           int count) {
  Slot slot = program.slots[like];
  slot.persistent = false;
  slot.alias_of = -1;
  slot.category = Category::activations;
  slot.ring = rotation.atoms;
  if (even(program, slot, rotation)) count = std::min(count, 2);
  std::vector<int> slots;
  for (slot.ring_step = first; slot.ring_step < first + count; ++slot.ring_step)
    slots.push_back(add_slot(program, slot));
  return slots;
}

}  // namespace

Instruction in_ring(Program& program, Instruction instruction, const Rotation& rotation) {
  const Op& op = program.graph->ops()[instruction.op];
  const int steps = instruction.ring_steps = program.mesh.ways(rotation.atoms);
  std::vector<Rotating> ring;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (!rotates(op, i, rotation)) continue;
    Rotating r;
    r.input = static_cast<int>(i);
    if (instruction.inputs[i] >= 0) {
      r.shards = slots_for(program, instruction.inputs[i], rotation, 1, steps - 1);
      r.pending = program.pendings++;
    }
    if (instruction.piece != Piece::forward && instruction.grad_inputs[i] >= 0) {
      r.shares = slots_for(program, instruction.grad_inputs[i], rotation, 0, steps);
      r.sums = slots_for(program, instruction.grad_inputs[i], rotation, 1, steps);
      r.sum_pending = program.pendings++;
    }
    ring.push_back(std::move(r));
  }
  instruction.ring = std::make_shared<const std::vector<Rotating>>(std::move(ring));
  return instruction;
}

}  // namespace mw
