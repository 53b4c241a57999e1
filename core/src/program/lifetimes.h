// Which instruction uses a slot last: what may be overwritten in place, and what may be released.
#pragma once

#include <utility>
#include <vector>

#include "meshwright/program.h"

namespace mw {

// The run of the timeline and the instruction in it after which each parameter's gradient is whole,
// (-1, -1) if nothing touches it.
std::vector<std::pair<int, int>> gradients_ready(const Program& program);

// for_each_slot for loops over whole programs: `visit` is no function object.
template <class Visit>
void visit_slots(const Instruction& instruction, const Visit& visit) {
  for (const auto* list : {&instruction.inputs, &instruction.outputs, &instruction.saved,
                           &instruction.grad_outputs, &instruction.grad_inputs}) {
    for (const int slot : *list) {
      if (slot >= 0) visit(slot);
    }
  }
}

// Calls `visit(slot, writes)` for each slot that the instruction reads or writes. An input that it
// changes in place counts as read.
template <class Visit>
void visit_operands(const Instruction& instruction, const Visit& visit) {
  const bool backward = instruction.code == Code::compute && instruction.piece != Piece::forward;
  const auto all = [&](const Slots& slots, bool writes) {
    for (const int slot : slots)
      if (slot >= 0) visit(slot, writes);
  };
  all(instruction.inputs, false);
  all(instruction.outputs, !backward);
  all(instruction.saved, !backward);
  all(instruction.grad_outputs, false);
  all(instruction.grad_inputs, true);
}

// Sets Instruction::in_place and Slot::alias_of.
void grant_in_place(Program& program);

// Sets Instruction::release.
void note_releases(Program& program);

}  // namespace mw
