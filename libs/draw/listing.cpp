// Prints a program for people, one instruction per line.
#include "draw/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/text.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

namespace {

std::string name_of(const Program& program, const Instruction& i) {
  if (i.op >= 0) return name_of(i.piece);
  if (i.update == Update::none) return name_of(i.code);
  const std::initializer_list<Update> no_ops = {Update::swap, Update::outer_gradient, Update::gram};
  if (std::ranges::count(no_ops, i.update) > 0) return name_of(i.update);
  const UpdateRule* const rule = rule_of_update(program, i);
  if (!rule) return "even out";
  return i.update == Update::direction ? rule->direction->name()
         : i.update == Update::whole   ? rule->whole->name()
         : i.update == Update::gram_step
             ? fmt::format("{} step {}", rule->whole->name(), i.round + 1)
         : i.update == Update::sums ? rule->summing->name() + " sums"
                                    : rule->apply->name();
}

std::string describe(const RankView& rank, const Instruction& i) {
  const Program& program = rank.program();
  const Footprint made = footprint(rank, i, FootprintParts::work);
  const bool waits = made.awaits >= 0 || (made.between_stages && made.begins < 0);
  std::string text = fmt::format("{:8} ", name_of(program, i));
  const std::string over =
      made.transfers.empty() ? "" : " over " + program.name_of(made.transfers.front().set);
  if (i.has_bucket() && i.parameter < 0 &&
      (waits || made.begins >= 0 || i.update != Update::none)) {
    const Bucket& bucket = program.buckets[i.bucket];
    if (made.begins >= 0) text += std::string(name_of(i.move.kind)) + " ";
    text += fmt::format("{} ({} parameters){}", bucket.name, bucket.parameters.size(), over);
    if (i.runs_hook()) text += " by " + bucket.hook->name();
  } else if (!i.move.atoms.empty() && !waits && !i.copies()) {
    text += fmt::format("{} {} ", name_of(i.move.kind), i.label);
    text += made.between_stages
                ? fmt::format("{} stage {}",
                              made.transfers.front().op == Collective::send ? "to" : "from",
                              i.move.peer)
                : "over " + program.name_of({i.move.atoms, {}, i.move.exchanges_rows()});
  } else if (i.op < 0 && !waits && i.inputs.size() == 1 && i.outputs.size() == 1) {
    text += program.slots[i.outputs[0]].name + " <- " + program.slots[i.inputs[0]].name;
  } else if ((i.begins_sums() || i.settles_sum()) && i.outputs.size() == 1) {
    text += program.slots[i.outputs[0]].name;
    if (!i.contributing.empty())
      text += ", but on the first of " + program.mesh.name_of(i.contributing[0]);
  } else {
    text += i.label;
  }
  if (i.move.stream >= 0 && made.begins >= 0)
    text += " on stream " + program.streams[static_cast<std::size_t>(i.move.stream)];
  if (i.in_place) text += "  in place";
  if (i.ring) {
    text += fmt::format("  in {} ring steps over {}", i.ring_steps,
                        program.mesh.name_of(program.rotations.at(i.op).atoms));
  } else if (i.ring_alike > 0) {
    text += fmt::format("  ring steps {} to {} of {}", i.ring_step + 1,
                        i.ring_step + i.ring_alike + 1, i.ring_steps);
  } else if (i.parts() > 1 && i.computes()) {
    text +=
        fmt::format("  {} {} of {}", i.slices > 1 ? "slice" : "ring step", i.part() + 1, i.parts());
  }
  for (int slot : i.release) {
    if (program.slots[slot].persistent) text += "  lets go of " + program.slots[slot].name;
  }
  return text;
}

// The line of an instruction, and below that of a ring the lines of its steps.
std::vector<std::string> lines_of(const RankView& rank, const Instruction& i) {
  std::vector<std::string> lines{describe(rank, i)};
  if (!i.ring) return lines;
  for (const Instruction& inner : ring_kinds(rank.program(), i))
    lines.push_back("  " + describe(rank, inner));
  return lines;
}

// A column for each lane of a braid, under the name of its segment.
std::string columns(const RankView& rank, const Segment& braid) {
  constexpr std::size_t most = 72;  // widest column; a longer line runs into the next column
  std::vector<std::size_t> at{0};   // where each column begins
  std::vector<std::vector<std::string>> code;
  for (const Instruction& i : braid.code) code.push_back(lines_of(rank, i));
  std::string text;
  for (std::size_t lane = 0; lane < braid.lanes.size(); ++lane) {
    std::size_t widest = braid.lanes[lane].segment.size();
    for (std::size_t n = 0; n < code.size(); ++n) {
      if (braid.code[n].lane != static_cast<int>(lane)) continue;
      for (const std::string& line : code[n])
        widest = std::max(widest, std::min(line.size(), most));
    }
    text.resize(at.back(), ' ');
    text += braid.lanes[lane].segment;
    at.push_back(at.back() + widest + 2);
  }
  text = "  " + text + "\n";
  for (std::size_t n = 0; n < code.size(); ++n) {
    for (const std::string& line : code[n])
      text +=
          fmt::format("  {:{}}{}\n", "", at[static_cast<std::size_t>(braid.code[n].lane)], line);
  }
  return text;
}

}  // namespace

std::string listing(const Program& program) {
  const RankView rank(program, program.first());
  std::string text =
      fmt::format("stage {} of {}, {}\n", program.stage, program.stages, program.mesh.describe());
  std::set<std::string> only_lanes;  // segments that run only as lanes of braids
  for (const Segment& s : program.segments) {
    for (const Lane& lane : s.lanes) only_lanes.insert(lane.segment);
  }
  for (const SegmentRun& a : program.timeline) only_lanes.erase(program.segments[a.segment].name);
  for (const Segment& s : program.segments) {
    if (only_lanes.contains(s.name)) continue;
    if (s.kind == SegmentKind::braid) {
      text += fmt::format("\n{} ({} instructions in {} lanes, woven by {})\n", s.name,
                          s.code.size(), s.lanes.size(), s.weave);
      text += columns(rank, s);
      continue;
    }
    text += fmt::format("\n{} ({} instructions)\n", s.name, s.code.size());
    for (const Instruction& i : s.code) {
      for (const std::string& line : lines_of(rank, i)) text += "  " + line + "\n";
    }
  }
  text += "\ntimeline:";
  for (const SegmentRun& a : program.timeline) {
    text += " " + program.segments[a.segment].name;
    if (a.microbatch < 0) continue;
    text += fmt::format("({}", a.microbatch);
    for (const int other : a.others) text += fmt::format("+{}", other);
    text += ")";
  }
  return text + "\n";
}

}  // namespace mw
