// Helpers that the builders of forward and backward segments share: new slots, redistributions, and
// the segments that transfer between stages.
#include "plan/assembly.h"

#include <fmt/format.h>

#include <algorithm>

namespace mw {

std::string Assembly::name(const char* kind, int vstage) const {
  return partition.vstages() == 1 ? kind : std::string(kind) + "." + std::to_string(vstage);
}

void make_room(Program& program, std::size_t slots) {
  const std::size_t wanted = program.slots.size() + slots;
  if (wanted > program.slots.capacity())
    program.slots.reserve(std::max(wanted, 2 * program.slots.capacity()));
}

Slot slot_of(const Program& program, int value, const Layout& layout) {
  const Value& v = program.graph->value(value);
  Slot slot;
  slot.name = v.name;
  slot.dims = v.dims;
  slot.layout = layout;
  slot.dtype = program.dtype_of(v.scalar, v.fp32_at_least);
  slot.value = value;
  return slot;
}

Instruction transfer(const Assembly& assembly, int crossing, bool gradient, Move::Kind kind,
                     Code code, int slot, int pending) {
  const Crossing& c = assembly.partition.crossings[crossing];
  const bool sends = kind == Move::Kind::send;
  // activations go to later virtual stages, gradients to earlier ones
  const bool to_later = sends != gradient;
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
  if (list.empty()) return slot;
  Layout now = layout;
  const int first = slot;
  const std::string label = program.slots[slot].name;
  const auto emit = [&](Code what, const Move& move, Dtype dtype) {
    Slot target = program.slots[slot];
    const bool own = dtype == program.slots[first].dtype;
    if (!own || slot != first)
      target.name = own ? label : fmt::format("{} in {}", label, name_of(dtype));
    target.layout = now;
    target.dtype = dtype;
    target.persistent = false;
    target.alias_of = -1;
    target.category = Category::activations;
    Instruction& instruction = code.emplace_back();
    instruction.code = what;
    instruction.inputs = {slot};
    instruction.outputs = {slot = add_slot(program, std::move(target))};
    instruction.move = move;
    instruction.phase = phase;
    instruction.label = label;
  };
  for (const Move& move : list) {
    const Dtype own = program.slots[slot].dtype;
    const bool sums =
        (move.kind == Move::Kind::all_reduce || move.kind == Move::Kind::reduce_scatter) &&
        move.reduction == Reduction::sum;
    const Dtype in = sums ? wider(own, program.reduce_dtype) : own;
    if (in != own) emit(Code::copy, move, in);
    now = after(now, move);
    emit(communicates(move.kind) ? Code::start : Code::move, move, in);
    if (communicates(move.kind)) {
      code.back().pending = program.pendings++;
      code.push_back(code.back());
      code.back().code = Code::wait;
    }
    if (in != own) emit(Code::copy, move, own);
  }
  return slot;
}

}  // namespace mw
