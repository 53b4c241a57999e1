// Makes passes of a script's tables, runs their functions on the code that they edit, and says in a
// note what came of it.
#include "script/script_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "script/directives.h"

namespace mw {

namespace {

// A condition of a pass, and how many instructions it took in each stage.
struct MatchedCondition {
  bool reduces = false;  // it takes buckets
  InstructionFilter filter;
  std::string place, key;   // the script's line, or the key of the directive that has it
  std::map<int, int> took;  // how many, by stage
};

// The outcome of a pass in one plan, by stage, as programs may be finished several times.
struct Outcome {
  // by stage, then by verb or directive
  using Changes = std::map<int, std::map<std::string, EditOutcome>>;
  Changes moved, reduced;
  std::map<std::string, MatchedCondition> asked;

  void forget(int stage) {
    moved.erase(stage);
    for (auto& [where, one] : asked) {
      if (!one.reduces) one.took.erase(stage);
    }
  }
  void took(const InstructionFilter& filter, const std::string& place, const std::string& key,
            int stage, int count) {
    MatchedCondition& one = asked[place + key + filter.text()];
    one.filter = filter;
    one.place = place;
    one.key = key;
    one.took[stage] += count;
  }
};

// The code that a pass's function edits now.
struct Session {
  int number = 0;
  CodeEdit* code = nullptr;
  Outcome* outcome = nullptr;
};
thread_local Session session;
thread_local int sessions = 0;

// The text of what one verb or directive has done in all stages.
std::string text_of_moves(const std::string& verb, const EditOutcome& moved) {
  const bool stream = verb.starts_with("stream ");
  const std::string asked = plural(moved.asked, stream ? "transfer" : "instruction");
  if (moved.asked == 0) return verb + " changes nothing: no segment has what it names";
  if (moved.moved == 0)
    return fmt::format("{} changes none of {}, because {}", verb, asked, moved.why);
  if (stream) return fmt::format("{}: {}", verb, asked);
  return fmt::format("{}: {} of {} moved, by {:.3g} places on average", verb, moved.moved, asked,
                     static_cast<double>(moved.places) / moved.moved);
}

std::string text_of_reduction(const std::string& directive, const EditOutcome& reduced) {
  const std::string asked = plural(reduced.asked, "bucket");
  std::string text = reduced.moved == 0
                         ? fmt::format("{} changes none of {}", directive, asked)
                         : fmt::format("{}: {} of {}", directive, reduced.moved, asked);
  if (!reduced.why.empty()) text += ", because " + reduced.why;
  return reduced.later.empty() ? text : text + "; " + reduced.later;
}

std::string note_of(const std::string& name, const Outcome& outcome) {
  std::string text;
  const auto add = [&](const Outcome::Changes& changes, const auto& text_of_one) {
    std::map<std::string, EditOutcome> all;
    for (const auto& [stage, verbs] : changes)
      for (const auto& [verb, moved] : verbs) all[verb] += moved;
    for (const auto& [verb, moved] : all)
      text += (text.empty() ? "" : "; ") + text_of_one(verb, moved);
  };
  add(outcome.moved, text_of_moves);
  add(outcome.reduced, text_of_reduction);
  return text.empty() ? "" : fmt::format("{}: {}", name, text);
}

void visit_all(const std::vector<Program>& programs, const InstructionFilter::Visit& visit) {
  for (const Program& program : programs) {
    const InstructionFacts facts(program);
    for (const Segment& segment : program.segments) {
      if (kind_in_scripts(segment).empty()) continue;
      for (const Instruction& i : segment.code) visit(facts.of(segment, i));
    }
  }
}

// Refuses a pass one of whose conditions takes no instruction in any stage's program, or names an
// unknown axis.
void refuse_unmatched(const std::string& name, const Outcome& outcome,
                      const std::vector<Program>& programs) {
  for (const auto& [where, one] : outcome.asked) {
    const bool any = std::any_of(one.took.begin(), one.took.end(),
                                 [](const auto& stage) { return stage.second > 0; });
    if (any || one.filter.optional()) {
      auto unknown = one.filter.unknown_axis(programs.front().mesh.names_of_axes());
      if (!unknown) continue;
      unknown->message = fmt::format("the pass \"{}\": {}", name, unknown->message);
      unknown->key = one.key;
      unknown->place = one.place;
      throw Error(std::move(*unknown));
    }
    Problem problem{Stage::plan, "pass.matches", one.key,
                    fmt::format("the pass \"{}\" moves what matches {}, and no instruction does",
                                name, one.filter.text()),
                    one.filter.why_nothing([&](const InstructionFilter::Visit& visit) {
                      visit_all(programs, visit);
                    })};
    problem.place = one.place;
    throw Error(std::move(problem));
  }
}

// Carries out a directive. Its errors, which name no key of the experiment, get this one.
template <class Body>
auto of_directive(const std::string& key, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      if (problem.key.empty()) problem.key = key;
    }
    throw Error(std::move(problems));
  }
}

}  // namespace

const Options& pass_options() {
  static const Options options =
      Options()
          .text("name", "what plans and messages call it")
          .list("segments",
                "which code it edits: \"forward\", \"backward\", \"dgrad\", \"wgrad\", \"braid\", "
                "\"gather\", \"reduce\", \"totals\", \"update\"; left out: all")
          .optional()
          .choice("changes", {"order", "placement", "numerics"},
                  "what it may change, to which it is held: the order of instructions and the "
                  "streams of transfers; also when and where things are done; also numbers, by "
                  "summing in other parts")
          .fallback("order")
          .function("edit", "of the code of a segment: moves its instructions")
          .optional()
          .list("directives",
                "edits that need no function: { { \"stream\", { axis = \"ep\" }, "
                "\"exchange\" } }")
          .optional();
  return options;
}

PassTable::PassTable(const Json& table, std::string path, Problems& problems) {
  const std::size_t before = problems.list().size();
  values_ = pass_options().read(table, path, problems);
  if (problems.list().size() > before) return;
  name_ = values_.text("name");
  const auto change = values_.text("changes");
  changes_ = change == "order"       ? Pass::Changes::order
             : change == "placement" ? Pass::Changes::placement
                                     : Pass::Changes::numerics;
  read_segments(path, problems);
  read_directives(path, !table.contains("changes") && !values_.has("edit"), problems);
  if (directives_.empty() && !values_.has("edit") && problems.list().size() == before) {
    problems.add(Stage::options, "option.missing", path,
                 fmt::format("{}: it has neither a function `edit` nor directives", path),
                 "write edit = function(code) … end");
  }
}

void PassTable::read_segments(const std::string& path, Problems& problems) {
  if (!values_.has("segments")) return;
  for (const Json& one : values_.at("segments")) {
    const std::string kind = one.is_string() ? one.get<std::string>() : lua_text(one);
    const auto& kinds = kinds_of_segments();
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
      segments_.push_back(kind);
      continue;
    }
    problems.add(Stage::options, "option.value", path + ".segments",
                 fmt::format("{}.segments: there is no segment {}", path, kind),
                 nearest_or_all(kind, kinds));
  }
}

void PassTable::read_directives(const std::string& path, bool any, Problems& problems) {
  if (!values_.has("directives")) return;
  static const std::vector<std::string> names{"order", "placement", "numerics"};
  int number = 0;
  for (const Json& entry : values_.at("directives")) {
    const std::string key = fmt::format("{}.directives[{}]", path, ++number);
    auto directive = read_directive(entry, key, problems);
    if (!directive) continue;
    if (any) changes_ = std::max(changes_, directive->changes());
    if (directive->changes() > changes_) {
      problems.add(
          Stage::options, "pass.changes", key,
          fmt::format("{}: {} changes more than the order of instructions, and the pass says "
                      "changes = \"{}\"",
                      key, directive->name(), names[static_cast<std::size_t>(changes_)]),
          fmt::format("write changes = \"{}\"",
                      names[static_cast<std::size_t>(directive->changes())]));
    }
    directives_.push_back(std::move(directive));
  }
}

namespace {

// A pass in one draft: what its table says, and what came of it.
class ScriptPass {
 public:
  ScriptPass(std::string name, std::string option, std::vector<std::string> segments,
             std::vector<std::shared_ptr<const Directive>> directives)
      : name_(std::move(name)),
        option_(std::move(option)),
        segments_(std::move(segments)),
        directives_(std::move(directives)) {}

  std::function<Json(const std::vector<Json>&)> edit;  // the table's `edit`; empty: it has none

  bool reduces() const {
    return std::any_of(directives_.begin(), directives_.end(),
                       [](const auto& d) { return d->kind == Directive::Kind::reduce; });
  }

  // Carries out the directives about reductions: where `each`, those that have buckets reduced in
  // every microbatch; else the others.
  void reduce(Program& program, bool each) {
    for (std::size_t n = 0; n < directives_.size(); ++n) {
      const Directive& directive = *directives_[n];
      if (directive.kind != Directive::Kind::reduce ||
          (directive.after == Directive::After::each) != each)
        continue;
      const EditOutcome done = of_directive(key(n), [&] {
        return each ? reduce_each(directive, program) : reduce_after(directive, program);
      });
      outcome_.reduced[program.stage][directive.name()] = done;
      MatchedCondition& asked = outcome_.asked[key(n)];
      asked.filter = directive.filter;
      asked.key = key(n);
      asked.reduces = true;
      asked.took[program.stage] = done.asked;
    }
  }

  void rearrange(Program& program) {
    outcome_.forget(program.stage);
    const InstructionFacts facts(program);
    for (Segment& segment : program.segments) {
      const std::string kind = kind_in_scripts(segment);
      const bool wanted = segments_.empty() ||
                          std::find(segments_.begin(), segments_.end(), kind) != segments_.end();
      if (!kind.empty() && wanted) rearrange(program, segment, facts, kind);
    }
  }

  std::string note(const std::vector<Program>& programs) const {
    refuse_unmatched(name_, outcome_, programs);
    return note_of(name_, outcome_);
  }

 private:
  std::string key(std::size_t n) const { return fmt::format("{}.directives[{}]", option_, n + 1); }

  void rearrange(Program& program, Segment& segment, const InstructionFacts& facts,
                 const std::string& kind) {
    CodeEdit code(program, segment, facts);
    if (edit) call_edit(code, kind);
    for (std::size_t n = 0; n < directives_.size(); ++n) {
      const Directive& directive = *directives_[n];
      if (directive.kind == Directive::Kind::reduce) continue;
      Matches matches;
      outcome_.moved[program.stage][directive.name()] +=
          of_directive(key(n), [&] { return carry_out(directive, code, matches); });
      outcome_.took(directive.filter, "", key(n), program.stage, matches.filter);
      if (directive.kind == Directive::Kind::order)
        outcome_.took(directive.other, "", key(n), program.stage, matches.other);
    }
  }

  void call_edit(CodeEdit& code, const std::string& kind) {
    const Session outer = std::exchange(session, {++sessions, &code, &outcome_});
    const struct Restored {
      const Session& outer;
      ~Restored() { session = outer; }
    } restored{outer};
    edit({Json{{"edit", session.number},
               {"segment", kind},
               {"vstage", code.segment().vstage},
               {"stage", code.program().stage}}});
  }

  const std::string name_, option_;
  const std::vector<std::string> segments_;
  const std::vector<std::shared_ptr<const Directive>> directives_;
  Outcome outcome_;
};

}  // namespace

void PassTable::add_to(Draft& draft, const std::shared_ptr<const ScriptReach>& reach,
                       const std::string& option) const {
  const auto made = std::make_shared<ScriptPass>(name_, option, segments_, directives_);
  if (values_.has("edit")) {
    Values own(Json{{"edit", values_.at("edit")}});
    own.set_reach(reach);
    made->edit = own.function("edit");
  }
  Pass pass;
  pass.name = name_;
  pass.changes = changes_;
  if (made->reduces()) {
    pass.order = Pass::reductions;
    pass.run = [made](Program& program) { made->reduce(program, true); };
    pass.finish = [made](Program& program) { made->reduce(program, false); };
  }
  pass.rearrange = [made](Program& program) { made->rearrange(program); };
  pass.note = [made](const std::vector<Program>& programs) { return made->note(programs); };
  draft.add_pass(std::move(pass));
}

// --- What a pass's function calls ---

namespace {

class PassCall {
 public:
  PassCall(const Json& arguments, const std::string& place)
      : arguments_(arguments),
        place_(place),
        verb_(arguments.at(0).get<std::string>()),
        code_(*session.code) {}

  Json run() {
    if (verb_ == "find") return find();
    if (verb_ == "fact") return fact();
    if (verb_ == "text") return code_.text(number(2));
    if (verb_ == "hoist" || verb_ == "sink") return move();
    if (verb_ == "before" || verb_ == "after") {
      const bool up = verb_ == "before";
      const std::vector<int> own{number(2)}, other{number(3)};
      return told(
          verb_, up ? code_.order(own, other, Moves::first) : code_.order(other, own, Moves::then));
    }
    return told("stream " + text(3), code_.stream({number(2)}, text(3)));
  }

 private:
  const Json& argument(std::size_t n) const {
    static const Json none;
    return n < arguments_.size() ? arguments_[n] : none;
  }
  std::string text(std::size_t n) const {
    if (argument(n).is_string() && !argument(n).get<std::string>().empty())
      return argument(n).get<std::string>();
    throw wrong(fmt::format("a stream has a name; got {}", describe(argument(n))),
                "write start:stream \"exchange\"");
  }
  Error wrong(const std::string& what, const std::string& hint) const {
    return Error(Stage::script, "script.argument", "", what, hint);
  }
  int number(std::size_t n) const {
    const auto given = whole_number(argument(n));
    if (given && *given >= 0 && *given < code_.size()) return static_cast<int>(*given);
    throw wrong(
        fmt::format("{} takes an instruction of this code; got {}", verb_, describe(argument(n))),
        "take one that code:each gives");
  }
  Json find() {
    const auto wanted = InstructionFilter::of_call(argument(2), "code:each");
    const std::vector<int> found = code_.find(wanted);
    session.outcome->took(wanted, place_, "", code_.program().stage,
                          static_cast<int>(found.size()));
    return found;
  }

  Json fact() {
    const auto name = argument(3).get<std::string>();
    const Json facts = code_.facts(number(2));
    if (facts.contains(name)) return facts.at(name);
    const auto& known = names_of_facts();
    if (std::find(known.begin(), known.end(), name) != known.end()) return nullptr;
    const std::string near = did_you_mean(name, known);
    throw Error(Problem{Stage::script, "script.unknown", "",
                        fmt::format("an instruction has no field {}", name),
                        near.empty() ? "its fields: " + join(known) : near});
  }

  // How far a verb may move an instruction.
  struct MoveLimits {
    std::optional<InstructionFilter> over;
    int most = std::numeric_limits<int>::max();
  };
  MoveLimits how() const {
    MoveLimits found;
    const Json& given = argument(3);
    const std::string example =
        fmt::format("write :{} {{ over = {{ piece = \"wgrad\" }} }}", verb_);
    if (given.is_null()) return found;
    if (!given.is_object())
      throw wrong(fmt::format("{} takes a table; got {}", verb_, describe(given)), example);
    for (const auto& [key, value] : given.items()) {
      const auto whole = whole_number(value);
      if (key == "over") {
        found.over = InstructionFilter::of_call(value, "over");
        if (const auto unknown = found.over->unknown_axis(code_.program().mesh.names_of_axes()))
          throw wrong("over: " + unknown->message, unknown->hint);
      } else if (key == "by" && whole && *whole >= 0 && *whole < 1 << 30) {
        found.most = static_cast<int>(*whole);
      } else if (!key.starts_with("$")) {
        throw wrong(fmt::format("{} takes `over`, a condition, and `by`, a number of places; got "
                                "{} = {}",
                                verb_, key, describe(value)),
                    example);
      }
    }
    return found;
  }

  Json move() {
    const MoveLimits how = this->how();
    const InstructionFilter* past = how.over ? &*how.over : nullptr;
    const int number = this->number(2);
    return told(verb_, verb_ == "hoist" ? code_.hoist(number, past, how.most)
                                        : code_.sink(number, past, how.most));
  }

  // Returns the places moved by.
  Json told(const std::string& verb, const EditOutcome& moved) {
    session.outcome->moved[code_.program().stage][verb] += moved;
    return moved.places;
  }

  const Json& arguments_;
  const std::string& place_;
  const std::string verb_;
  CodeEdit& code_;
};

}  // namespace

Json call_pass(const Json& arguments, const std::string& place) {
  const auto number = whole_number(arguments.at(1));
  if (session.code == nullptr || !number || *number != session.number) {
    throw Error(Problem{Stage::script, "script.argument", "",
                        "the code of a pass is there only while its function `edit` runs",
                        "use it inside of that function, and keep none of it"});
  }
  return PassCall(arguments, place).run();
}

}  // namespace mw
