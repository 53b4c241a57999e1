// Prints a program for people, one instruction a line.
#include "report/listing.h"

#include <fmt/format.h>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

namespace {

std::string name_of(const Program& program, const Instruction& i) {
  if (i.op >= 0) return name_of(i.piece);
  if (i.update == Update::none) return name_of(i.code);
  const auto& rule = program.buckets[i.bucket].rule;
  if (!rule) return "even out";
  return i.update == Update::direction ? rule->direction->name()
         : i.update == Update::whole   ? rule->whole->name()
                                       : rule->apply->name();
}

std::string describe(const RankView& rank, const Instruction& i) {
  const Program& program = rank.program();
  const Footprint made = footprint(rank, i, Asks::work);
  const bool waits = made.awaits >= 0 || (made.between_stages && made.begins < 0);
  std::string text = fmt::format("{:8} ", name_of(program, i));
  const std::string over =
      made.transfers.empty() ? "" : " over " + program.name_of(made.transfers.front().set);
  if (i.bucket >= 0 && i.parameter < 0 && (waits || made.begins >= 0 || i.update != Update::none)) {
    const Bucket& bucket = program.buckets[i.bucket];
    if (made.begins >= 0) text += std::string(name_of(i.move.kind)) + " ";
    text += fmt::format("{} ({} parameters){}", bucket.name, bucket.parameters.size(), over);
    if (i.code == Code::hook_start || i.code == Code::hook_finish)
      text += " by " + bucket.hook->name();
  } else if (!i.move.atoms.empty() && !waits && i.code != Code::copy) {
    text += fmt::format("{} {} ", name_of(i.move.kind), i.label);
    text += made.between_stages
                ? fmt::format("{} stage {}",
                              made.transfers.front().op == Collective::send ? "to" : "from",
                              i.move.peer)
                : "over " + program.mesh.name_of(i.move.atoms);
  } else if (i.op < 0 && !waits && i.inputs.size() == 1 && i.outputs.size() == 1) {
    text += program.slots[i.outputs[0]].name + " <- " + program.slots[i.inputs[0]].name;
  } else if (i.code == Code::settle || (i.code == Code::begin_sum && i.outputs.size() == 1)) {
    text += program.slots[i.outputs[0]].name;
    if (!i.contributing.empty())
      text += ", but on the first of " + program.mesh.name_of(i.contributing[0]);
  } else {
    text += i.label;
  }
  if (i.in_place) text += "  in place";
  if (i.ring) {
    text += fmt::format("  in {} ring steps over {}", i.ring_steps,
                        program.mesh.name_of(program.rotations.at(i.op).atoms));
  } else if (i.ring_alike > 0) {
    text += fmt::format("  ring steps {} to {} of {}", i.ring_step + 1,
                        i.ring_step + i.ring_alike + 1, i.ring_steps);
  } else if (i.ring_steps > 1 && i.code == Code::compute) {
    text += fmt::format("  {} {} of {}", program.slicing_of(i) != nullptr ? "slice" : "ring step",
                        i.ring_step + 1, i.ring_steps);
  }
  for (int slot : i.release) {
    if (program.slots[slot].persistent) text += "  lets go of " + program.slots[slot].name;
  }
  return text;
}

}  // namespace

std::string listing(const Program& program) {
  const RankView rank(program, program.first());
  std::string text =
      fmt::format("stage {} of {}, {}\n", program.stage, program.stages, program.mesh.describe());
  for (const Segment& s : program.segments) {
    text += fmt::format("\n{} ({} instructions)\n", s.name, s.code.size());
    for (const Instruction& i : s.code) {
      text += "  " + describe(rank, i) + "\n";
      if (!i.ring) continue;
      for (const Instruction& inner : ring_kinds(program, i))
        text += "    " + describe(rank, inner) + "\n";
    }
  }
  text += "\ntimeline:";
  for (const SegmentRun& a : program.timeline) {
    text += " " + program.segments[a.segment].name;
    if (a.microbatch >= 0) text += fmt::format("({})", a.microbatch);
  }
  return text + "\n";
}

}  // namespace mw
