// Writes the forward segment of a virtual stage: what arrives, the ops with the moves of their
// operands, what leaves.
#include <algorithm>

#include "meshwright/engine/interrupt.h"
#include "plan/assembly.h"
#include "program/slots.h"

namespace mw {
namespace {

// Builds the forward segment of a virtual stage, with the receives before it and the sends after
// it.
class Forward {
 public:
  Forward(Assembly& assembly, int vstage)
      : assembly_(assembly),
        vstage_(vstage),
        program_(assembly.programs[assembly.stage(vstage)]),
        graph_(assembly.graph),
        derived_(assembly.derived),
        tape_(assembly.tapes[vstage]) {}

  void run() {
    tape_.value_slot.assign(graph_.values().size(), -1);
    tape_.view_slot.assign(derived_.views.size(), -1);
    tape_.saved.resize(graph_.ops().size());
    for (const ProgramParameter& p : program_.parameters) tape_.value_slot[p.value] = p.slot;
    const std::size_t ops = assembly_.partition.ops[vstage_].size();
    code_.reserve(2 * ops + 16);
    make_room(program_, 10 * ops + 64);  // room for backward's slots too
    arrive();
    load();
    for (int op : assembly_.partition.ops[vstage_]) {
      throw_if_stopped();
      compute(op);
    }
    leave();
    for (int loss : graph_.losses()) {
      if (tape_.value_slot[loss] < 0) continue;
      Instruction report;
      report.code = Code::add;
      report.inputs = {tape_.value_slot[loss]};
      report.outputs = {program_.loss};
      report.label = graph_.value(loss).name;
      report.contributing.emplace_back();
      const Layout& layout = derived_.layout[loss];
      for (std::size_t a = 0; a < layout.size(); ++a) {  // not along stages: each adds its own loss
        if (!layout[a].is_partial() && static_cast<int>(a) != program_.stage_atom)
          report.contributing[0].push_back(static_cast<int>(a));
      }
      code_.push_back(report);
    }
    Segment segment;
    segment.name = assembly_.name("forward", vstage_);
    segment.code = std::move(code_);
    segment.vstage = vstage_;
    program_.segments.push_back(std::move(segment));
  }

 private:
  void arrive() {
    const auto& crossings = assembly_.partition.crossings;
    for (std::size_t i = 0; i < crossings.size(); ++i) {
      const Crossing& c = crossings[i];
      if (c.to != vstage_) continue;
      Slot slot = slot_of(program_, c.value, derived_.layout[c.value]);
      if (assembly_.local(c)) {
        const int from = assembly_.tapes[c.from].value_slot[c.value];
        slot.alias_of = from;
        tape_.value_slot[c.value] = add_slot(program_, slot);
        code_.push_back(alias(program_, from, tape_.value_slot[c.value], "forward"));
        continue;
      }
      const int arrived = tape_.value_slot[c.value] = add_slot(program_, slot);
      const int pending = program_.pendings++;
      const int crossing = static_cast<int>(i);
      transfers(assembly_, SegmentKind::post, vstage_, false)
          .code.push_back(transfer(assembly_, crossing, false, Move::Kind::recv, Code::start,
                                   arrived, pending));
      transfers(assembly_, SegmentKind::receive, vstage_, false)
          .code.push_back(
              transfer(assembly_, crossing, false, Move::Kind::recv, Code::wait, arrived, pending));
    }
  }

  void leave() {
    const auto& crossings = assembly_.partition.crossings;
    for (std::size_t i = 0; i < crossings.size(); ++i) {
      const Crossing& c = crossings[i];
      if (c.from != vstage_ || assembly_.local(c)) continue;
      const int from = tape_.value_slot[c.value];
      Slot slot = slot_of(program_, c.value, derived_.layout[c.value]);
      slot.alias_of = from;
      const int leaving = add_slot(program_, slot);
      const int pending = program_.pendings++;
      const int crossing = static_cast<int>(i);
      code_.push_back(alias(program_, from, leaving, "forward"));
      code_.push_back(
          transfer(assembly_, crossing, false, Move::Kind::send, Code::start, leaving, pending));
      transfers(assembly_, SegmentKind::sent, vstage_, false)
          .code.push_back(
              transfer(assembly_, crossing, false, Move::Kind::send, Code::wait, leaving, pending));
    }
  }

  void load() {
    Instruction instruction;
    instruction.code = Code::load;
    instruction.label = "data";
    std::vector<bool> used(graph_.values().size(), false);
    for (int op : assembly_.partition.ops[vstage_]) {
      for (const Use& use : graph_.ops()[op].inputs) used[use.value] = true;
    }
    for (std::size_t v = 0; v < graph_.values().size(); ++v) {
      if (!used[v] || graph_.value(static_cast<int>(v)).source != Value::Source::data) continue;
      Slot slot = slot_of(program_, static_cast<int>(v), derived_.layout[v]);
      slot.category = Category::buffers;
      tape_.value_slot[v] = add_slot(program_, slot);
      instruction.outputs.push_back(tape_.value_slot[v]);
    }
    if (!instruction.outputs.empty()) code_.push_back(std::move(instruction));
  }

  // The slot that holds a view; its moves are emitted at the first use.
  int materialise(int index) {
    int& slot = tape_.view_slot[index];
    if (slot >= 0) return slot;
    const View& view = derived_.views[index];
    const std::size_t first = code_.size();
    slot = emit_moves(program_, code_, *view.forward, tape_.value_slot[view.value],
                      derived_.layout[view.value], "forward");
    tape_.entries.push_back({Tape::Entry::view, index});
    if (exchanges(index)) {
      mark_counts(first);
      for (int i = index + 1; i < static_cast<int>(derived_.views.size()); ++i) {
        if (tape_.value_slot[derived_.views[i].value] >= 0 && exchanges(i)) materialise(i);
      }
    }
    return slot;
  }

  // Whether a view's moves exchange rows. All exchanges are emitted together: ranks then wait for
  // each other once.
  bool exchanges(int index) const {
    const View& view = derived_.views[index];
    return std::any_of(view.forward->begin(), view.forward->end(),
                       [](const Move& move) { return move.exchanges_rows(); });
  }

  // Marks the exchanges from `from` on that bring counts along: those of rows to groups whose
  // counts are not known there yet.
  void mark_counts(std::size_t from) {
    for (std::size_t n = from; n < code_.size(); ++n) {
      Instruction& i = code_[n];
      if (i.code != Code::start || !i.move.exchanges_rows() ||
          i.move.to != graph_.sparse.dims.front())
        continue;
      std::optional<SparseRows> rows = sparse_rows(program_, i.outputs[0]);
      if (std::find(counted_.begin(), counted_.end(), *rows) != counted_.end()) continue;
      i.move.brings_counts = true;
      counted_.push_back(std::move(*rows));
    }
  }

  void compute(int index) {
    const Op& op = graph_.ops()[index];
    const OpTraits& traits = graph_.traits(index);
    Slots inputs;
    for (int view : derived_.view_of[index]) inputs.push_back(materialise(view));
    Instruction& instruction = code_.emplace_back();
    instruction.code = Code::compute;
    instruction.op = index;
    instruction.label = op.name;
    instruction.inputs = inputs;
    for (int value : op.outputs) {
      tape_.value_slot[value] =
          add_slot(program_, slot_of(program_, value, derived_.layout[value]));
      instruction.outputs.push_back(tape_.value_slot[value]);
    }
    for (const SavedValue& saved : traits.saved) {
      Slot slot;
      slot.name = op.name + "." + saved.name;
      slot.dims = saved.dims;
      slot.extra = saved.extra;
      slot.dtype = program_.dtype_of(Scalar::real, saved.fp32_at_least);
      slot.layout = saved_layout(index, saved.dims);
      instruction.saved.push_back(add_slot(program_, std::move(slot)));
    }
    tape_.saved[index] = instruction.saved;
    const auto rotation = program_.rotations.find(index);
    if (rotation != program_.rotations.end())
      instruction = in_ring(program_, std::move(instruction), rotation->second);
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

  Assembly& assembly_;
  const int vstage_;
  Program& program_;
  const Graph& graph_;
  const Derived& derived_;
  Tape& tape_;
  std::vector<Instruction> code_;
  std::vector<SparseRows> counted_;  // rows whose counts an exchange has brought
};

bool rotates(const Op& op, std::size_t input, const Rotation& rotation) {
  const Dims& dims = op.inputs[input].dims;
  return std::find(dims.begin(), dims.end(), rotation.dim) != dims.end();
}

// Whether all ranks hold equal parts of the dims that go round.
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

// Adds slots like `like` for `count` ring steps from step `first` on; only two, which take turns,
// where all parts are of one size.
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

void build_forward(Assembly& assembly, int vstage) {
  Forward(assembly, vstage).run();
}

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
