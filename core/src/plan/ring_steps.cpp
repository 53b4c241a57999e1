// Writes an op whose keys go round a ring of ranks as one ring step for each rank: send on,
// receive, compute with what is there.
#include <algorithm>

#include "plan/assembly.h"

namespace mw {
namespace {

bool rotates(const Op& op, std::size_t input, const Rotation& rotation) {
  const Dims& dims = op.inputs[input].dims;
  return std::find(dims.begin(), dims.end(), rotation.dim) != dims.end();
}

// `slot` goes to the next rank, and the slot of the rank before arrives.
struct Shift {
  Instruction start, wait;
  int slot = -1;
};

Shift shift(Program& program, int slot, const Rotation& rotation, const char* phase) {
  Slot target = program.slots[slot];
  target.persistent = false;
  target.alias_of = -1;
  target.category = Category::activations;
  target.ring = rotation.atoms;
  ++target.ring_step;
  Shift made;
  made.slot = add_slot(program, target);
  made.start.code = Code::start;
  made.start.inputs = {slot};
  made.start.outputs = {made.slot};
  made.start.move.kind = Move::Kind::shift;
  made.start.move.atoms = rotation.atoms;
  made.start.phase = phase;
  made.start.label = target.name;
  made.start.pending = program.pendings++;
  made.wait = made.start;
  made.wait.code = Code::wait;
  return made;
}

// The inputs that rotate are sent on; `instruction` gets those of the next step once it is emitted.
struct Next {
  std::vector<int> inputs;
  std::vector<Instruction> waits;
};

Next send_on(Program& program, const Instruction& instruction, const Rotation& rotation,
             std::vector<Instruction>& code) {
  const Op& op = program.graph->ops()[instruction.op];
  Next next{instruction.inputs, {}};
  if (instruction.ring_step + 1 == instruction.ring_steps) return next;
  for (std::size_t i = 0; i < next.inputs.size(); ++i) {
    if (next.inputs[i] < 0 || !rotates(op, i, rotation)) continue;
    Shift shifted = shift(program, next.inputs[i], rotation, instruction.phase);
    code.push_back(std::move(shifted.start));
    next.waits.push_back(std::move(shifted.wait));
    next.inputs[i] = shifted.slot;
  }
  return next;
}

// The gradient of one input that rotates.
struct Travelling {
  std::size_t input = 0;
  int goal = -1;      // where it is to be at last
  bool adds = false;  // to what is there
  int slot = -1;      // the sum so far
  Instruction arriving;
};

}  // namespace

void forward_in_ring(Program& program, Instruction instruction, const Rotation& rotation,
                     std::vector<Instruction>& code) {
  instruction.ring_steps = program.mesh.ways(rotation.atoms);
  for (instruction.ring_step = 0; instruction.ring_step < instruction.ring_steps;
       ++instruction.ring_step) {
    Next next = send_on(program, instruction, rotation, code);
    code.push_back(instruction);
    code.insert(code.end(), next.waits.begin(), next.waits.end());
    instruction.inputs = std::move(next.inputs);
  }
}

void backward_in_ring(Program& program, Instruction instruction, const Rotation& rotation,
                      std::vector<Instruction>& code) {
  const Op& op = program.graph->ops()[instruction.op];
  const std::vector<bool> adds = instruction.accumulate;
  std::vector<Travelling> gradients;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (instruction.grad_inputs[i] < 0 || !rotates(op, i, rotation)) continue;
    gradients.push_back({i, instruction.grad_inputs[i], adds[i], -1, {}});
    instruction.accumulate[i] = false;
  }
  instruction.ring_steps = program.mesh.ways(rotation.atoms);
  for (instruction.ring_step = 0; instruction.ring_step < instruction.ring_steps;
       ++instruction.ring_step) {
    const bool last = instruction.ring_step + 1 == instruction.ring_steps;
    Next next = send_on(program, instruction, rotation, code);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (!rotates(op, i, rotation))
        instruction.accumulate[i] = adds[i] || instruction.ring_step > 0;
    }
    for (const Travelling& g : gradients) {
      Slot share = program.slots[g.goal];
      share.alias_of = -1;
      share.ring = rotation.atoms;
      share.ring_step = instruction.ring_step;
      instruction.grad_inputs[g.input] = add_slot(program, share);
    }
    code.push_back(instruction);
    for (Travelling& g : gradients) {
      const int share = instruction.grad_inputs[g.input];
      if (instruction.ring_step == 0) {
        g.slot = share;
      } else {
        code.push_back(std::move(g.arriving));
        code.push_back(addition(program, g.slot, share));
      }
      Shift shifted = shift(program, g.slot, rotation, instruction.phase);
      if (last && !g.adds) {
        shifted.slot = shifted.start.outputs[0] = shifted.wait.outputs[0] = g.goal;
      }
      code.push_back(std::move(shifted.start));
      g.arriving = std::move(shifted.wait);
      g.slot = shifted.slot;
    }
    code.insert(code.end(), next.waits.begin(), next.waits.end());
    instruction.inputs = std::move(next.inputs);
  }
  for (Travelling& g : gradients) {
    code.push_back(std::move(g.arriving));
    if (g.adds) code.push_back(addition(program, g.goal, g.slot));
  }
}

}  // namespace mw
