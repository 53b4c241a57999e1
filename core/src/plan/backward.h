// The backward half of the derivation: the tape in reverse, gradients as slots.
#pragma once

#include <map>
#include <vector>

#include "meshwright/program.h"
#include "plan/derive.h"

namespace mw {

// What forward leaves behind: the order of ops and views, and their slots.
struct Tape {
  struct Entry {
    enum Kind { op, view } kind;
    int index;
  };
  std::vector<Entry> entries;
  std::vector<int> value_slot, view_slot;  // -1: not materialised
  std::vector<std::vector<int>> saved;     // for each op
  std::map<int, int> parameter_of;         // value -> Program::parameters
};

// Appends the instructions of `list` that start from `slot` in `layout`; returns the last slot.
int emit_moves(Program& program, std::vector<Instruction>& code, const std::vector<Move>& list,
               int slot, const Layout& layout, const char* phase);

// Appends segment "backward", or, split, segments "dgrad" and "wgrad".
void build_backward(Program& program, const Derived& derived, const Tape& tape, bool split);

}  // namespace mw
