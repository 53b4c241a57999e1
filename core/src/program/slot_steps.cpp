// Makes the instructions between two slots, each with its label.
#include "program/slot_steps.h"

namespace mw {

Instruction alias(const Program& program, int from, int to, const char* phase) {
  Instruction i;
  i.code = Code::alias;
  i.inputs = {from};
  i.outputs = {to};
  i.phase = phase;
  i.label = program.slots[to].name;
  return i;
}

Instruction addition(const Program& program, int to, int share) {
  Instruction i;
  i.code = Code::add;
  i.phase = "backward";
  i.label = program.slots[to].name;
  i.inputs = {share};
  i.outputs = {to};
  return i;
}

}  // namespace mw
