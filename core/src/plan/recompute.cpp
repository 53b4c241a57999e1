// Recompute: what backward reads and forward need not keep is made again from what is kept (Chen
// et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; Korthikanti et al. 2022, section
// 5). The pass repeats chosen forward instructions in backward.
#include "plan/build.h"

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/interrupt.h"

namespace mw {
namespace {

class Recomputer {
 public:
  Recomputer(Program& program, const RecomputeSet& set, int vstage)
      : program_(program),
        set_(set),
        forward_(program.segment(SegmentKind::forward, vstage)),
        writers_(program.slots.size()),
        readers_(program.slots.size()),
        block_(program.slots.size(), unknown) {
    throw_if_stopped();
    if (forward_ < 0) return;
    const std::vector<Instruction>& code = program.segments[forward_].code;
    for (std::size_t i = 0; i < code.size(); ++i) {
      for (int slot : written(code[i])) writers_[slot].push_back(static_cast<int>(i));
      for (int slot : read(code[i])) readers_[slot].push_back(static_cast<int>(i));
    }
    // A virtual stage has a whole backward, and, if it is split, a "dgrad" with a "wgrad" after it.
    for (const SegmentKind kind : {SegmentKind::backward, SegmentKind::dgrad}) {
      const int segment = program.segment(kind, vstage);
      if (segment < 0) continue;
      const int later =
          kind == SegmentKind::dgrad ? program.segment(SegmentKind::wgrad, vstage) : -1;
      repeat_in(segment, later);
    }
  }

 private:
  static std::vector<int> written(const Instruction& i) {
    std::vector<int> slots;
    if (i.code == Code::load) return slots;
    if (i.code == Code::compute && i.piece != Piece::forward) return slots;
    slots.insert(slots.end(), i.outputs.begin(), i.outputs.end());
    slots.insert(slots.end(), i.saved.begin(), i.saved.end());
    return slots;
  }
  static std::vector<int> read(const Instruction& i) {
    std::vector<int> slots = i.inputs;
    if (i.code == Code::compute && i.piece != Piece::forward) {  // a compute of backward
      for (const auto* more : {&i.outputs, &i.saved})
        slots.insert(slots.end(), more->begin(), more->end());
    }
    slots.erase(std::remove(slots.begin(), slots.end(), -1), slots.end());
    return slots;
  }

  // A move, or a cast that belongs to one.
  static bool is_moved(const Instruction& i) {
    return i.code == Code::start || i.code == Code::move || i.code == Code::copy;
  }
  const Instruction& forward(int index) const { return program_.segments[forward_].code[index]; }
  int block_of(int layer) const { return layer < 0 ? -1 : layer / set_.every; }

  // The block of layers that makes a slot again; -1: it is kept.
  int block(int slot) {
    if (slot >= static_cast<int>(block_.size())) return -1;  // recompute's own copy of a slot
    if (block_[slot] != unknown) return block_[slot];
    block_[slot] = -1;
    if (writers_[slot].empty() || program_.slots[slot].persistent) return -1;
    const Instruction& first = forward(writers_[slot].front());
    const std::vector<int>& readers = readers_[slot];
    int block = -1;
    if (first.code == Code::compute) {
      if (!set_.ops[first.op]) return -1;
      block = block_of(layer(first.op));
    } else if (is_moved(first)) {
      if (first.move.kind == Move::Kind::send || first.move.kind == Move::Kind::recv) return -1;
      if (set_.keep_moves && communicates(first.move.kind)) return -1;
      const int value = program_.slots[slot].value;
      const bool gathers = set_.gathers && first.move.kind == Move::Kind::all_gather &&
                           value >= 0 && program_.graph->value(value).source == Value::Source::op;
      // A move is made again in the block of its readers.
      for (int reader : readers) {
        const Instruction& i = forward(reader);
        if (i.code == Code::compute && !set_.ops[i.op] && !gathers) return -1;
        const int theirs = block_of_reader(reader);
        if (theirs < 0 || (block >= 0 && theirs != block)) return -1;
        block = theirs;
      }
    }
    for (int reader : readers) {  // what another block starts from is kept
      if (block_of_reader(reader) != block && forward(reader).code != Code::wait) block = -1;
    }
    return block_[slot] = block;
  }

  // The block in which an instruction of forward is made again, or in which its backward runs.
  int block_of_reader(int index) {
    const Instruction& i = forward(index);
    if (i.code == Code::compute) return block_of(layer(i.op));
    if (is_moved(i) || i.code == Code::wait) {
      const int slot = i.outputs.empty() ? -1 : i.outputs[0];
      if (slot < 0) return -1;
      for (int reader : readers_[slot]) {
        if (reader != index) return block_of_reader(reader);
      }
    }
    return -1;
  }

  int layer(int op) const { return program_.graph->ops()[op].layer; }

  // A part of a block that is made again at one place. What belongs to one slice of a chain of ops
  // (Program::slicing) is made again when that slice's backward begins; the rest of the block,
  // before.
  struct RepeatedPart {
    int block = -1, chain = -1, slice = -1;
    RepeatedPart rest() const { return {block, -1, -1}; }
    friend auto operator<=>(const RepeatedPart&, const RepeatedPart&) = default;
  };
  struct Repeated {
    std::set<int> instructions;  // indices in forward's code
    int at = 0;                  // index of the backward instruction that they stand before
  };
  using Parts = std::map<RepeatedPart, Repeated>;

  // The part of a block to which an instruction belongs.
  RepeatedPart part_of(const Instruction& i, int block) const {
    if (const Slicing* sliced = program_.slicing_of(i)) return {block, sliced->chain, i.slice};
    for (const auto* slots : {&i.inputs, &i.outputs}) {
      for (const int slot : *slots) {
        if (slot < 0 || program_.slots[slot].slices == 1) continue;
        const Slot& of = program_.slots[slot];
        const int producer = program_.graph->value(of.value).producer;
        return {block, program_.slicing.at(producer).chain, of.slice};
      }
    }
    return {block, -1, -1};
  }

  void repeat_in(int segment, int later) {
    Parts parts;
    const std::vector<Instruction> before = program_.segments[segment].code;
    const auto look = [&](const std::vector<Instruction>& code, bool own) {
      for (std::size_t n = 0; n < code.size(); ++n) {
        for (int slot : read(code[n])) {
          const int b = block(slot);
          if (b < 0) continue;
          const int at = own ? static_cast<int>(n) : static_cast<int>(before.size());
          need(slot, part_of(code[n], b), at, parts);
        }
      }
    };
    look(before, true);
    if (later >= 0) look(program_.segments[later].code, false);
    // instructions that the block's rest needs too are made with the rest
    for (auto& [part, again] : parts) {
      const auto rest = parts.find(part.rest());
      if (part.chain < 0 || rest == parts.end()) continue;
      std::erase_if(again.instructions,
                    [&](int i) { return rest->second.instructions.count(i) > 0; });
    }
    std::map<int, int> made;  // slot -> its copy
    std::vector<Instruction> code;
    for (std::size_t n = 0; n <= before.size(); ++n) {
      for (const auto& [part, again] : parts) {
        if (again.at == static_cast<int>(n)) copy(again.instructions, made, code);
      }
      if (n < before.size()) code.push_back(before[n]);
    }
    // What another block read before this one is made again reads what forward kept.
    std::map<int, int> there, of_copy;
    for (const auto& [slot, copy] : made) of_copy[copy] = slot;
    for (Instruction& i : code) {
      if (i.phase != phase_) {
        replace(i, there);
        continue;
      }
      for (const auto* slots : {&i.outputs, &i.saved}) {
        for (int slot : *slots) {
          if (const auto of = of_copy.find(slot); of != of_copy.end()) there[of->second] = slot;
        }
      }
    }
    program_.segments[segment].code = std::move(code);
    if (later < 0) return;
    // What forward keeps for another block is read where it is kept, as in a whole backward.
    std::erase_if(made, [&](const auto& each) { return block(each.first) < 0; });
    for (Instruction& i : program_.segments[later].code) replace(i, made);
  }

  // Notes the instructions that make a slot, which `reader` needs before the instruction `at`.
  void need(int slot, const RepeatedPart& reader, int at, Parts& parts) {
    for (int writer : writers_.at(slot)) {
      RepeatedPart part = part_of(forward(writer), reader.block);
      if (part != reader) part = part.rest();
      const auto [again, fresh] = parts.try_emplace(part, Repeated{{}, at});
      again->second.at = std::min(again->second.at, at);
      if (!again->second.instructions.insert(writer).second) continue;
      for (int input : read(forward(writer))) {
        if (block(input) >= 0) need(input, part, at, parts);
      }
    }
  }

  void copy(const std::set<int>& instructions, std::map<int, int>& made,
            std::vector<Instruction>& code) {
    std::map<int, int> pendings;
    for (int index : instructions) {
      Instruction again = forward(index);
      again.phase = phase_;
      again.move.brings_counts = false;  // forward's exchange brought them
      if (again.pending >= 0) {
        const auto [pending, fresh] = pendings.try_emplace(again.pending, program_.pendings);
        if (fresh) ++program_.pendings;
        again.pending = pending->second;
      }
      if (again.ring) again.ring = another(*again.ring);
      for (auto* slots : {&again.outputs, &again.saved}) {
        for (int& slot : *slots) {
          const auto [own, fresh] = made.try_emplace(slot, static_cast<int>(program_.slots.size()));
          if (fresh) program_.slots.push_back(program_.slots[slot]);
          slot = own->second;
        }
      }
      for (int& slot : again.inputs) {
        const auto own = made.find(slot);
        if (own != made.end()) slot = own->second;
      }
      code.push_back(std::move(again));
    }
  }

  // The ring with pendings and slots of its own.
  std::shared_ptr<const std::vector<Rotating>> another(std::vector<Rotating> ring) {
    for (Rotating& r : ring) {
      r.pending = program_.pendings++;
      for (int& slot : r.shards) {
        const Slot like = program_.slots[slot];
        slot = static_cast<int>(program_.slots.size());
        program_.slots.push_back(like);
      }
    }
    return std::make_shared<const std::vector<Rotating>>(std::move(ring));
  }

  static void replace(Instruction& i, const std::map<int, int>& made) {
    const bool backward = i.code == Code::compute && i.piece != Piece::forward;
    for (auto* slots :
         {&i.inputs, backward ? &i.outputs : nullptr, backward ? &i.saved : nullptr}) {
      if (slots == nullptr) continue;
      for (int& slot : *slots) {
        const auto own = made.find(slot);
        if (own != made.end()) slot = own->second;
      }
    }
  }

  static constexpr const char* phase_ = "recompute";
  Program& program_;
  const RecomputeSet& set_;
  const int forward_;
  static constexpr int unknown = -2;
  std::vector<std::vector<int>> writers_, readers_;  // by slot: indices in forward's code
  std::vector<int> block_;                           // by slot: the result of block(), or `unknown`
};

}  // namespace

bool RecomputeSet::any() const {
  return gathers || std::any_of(ops.begin(), ops.end(), [](bool op) { return op; });
}

void recompute(Program& program, const RecomputeSet& set) {
  if (!set.any()) return;
  std::set<int> vstages;
  for (const Segment& segment : program.segments) {
    if (segment.kind == SegmentKind::forward) vstages.insert(segment.vstage);
  }
  for (int vstage : vstages) Recomputer(program, set, vstage);
}

}  // namespace mw
