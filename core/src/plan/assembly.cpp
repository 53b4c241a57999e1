// What the builders of forward and backward share: new slots, names of segments, copies and
// additions, and the segments that transfer between stages.
#include "plan/assembly.h"

namespace mw {

std::string Assembly::name(const char* kind, int vstage) const {
  return partition.vstages() == 1 ? kind : std::string(kind) + "." + std::to_string(vstage);
}

int add_slot(Program& program, Slot slot) {
  program.slots.push_back(std::move(slot));
  return static_cast<int>(program.slots.size()) - 1;
}

Slot slot_of(const Graph& graph, int value, const Layout& layout) {
  const Value& v = graph.value(value);
  Slot slot;
  slot.name = v.name;
  slot.dims = v.dims;
  slot.layout = layout;
  slot.scalar = v.scalar;
  slot.fp32_at_least = v.fp32_at_least;
  slot.value = value;
  return slot;
}

Instruction hand(const Program& program, int from, int to, const char* phase) {
  Instruction i;
  i.code = Code::hand;
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

Instruction transfer(const Assembly& assembly, int crossing, bool gradient, Move::Kind kind,
                     Code code, int slot, int pending) {
  const Crossing& c = assembly.partition.crossings[crossing];
  const bool sends = kind == Move::Kind::send;
  const bool to_later = sends != gradient;  // activations go up, gradients come down
  Instruction i;
  i.code = code;
  i.move.kind = kind;
  i.move.atoms = {assembly.partition.stage_atom};
  i.move.peer = assembly.stage(to_later ? c.to : c.from);
  i.move.tag = 2 * crossing + (gradient ? 1 : 0);
  i.pending = pending;
  i.phase = gradient ? "backward" : "forward";
  i.label = (gradient ? "d " : "") + assembly.graph.value(c.value).name;
  (sends ? i.inputs : i.outputs) = {slot};
  return i;
}

Segment& transfers(Assembly& assembly, SegmentKind kind, int vstage, bool gradient) {
  Program& program = assembly.programs[assembly.stage(vstage)];
  const int known = program.segment(kind, vstage, gradient);
  if (known >= 0) return program.segments[known];
  const char* what = kind == SegmentKind::post      ? "post"
                     : kind == SegmentKind::receive ? "receive"
                                                    : "sent";
  Segment segment;
  segment.name = std::string(what) + " " + assembly.name(gradient ? "backward" : "forward", vstage);
  segment.kind = kind;
  segment.vstage = vstage;
  segment.gradient = gradient;
  program.segments.push_back(std::move(segment));
  return program.segments.back();
}

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
    const int moved = add_slot(program, target);
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

}  // namespace mw
