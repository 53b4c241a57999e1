// Gives the facts of an instruction that scripts see.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/weave.h"

namespace mw {
namespace {

// All names that fit a set of ranks, and their roles: the axes that have just these ranks, or, if
// there are none, those that have these and more, or else those that the set consists of. Where an
// axis has borrowed all ranks of others, rows go over the axis that borrowed, and all else over the
// axes that lent, as the listing of a program (plan --program) prints them.
Json axes_of(const Program& program, const RankSet& set) {
  if (set.atoms.empty()) return Json::array();
  const auto has_all = [](const std::vector<int>& all, const std::vector<int>& some) {
    return std::all_of(some.begin(), some.end(), [&](int atom) {
      return std::find(all.begin(), all.end(), atom) != all.end();
    });
  };
  std::vector<const Axis*> exact, around, parts;
  for (const Axis& axis : program.mesh.axes()) {
    const bool holds = has_all(axis.atoms, set.atoms), lies_in = has_all(set.atoms, axis.atoms);
    const bool lent = axis.borrowed && !set.by_axis;
    if (lies_in) (holds ? exact : parts).push_back(&axis);
    if (holds && !lies_in && !lent) around.push_back(&axis);
  }
  if (exact.empty()) exact = around.empty() ? parts : around;
  const auto listed = [&](const Axis* axis) { return axis->borrowed == set.by_axis; };
  if (std::any_of(exact.begin(), exact.end(), listed)) {
    std::erase_if(exact, [&](const Axis* axis) { return !listed(axis); });
  } else {  // an axis that borrowed the ranks of several axes
    exact.insert(exact.end(), parts.begin(), parts.end());
  }
  std::set<std::string> names{program.name_of(set)};
  for (const Axis* axis : exact) {
    names.insert(axis->name);
    if (axis->role != Role::none) names.insert(name_of(axis->role));
  }
  return names;
}

Json names_of_parameters(const Program& program, const Bucket& bucket) {
  Json names = Json::array();
  for (const int p : bucket.parameters) names.push_back(program.name_of_parameter(p));
  return names;
}

}  // namespace

std::string kind_in_scripts(const Segment& segment) {
  switch (segment.kind) {
    case SegmentKind::forward:
      return "forward";
    case SegmentKind::backward:
      return "backward";
    case SegmentKind::dgrad:
      return "dgrad";
    case SegmentKind::wgrad:
      return "wgrad";
    case SegmentKind::braid:
      return "braid";
    case SegmentKind::gather:
      return "gather";
    case SegmentKind::finish:
      return segment.name;
    default:
      return "";
  }
}

struct InstructionFacts::View {
  explicit View(const Program& of) : program(of), rank(of, of.first()) {
    for (const Segment& segment : of.segments) {
      for (const Instruction& i : segment.code) {
        if (i.pending < 0 || !i.begins_transfer()) continue;
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

Json InstructionFacts::of(const Segment& segment, const Instruction& i) const {
  const Program& program = view_->program;
  Json facts = {{"code", name_of(i.code)},
                {"phase", i.phase},
                {"label", i.label},
                {"segment", kind_in_scripts(segment)}};
  facts["reads"] = facts["writes"] = Json::array();
  for_each_use(i, [&](int slot, Access access) {
    if (access != Access::release)
      facts[access == Access::read ? "reads" : "writes"].push_back(program.slots[slot].name);
  });
  int op = i.op;
  if (i.runs_op()) facts["piece"] = name_of(i.piece);
  if (op < 0 && i.pending >= 0) {
    const auto found = view_->served.find(i.pending);
    if (found != view_->served.end()) op = found->second;
  }
  if (op < 0 && i.code != Code::load) op = view_->served_by(i);
  if (op >= 0) {
    const Op& serves = program.graph->ops()[op];
    facts["op"] = serves.name;
    facts["kind"] = serves.kind();
    if (serves.layer >= 0) facts["layer"] = serves.layer;
  }
  // An exchange sends rows out to their experts or brings them back. Backward takes gradients the
  // other way, and its exchange is named as the forward one whose rows they are the gradients of.
  if (i.move.exchanges_rows()) {
    const bool out = i.move.to == program.graph->sparse.dims.front();
    facts["kind"] = out == (i.phase != std::string_view("backward")) ? "dispatch" : "combine";
  }
  if (i.has_bucket()) {
    facts["bucket"] = program.buckets[i.bucket].name;
    facts["parameters"] = names_of_parameters(program, program.buckets[i.bucket]);
  }
  if (i.move.stream >= 0)
    facts["stream"] = program.streams[static_cast<std::size_t>(i.move.stream)];
  if (!i.begins_transfer() && !i.awaits_transfer()) return facts;
  facts["move"] = name_of(i.move.kind);
  const RankSet set{i.move.atoms, i.move.stages, i.move.exchanges_rows()};
  facts["axis"] = program.name_of(set);
  facts["axes"] = axes_of(program, set);
  if (i.begins_transfer()) {
    std::int64_t bytes = 0;
    for (const Transfer& t : footprint(view_->rank, i, FootprintParts::work).transfers)
      bytes += t.wire * t.times;
    facts["bytes"] = bytes;
  }
  return facts;
}

Json facts_of(const Program& program, const Bucket& bucket) {
  return {{"bucket", bucket.name},
          {"parameters", names_of_parameters(program, bucket)},
          {"axis", program.mesh.name_of(bucket.reduce_atoms)},
          {"axes", axes_of(program, {bucket.reduce_atoms, bucket.stages, false})},
          {"code", "start"},
          {"phase", "gradients"}};
}

}  // namespace mw
