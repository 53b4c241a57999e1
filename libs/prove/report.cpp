// Says in words where a proof ended and why, and what a proof covers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "prove/stage.h"

namespace mw {
namespace proving {

std::string list_of(const Mesh& mesh, const std::vector<int>& atoms) {
  return atoms.empty() ? "no axis" : mesh.name_of(atoms);
}

std::vector<AxisDifference> differences(const Mesh& mesh, const Layout& needed,
                                        const Layout& found) {
  std::vector<AxisDifference> list;
  for (std::size_t a = 0; a < needed.size() && a < found.size(); ++a) {
    if (mesh.atoms()[a].ways == 1 || needed[a] == found[a]) continue;
    list.push_back({mesh.atoms()[a].name, to_string(needed[a]), to_string(found[a])});
  }
  return list;
}

std::string mend_of(const Mesh& mesh, const Layout& needed, const Layout& found) {
  std::vector<int> atoms;
  Placement from, to;
  for (std::size_t a = 0; a < needed.size() && a < found.size(); ++a) {
    if (mesh.atoms()[a].ways == 1 || needed[a] == found[a]) continue;
    if (!atoms.empty() && (from != found[a] || to != needed[a])) return "";
    from = found[a];
    to = needed[a];
    atoms.push_back(static_cast<int>(a));
  }
  if (atoms.empty()) return "";
  if (from.is_partial() && to.is_partial()) return "";
  if (to.is_partial() && !from.is_replicate()) return "";
  const Move::Kind kind =
      from.is_partial() ? (to.is_shard() ? Move::Kind::reduce_scatter : Move::Kind::all_reduce)
      : from.is_shard() ? (to.is_shard() ? Move::Kind::all_to_all : Move::Kind::all_gather)
      : to.is_shard()   ? Move::Kind::slice
                        : Move::Kind::keep;
  return fmt::format("{} over {}", name_of(kind), list_of(mesh, atoms));
}

std::string listed(const Program& program, const Instruction& i) {
  std::string text;
  if (i.code == Code::compute && i.update == Update::none) {
    text = name_of(i.piece);
  } else if (i.code == Code::compute) {
    text = name_of(i.update);
  } else {
    text = name_of(i.code);
  }
  text = fmt::format("{:8}", text);
  if ((i.code == Code::start || i.code == Code::move) && !i.move.atoms.empty()) {
    text += fmt::format(" {}", name_of(i.move.kind));
  }
  if (!i.label.empty()) text += " " + i.label;
  if (i.code == Code::start &&
      (i.move.kind == Move::Kind::send || i.move.kind == Move::Kind::recv)) {
    text +=
        fmt::format(" {} stage {}", i.move.kind == Move::Kind::send ? "to" : "from", i.move.peer);
  } else if ((i.code == Code::start || i.code == Code::move) && !i.move.atoms.empty()) {
    text += " over " + list_of(program.mesh, i.move.atoms);
  }
  if (i.in_place) text += "  in place";
  return text;
}

std::string text_of(const Program& program, const Where& where) {
  if (where.run < 0 || where.run >= static_cast<int>(program.timeline.size()))
    return "the step's begin";
  const SegmentRun& run = program.timeline[where.run];
  const Segment& segment = program.segments[run.segment];
  std::string text;
  int microbatch = run.microbatch;
  if (where.instruction >= 0 && where.instruction < static_cast<int>(segment.code.size())) {
    const Instruction& i = segment.code[where.instruction];
    text = listed(program, i);
    microbatch = microbatch_of(run, i.lane);
  }
  text += fmt::format(" ({}, run {}", segment.name, where.run);
  if (microbatch >= 0) text += fmt::format(" of microbatch {}", microbatch);
  text += fmt::format(", instruction {}", where.instruction);
  if (where.ring_step >= 0) text += fmt::format(", ring step {}", where.ring_step);
  return text + ")";
}

Refusal StageProof::refusal(std::string code, std::string message) const {
  Refusal made;
  made.code = std::move(code);
  made.message = std::move(message);
  made.stage = program_.stage;
  made.where = fmt::format("stage {}", program_.stage);
  if (at_ == nullptr || where_.run < 0 || where_.run >= static_cast<int>(program_.timeline.size()))
    return made;
  const SegmentRun& run = program_.timeline[where_.run];
  made.run = where_.run;
  made.segment = run.segment;
  made.microbatch = microbatch_of(run, at_->lane);
  made.instruction = where_.instruction;
  made.ring_step = where_.ring_step;
  made.where += fmt::format(", {}, run {}", program_.segments[run.segment].name, where_.run);
  if (made.microbatch >= 0) made.where += fmt::format(" (microbatch {})", made.microbatch);
  made.where += fmt::format(", instruction {}", where_.instruction);
  if (where_.ring_step >= 0) made.where += fmt::format(", ring step {}", where_.ring_step);
  made.listed = listed(program_, *at_);
  return made;
}

}  // namespace proving

std::string Refusal::text() const {
  std::string text = "refused: " + (where.empty() ? "the plan" : where) + ":\n";
  if (!listed.empty()) text += "    " + listed + "\n";
  text += "  " + message + "\n";
  const auto lines = [&](const char* head, const std::vector<std::string>& list) {
    constexpr std::size_t most = 8;
    for (std::size_t k = 0; k < std::min(list.size(), most); ++k)
      text += fmt::format("    {:12} {}\n", k == 0 ? head : "", list[k]);
    if (list.size() > most) text += fmt::format("    {:12} and {} more\n", "", list.size() - most);
  };
  lines("missing", missing);
  lines("too often", twice);
  if (!written.empty()) text += fmt::format("    {:12} {}\n", "written by", written);
  if (!mend.empty()) text += fmt::format("    {:12} {}\n", "correction", mend);
  if (!by.empty()) text += "  added by " + by + "\n";
  text.pop_back();
  return text;
}

Problem Refusal::problem() const {
  std::string said = where.empty() ? message : where + ": " + message;
  if (!missing.empty()) said += fmt::format("; missing: {}", missing.front());
  if (missing.size() > 1) said += fmt::format(" and {} more", missing.size() - 1);
  if (!twice.empty()) said += fmt::format("; too often: {}", twice.front());
  std::string hint = mend.empty() ? "the plan cannot be proved to compute what one rank would; "
                                    "`plan --program` lists its instructions"
                                  : "this would correct it: " + mend;
  if (!by.empty()) hint += "; the instruction is added by " + by;
  return {Stage::plan, code, key, std::move(said), std::move(hint)};
}

std::string Proof::text() const {
  if (!proved()) {
    std::string text;
    for (const Refusal& refusal : refusals) text += (text.empty() ? "" : "\n") + refusal.text();
    return text;
  }
  std::string text = fmt::format(
      "proved: {} stage{}, {} instructions, {} runs, {} parameters x {} microbatch{} counted once; "
      "no "
      "deadlock; {:.2f} s; {} lemmas",
      stages, stages == 1 ? "" : "s", instructions, runs, parameters, microbatches,
      microbatches == 1 ? "" : "es", seconds, lemmas.size());
  for (const std::string& note : notes) text += "; but for this: " + note;
  return text;
}

}  // namespace mw
