// Reads conditions on instructions, asks them, and says why one matches nothing.
#include "script/instruction_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// A text with "*" for anything.
bool matches_text(const std::string& pattern, const std::string& text) {
  std::size_t p = 0, t = 0, star = std::string::npos, from = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches(const Json& wanted, const Json& found) {
  if (wanted.is_array()) {
    return std::any_of(wanted.begin(), wanted.end(),
                       [&](const Json& one) { return matches(one, found); });
  }
  if (found.is_array()) {
    return std::any_of(found.begin(), found.end(),
                       [&](const Json& one) { return matches(wanted, one); });
  }
  if (wanted.is_string() && found.is_string())
    return matches_text(wanted.get<std::string>(), found.get<std::string>());
  if (wanted.is_object() && found.is_number()) {
    const double number = found.get<double>();
    return number >= wanted.value("at_least", number) && number <= wanted.value("at_most", number);
  }
  return wanted == found;
}

// A range with a key that it does not know would match every number.
void check_range(const Json& wanted, const std::string& path, Problems& problems) {
  if (!wanted.is_object()) return;
  for (const auto& [key, bound] : wanted.items()) {
    if (key.starts_with("$") || key == "at_least" || key == "at_most") continue;
    const std::string near = did_you_mean(key, {"at_least", "at_most"});
    problems.add(Stage::options, "option.unknown", path + "." + key,
                 fmt::format("{}: a range has no {}", path, key),
                 near.empty() ? "there are: at_least, at_most" : near);
  }
}

// All names that fit the ranks of a move, and their roles: the axes that have just these ranks, or,
// if there are none, the axes that have these and more. Where an axis has all ranks of one that
// lends them, rows go over the former and all else over the latter, as listings have it.
Json axes_of(const Program& program, const Move& move) {
  std::vector<const Axis*> exact, within;
  for (const Axis& axis : program.mesh.axes()) {
    const bool all = std::all_of(move.atoms.begin(), move.atoms.end(), [&](int atom) {
      return std::find(axis.atoms.begin(), axis.atoms.end(), atom) != axis.atoms.end();
    });
    if (all) (axis.atoms.size() == move.atoms.size() ? exact : within).push_back(&axis);
  }
  if (exact.empty()) exact = within;
  const auto listed = [&](const Axis* axis) { return axis->borrowed == move.exchanges_rows(); };
  if (std::any_of(exact.begin(), exact.end(), listed))
    std::erase_if(exact, [&](const Axis* axis) { return !listed(axis); });
  std::set<std::string> names{
      program.name_of(RankSet{move.atoms, move.stages, move.exchanges_rows()})};
  for (const Axis* axis : exact) add_names_of(*axis, names);
  return names;
}

Json names_of_slots(const Program& program, std::initializer_list<const Slots*> lists) {
  Json names = Json::array();
  for (const Slots* list : lists) {
    for (const int slot : *list) {
      if (slot >= 0) names.push_back(program.slots[slot].name);
    }
  }
  return names;
}

// The fact that a condition on `name` asks: one on an axis asks all names that fit the ranks.
Json::const_iterator fact_of(const Json& facts, const std::string& name) {
  return facts.find(name == "axis" ? "axes" : name);
}

}  // namespace

void add_names_of(const Axis& axis, std::set<std::string>& names) {
  names.insert(axis.name);
  if (axis.role != Role::none) names.insert(name_of(axis.role));
}

Json names_of_parameters(const Program& program, const Bucket& bucket) {
  Json names = Json::array();
  for (const int p : bucket.parameters) names.push_back(program.name_of_parameter(p));
  return names;
}

const std::vector<std::string>& names_of_facts() {
  static const std::vector<std::string> names{"axis",  "bucket", "bytes",   "code",   "kind",
                                              "label", "layer",  "move",    "op",     "phase",
                                              "piece", "reads",  "segment", "stream", "writes"};
  return names;
}

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

Json SegmentFacts::of(const Segment& segment, const Instruction& i) const {
  Json facts = facts_.of(i);
  facts["segment"] = kind_in_scripts(segment);
  const bool backward = i.code == Code::compute && i.piece != Piece::forward;
  facts["reads"] =
      backward ? names_of_slots(program_, {&i.inputs, &i.outputs, &i.saved, &i.grad_outputs})
               : names_of_slots(program_, {&i.inputs});
  facts["writes"] = backward ? names_of_slots(program_, {&i.grad_inputs})
                             : names_of_slots(program_, {&i.outputs, &i.saved});
  if (facts.contains("axis")) facts["axes"] = axes_of(program_, i.move);
  if (i.move.stream >= 0)
    facts["stream"] = program_.streams[static_cast<std::size_t>(i.move.stream)];
  if (i.bucket >= 0)
    facts["parameters"] = names_of_parameters(program_, program_.buckets[i.bucket]);
  return facts;
}

InstructionFilter::InstructionFilter(const Json& table, const std::string& path,
                                     Problems& problems) {
  if (!table.is_object() && !(table.is_array() && table.empty())) {  // Lua's {} may be either
    problems.add(
        Stage::options, "option.type", path,
        fmt::format("{}: which instructions are meant is a table; got {}", path, describe(table)),
        "write { code = \"start\", axis = \"ep\" }");
    return;
  }
  const std::vector<std::string>& known = names_of_facts();
  for (const auto& [fact, wanted] : table.items()) {
    if (fact.starts_with("$")) continue;
    if (fact == "optional") {
      optional_ = wanted.is_boolean() && wanted.get<bool>();
      continue;
    }
    if (std::find(known.begin(), known.end(), fact) == known.end()) {
      const std::string near = did_you_mean(fact, known);
      problems.add(Stage::options, "option.unknown", path + "." + fact,
                   fmt::format("{}: an instruction has no {}", path, fact),
                   near.empty() ? "there are: " + join(known) : near);
      continue;
    }
    check_range(wanted, path + "." + fact, problems);
    conditions_.push_back({fact, wanted});
  }
  if (conditions_.empty() && problems.empty()) {
    problems.add(Stage::options, "option.missing", path,
                 fmt::format("{}: it says of no instruction which one it means", path),
                 "write { code = \"start\", axis = \"ep\" }");
  }
}

bool InstructionFilter::holds(const Condition& condition, const Json& facts) {
  const auto fact = fact_of(facts, condition.fact);
  if (fact == facts.end()) return false;
  if (matches(condition.wanted, *fact)) return true;
  if (condition.fact != "bucket") return false;
  const Json& parameters = facts.at("parameters");  // a bucket by what all of it is
  return !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(),
                     [&](const Json& one) { return matches(condition.wanted, one); });
}

bool InstructionFilter::takes(const Json& facts) const {
  return std::all_of(conditions_.begin(), conditions_.end(),
                     [&](const Condition& condition) { return holds(condition, facts); });
}

void InstructionFilter::keep_to_starts() {
  conditions_.push_back({"code", {"start", "hook_start"}});
}

bool InstructionFilter::may_take(const Instruction& i) const {
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    const std::string& fact = condition.fact;
    if (fact == "code") return matches(condition.wanted, name_of(i.code));
    if (fact == "phase") return matches(condition.wanted, i.phase);
    if (fact == "piece")
      return i.code == Code::compute && matches(condition.wanted, name_of(i.piece));
    if (fact == "axis" || fact == "move") return !i.move.atoms.empty();
    if (fact == "bucket") return i.bucket >= 0;
    if (fact == "stream") return i.move.stream >= 0;
    return true;
  });
}

std::string InstructionFilter::text() const {
  std::string text;
  for (const Condition& condition : conditions_)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", condition.fact,
                        json_text(condition.wanted));
  return "{ " + text + " }";
}

std::string InstructionFilter::why_nothing(const std::vector<Program>& programs) const {
  std::vector<int> alone(conditions_.size(), 0);
  std::vector<std::set<std::string>> there(conditions_.size());
  for (const Program& program : programs) {
    const SegmentFacts all(program);
    for (const Segment& segment : program.segments) {
      if (kind_in_scripts(segment).empty()) continue;
      for (const Instruction& i : segment.code) {
        const Json facts = all.of(segment, i);
        for (std::size_t c = 0; c < conditions_.size(); ++c) {
          alone[c] += holds(conditions_[c], facts) ? 1 : 0;
          const auto fact = fact_of(facts, conditions_[c].fact);
          if (fact == facts.end() || there[c].size() > 200) continue;
          for (const Json& one : fact->is_array() ? *fact : Json::array({*fact}))
            there[c].insert(one.is_string() ? one.get<std::string>() : json_text(one));
        }
      }
    }
  }
  std::string each;
  for (std::size_t c = 0; c < conditions_.size(); ++c) {
    const auto& [fact, wanted] = conditions_[c];
    if (alone[c] > 0) {
      each += fmt::format("{}{} with {} = {}", each.empty() ? "" : ", ", alone[c], fact,
                          json_text(wanted));
      continue;
    }
    const std::vector<std::string> known(there[c].begin(), there[c].end());
    const std::string near =
        wanted.is_string() ? did_you_mean(wanted.get<std::string>(), known) : "";
    if (!near.empty()) return near;
    if (known.empty()) return fmt::format("no instruction of this plan has any {}", fact);
    return fmt::format(
        "{} is one of {}", fact,
        join({known.begin(), known.begin() + std::min<std::ptrdiff_t>(12, std::ssize(known))}));
  }
  return fmt::format("there are {}; none is all of it", each);
}

}  // namespace mw
