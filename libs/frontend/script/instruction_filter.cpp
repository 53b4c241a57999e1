// Reads conditions on instructions, asks them, and says why one matches nothing.
#include "script/instruction_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

// In a pattern "*" stands for any text.
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

bool is_number(const std::string& fact) {
  return fact == "bytes" || fact == "layer";
}

// What is wrong with a range: { at_least = 0 }. "": nothing.
std::string wrong_range(const Json& range, std::string& hint) {
  static const std::vector<std::string> keys{"at_least", "at_most"};
  int bounds = 0;
  for (const auto& [key, bound] : range.items()) {
    if (key == unnamed_key) return "a range has two bounds with names, and this one has others";
    if (key.starts_with("$")) continue;
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      const std::string near = did_you_mean(key, keys);
      if (!near.empty()) hint = near;
      return fmt::format("a range has no {}", key);
    }
    if (!bound.is_number() || !std::isfinite(bound.get<double>()))
      return fmt::format("{} is a number; got {}", key, describe(bound));
    ++bounds;
  }
  if (bounds == 0) return "a range has a bound";
  if (bounds == 2 && range.at("at_least").get<double>() > range.at("at_most").get<double>())
    return "no number is both at_least and at_most of this range";
  return "";
}

template <class Enum>
std::vector<std::string> names_up_to(Enum last) {
  std::vector<std::string> names;
  for (int n = 0; n <= static_cast<int>(last); ++n)
    names.emplace_back(name_of(static_cast<Enum>(n)));
  return names;
}

// All values that a fact can have; empty: any text.
const std::vector<std::string>& words_of(const std::string& fact) {
  static const std::map<std::string, std::vector<std::string>> words = {
      {"code", names_up_to(last_code)},
      {"move", names_up_to(Move::Kind::shift)},
      {"piece", names_up_to(Piece::wgrad)},
      {"segment", kinds_of_segments()}};
  static const std::vector<std::string> any;
  const auto found = words.find(fact);
  return found != words.end() ? found->second : any;
}

// What is wrong with the text that a condition wants of a fact. "": nothing.
std::string wrong_word(const std::string& fact, const std::string& wanted, std::string& hint) {
  const std::vector<std::string>& words = words_of(fact);
  const auto fits = [&](const std::string& word) { return matches_text(wanted, word); };
  if (words.empty() || std::any_of(words.begin(), words.end(), fits)) return "";
  hint = nearest_or_all(wanted, words);
  return fmt::format("there is no {} {}", fact, quote(wanted));
}

// What is wrong with the value that a condition wants of a fact. "": nothing.
std::string wrong_value(const std::string& fact, const Json& wanted, std::string& hint) {
  // Lua's {} may be a list or a table
  if (wanted.is_array() || (wanted.is_object() && wanted.empty())) {
    if (wanted.empty()) return "the list is empty, so that nothing could match";
    for (const Json& one : wanted) {
      if (one.is_array()) return "a list has texts and numbers, and this one has a list";
      if (std::string wrong = wrong_value(fact, one, hint); !wrong.empty()) return wrong;
    }
    return "";
  }
  if (!is_number(fact))
    return wanted.is_string() ? wrong_word(fact, wanted.get<std::string>(), hint)
                              : fmt::format("it is a text, or a list; got {}", describe(wanted));
  if (wanted.is_object()) return wrong_range(wanted, hint);
  return wanted.is_number()
             ? ""
             : fmt::format("it is a number, a range or a list; got {}", describe(wanted));
}

bool starts_transfer(const Json& facts) {
  return facts.at("code") == "start" || facts.at("code") == "hook_start";
}

// The axes of the strategies that ship.
const std::vector<std::string>& axes_that_ship() {
  static const std::vector<std::string> names{"cp", "diloco",  "dp",   "ep",        "pp",
                                              "tp", "ulysses", "zero", "zero_parts"};
  return names;
}

// Whether a text can name ranks: "dp", "d*", those of some stages or of a part of an axis,
// "pp[0,1]" and "dp.0", or of several of these together, "dp*pp[0,1]".
bool can_be_axis(const std::string& wanted, const std::vector<std::string>& known) {
  const auto any = [&](const auto& fits) { return std::any_of(known.begin(), known.end(), fits); };
  if (any([&](const std::string& name) { return matches_text(wanted, name); })) return true;
  if (wanted.find_first_of("*[.") == std::string::npos) return false;
  for (std::size_t from = 0, to = 0; from < wanted.size(); from = to + 1) {
    to = std::min(wanted.find('*', from), wanted.size());
    const std::string factor = wanted.substr(from, to - from);
    const std::string axis = factor.substr(0, factor.find_first_of("[."));
    if (!any([&](const std::string& name) { return name.find(axis) != std::string::npos; }))
      return false;
  }
  return true;
}

// The fact that a condition on `name` asks: on an axis, all names that fit the ranks.
Json::const_iterator fact_of(const Json& facts, const std::string& name) {
  return facts.find(name == "axis" ? "axes" : name);
}

}  // namespace

const std::vector<std::string>& kinds_of_segments() {
  static const std::vector<std::string> kinds{"forward", "backward", "dgrad",  "wgrad",
                                              "gather",  "reduce",   "totals", "update"};
  return kinds;
}

const std::vector<std::string>& names_of_facts() {
  static const std::vector<std::string> names{"axis",  "bucket", "bytes",   "code",   "kind",
                                              "label", "layer",  "move",    "op",     "phase",
                                              "piece", "reads",  "segment", "stream", "writes"};
  return names;
}

InstructionFilter::InstructionFilter(const Json& table, const std::string& path,
                                     Problems& problems) {
  // Lua's {} may be a list or a table
  if (!table.is_object() && !(table.is_array() && table.empty())) {
    problems.add(
        Stage::options, "option.type", path,
        fmt::format("{}: which instructions are meant is a table; got {}", path, describe(table)),
        "write { code = \"start\", axis = \"ep\" }");
    return;
  }
  const std::size_t before = problems.list().size();
  for (const auto& [fact, wanted] : table.items()) read(fact, wanted, path, problems);
  std::stable_sort(conditions_.begin(), conditions_.end(),
                   [](const auto& a, const auto& b) { return a.fact < b.fact; });
  if (conditions_.empty() && problems.list().size() == before) {
    problems.add(Stage::options, "option.missing", path,
                 fmt::format("{}: it says of no instruction which one it means", path),
                 "write { code = \"start\", axis = \"ep\" }");
  }
}

void InstructionFilter::read(const std::string& fact, const Json& wanted, const std::string& path,
                             Problems& problems) {
  if (fact == unnamed_key) {
    problems.add(Stage::options, "option.type", path,
                 fmt::format("{}: {} stands without the name of what is asked", path,
                             describe(wanted.is_array() ? wanted.at(0) : wanted)),
                 "write { code = \"start\", axis = \"ep\" }");
    return;
  }
  if (fact.starts_with("$")) return;
  const std::string key = path + "." + fact;
  if (fact == "optional") {
    if (wanted.is_boolean()) {
      optional_ = wanted.get<bool>();
    } else {
      problems.add(Stage::options, "option.type", key,
                   fmt::format("{}: it is true or false; got {}", key, describe(wanted)),
                   "write optional = true where no instruction need match");
    }
    return;
  }
  // another name of `code`, for lanes
  if (fact == "through") return read("code", wanted, path, problems);
  std::vector<std::string> known = names_of_facts();
  if (std::find(known.begin(), known.end(), fact) == known.end()) {
    known.emplace_back("through");
    problems.add(Stage::options, "option.unknown", key,
                 fmt::format("{}: an instruction has no {}", path, fact),
                 nearest_or_all(fact, known));
    return;
  }
  std::string hint = is_number(fact)
                         ? fmt::format("write {0} = 1, or {0} = {{ at_least = 1 }}", fact)
                         : fmt::format("write {0} = \"…\"; \"*\" stands for any text", fact);
  const std::string wrong = wrong_value(fact, wanted, hint);
  if (wrong.empty()) {
    conditions_.push_back({fact, wanted});
  } else {
    problems.add(Stage::options,
                 wrong.starts_with("a range has no ") ? "option.unknown"
                 : wrong.starts_with("there is no ")  ? "option.choice"
                                                      : "option.type",
                 key, fmt::format("{}: {}", key, wrong), hint);
  }
}

InstructionFilter InstructionFilter::of_call(const Json& table, const std::string& what) {
  Problems problems;
  InstructionFilter filter(table, what, problems);
  if (problems.empty()) return filter;
  std::vector<Problem> list = problems.list();
  for (Problem& problem : list) {
    problem.stage = Stage::script;
    problem.code = "script.argument";
    problem.key.clear();
  }
  throw Error(std::move(list));
}

bool InstructionFilter::holds(const Condition& condition, const Json& facts) {
  const auto fact = fact_of(facts, condition.fact);
  if (fact == facts.end()) return false;
  if (matches(condition.wanted, *fact)) return true;
  if (condition.fact != "bucket") return false;
  // a bucket also matches if all of its parameters do
  const Json& parameters = facts.at("parameters");
  return !parameters.empty() &&
         std::all_of(parameters.begin(), parameters.end(),
                     [&](const Json& one) { return matches(condition.wanted, one); });
}

bool InstructionFilter::takes(const Json& facts) const {
  if (starts_ && !starts_transfer(facts)) return false;
  return std::all_of(conditions_.begin(), conditions_.end(),
                     [&](const Condition& condition) { return holds(condition, facts); });
}

std::string InstructionFilter::misspelt_kind(const std::vector<std::string>& known) const {
  for (const auto& [fact, wanted] : conditions_) {
    for (const Json& one : wanted.is_array() ? wanted : Json::array({wanted})) {
      const auto fits = [&](const std::string& kind) { return matches(one, kind); };
      if (fact != "kind" || std::any_of(known.begin(), known.end(), fits)) continue;
      if (std::string near = did_you_mean(one.get<std::string>(), known); !near.empty())
        return near;
    }
  }
  return "";
}

std::optional<Problem> InstructionFilter::unknown_axis(
    const std::vector<std::string>& of_plan) const {
  const auto asks = [](const Condition& condition) { return condition.fact == "axis"; };
  if (std::none_of(conditions_.begin(), conditions_.end(), asks)) return std::nullopt;
  std::vector<std::string> known = of_plan;
  const std::vector<std::string>& roles = names_of_roles();
  known.insert(known.end(), roles.begin(), roles.end());
  known.insert(known.end(), axes_that_ship().begin(), axes_that_ship().end());
  known.emplace_back("world");
  for (const auto& [fact, wanted] : conditions_) {
    for (const Json& one : wanted.is_array() ? wanted : Json::array({wanted})) {
      if (fact != "axis" || can_be_axis(one.get<std::string>(), known)) continue;
      const std::string near = did_you_mean(one.get<std::string>(), known);
      if (near.empty() && optional_) continue;
      return Problem{Stage::options, "option.choice", "",
                     fmt::format("there is no axis {}, in this plan or of a strategy that ships",
                                 lua_text(one)),
                     !near.empty()
                         ? near
                         : fmt::format("the plan's axes are {}; where other plans have this one, "
                                       "write optional = true",
                                       join(of_plan))};
    }
  }
  return std::nullopt;
}

bool InstructionFilter::may_take(const Instruction& i) const {
  if (starts_ && !i.begins_transfer()) return false;
  return std::all_of(conditions_.begin(), conditions_.end(), [&](const Condition& condition) {
    const std::string& fact = condition.fact;
    if (fact == "code") return matches(condition.wanted, name_of(i.code));
    if (fact == "phase") return matches(condition.wanted, i.phase);
    if (fact == "piece") return i.computes() && matches(condition.wanted, name_of(i.piece));
    if (fact == "axis" || fact == "move") return !i.move.atoms.empty();
    if (fact == "bucket") return i.has_bucket();
    if (fact == "stream") return i.move.stream >= 0;
    return true;
  });
}

std::string InstructionFilter::text() const {
  std::string text;
  for (const Condition& condition : conditions_)
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", condition.fact,
                        lua_text(condition.wanted));
  return "{ " + text + (starts_ ? " } and starts a transfer" : " }");
}

std::string InstructionFilter::why_nothing(const std::function<void(const Visit&)>& visit) const {
  std::vector<int> alone(conditions_.size(), 0);
  std::vector<std::set<std::string>> there(conditions_.size());
  visit([&](const Json& facts) {
    if (starts_ && !starts_transfer(facts)) return;
    for (std::size_t c = 0; c < conditions_.size(); ++c) {
      alone[c] += holds(conditions_[c], facts) ? 1 : 0;
      const auto fact = fact_of(facts, conditions_[c].fact);
      if (fact == facts.end() || there[c].size() > 200) continue;
      for (const Json& one : fact->is_array() ? *fact : Json::array({*fact}))
        there[c].insert(one.is_string() ? one.get<std::string>() : lua_text(one));
    }
  });
  const std::string these =
      starts_ ? "the instructions that start a transfer" : "these instructions";
  const std::string among = starts_ ? fmt::format("of {}, ", these) : "";
  std::string each;
  for (std::size_t c = 0; c < conditions_.size(); ++c) {
    const auto& [fact, wanted] = conditions_[c];
    if (alone[c] > 0) {
      each += fmt::format("{}{} with {} = {}", each.empty() ? "" : ", ", alone[c], fact,
                          lua_text(wanted));
      continue;
    }
    const std::vector<std::string> known(there[c].begin(), there[c].end());
    const std::string near =
        wanted.is_string() ? did_you_mean(wanted.get<std::string>(), known) : "";
    if (!near.empty()) return near;
    if (known.empty()) return fmt::format("none of {} has any {}", these, fact);
    return fmt::format(
        "{}{} is one of {}", among, fact,
        join({known.begin(), known.begin() + std::min<std::ptrdiff_t>(12, std::ssize(known))}));
  }
  return fmt::format("{}there are {}; none is all of it", among, each);
}

}  // namespace mw
