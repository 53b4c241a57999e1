// Gives the facts of an instruction that scripts see.
#include <map>
#include <string_view>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/weave.h"

namespace mw {

struct InstructionFacts::View {
  explicit View(const Program& of) : program(of), rank(of, of.first()) {
    for (const Segment& segment : of.segments) {
      for (const Instruction& i : segment.code) {
        if (i.pending < 0 || (i.code != Code::start && i.code != Code::hook_start)) continue;
        served.emplace(i.pending, served_by(i));
      }
    }
  }

  // The op that makes what the instruction writes, or else what it reads; -1: no op does.
  int served_by(const Instruction& i) const {
    for (const Slots* slots : {&i.outputs, &i.inputs}) {
      for (const int slot : *slots) {
        const int value = slot < 0 ? -1 : program.slots[slot].value;
        const int op = value < 0 ? -1 : program.graph->value(value).producer;
        if (op >= 0) return op;
      }
    }
    return -1;
  }

  const Program& program;
  const RankView rank;
  std::map<int, int> served;  // by pending: the op that makes what is moved; -1: none
};

InstructionFacts::InstructionFacts(const Program& program)
    : view_(std::make_unique<View>(program)) {}

InstructionFacts::~InstructionFacts() = default;

Json InstructionFacts::of(const Instruction& i) const {
  const Program& program = view_->program;
  Json facts = {{"code", name_of(i.code)}, {"phase", i.phase}, {"label", i.label}};
  int op = i.op;
  if (i.code == Code::compute && i.update == Update::none) facts["piece"] = name_of(i.piece);
  if (op < 0 && i.pending >= 0) {
    const auto found = view_->served.find(i.pending);
    if (found != view_->served.end()) op = found->second;
  }
  if (op < 0 && i.code != Code::load) op = view_->served_by(i);
  if (op >= 0) {
    const Op& serves = program.graph->ops()[op];
    facts["op"] = serves.name;
    facts["kind"] = serves.kind();
    facts["layer"] = serves.layer;
  }
  // An exchange sends rows out to their experts or brings them back. Backward takes gradients the
  // other way, and its exchange is named as the forward one whose rows they are the gradients of.
  if (i.move.exchanges_rows()) {
    const bool out = i.move.to == program.graph->sparse.dims.front();
    facts["kind"] = out == (i.phase != std::string_view("backward")) ? "dispatch" : "combine";
  }
  if (i.bucket >= 0) facts["bucket"] = program.buckets[i.bucket].name;
  const bool moves = i.code == Code::start || i.code == Code::wait || i.code == Code::hook_start ||
                     i.code == Code::hook_finish;
  if (!moves) return facts;
  facts["move"] = name_of(i.move.kind);
  facts["axis"] = program.name_of(RankSet{i.move.atoms, i.move.stages, i.move.exchanges_rows()});
  if (i.code == Code::start || i.code == Code::hook_start) {
    std::int64_t bytes = 0;
    for (const Transfer& t : footprint(view_->rank, i, Asks::work).transfers)
      bytes += t.wire * t.times;
    facts["bytes"] = bytes;
  }
  return facts;
}

}  // namespace mw
