// Asks a plan's strategies for their axes and makes the mesh of them.
#include "plan/axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/divisors.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_name = 64;

// Names that no axis may have: "world" means all ranks, "none" no axis, and a role ("data") the
// axes that have it.
const std::vector<std::string>& taken_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list = {"world", "none"};
    list.insert(list.end(), names_of_roles().begin(), names_of_roles().end());
    return list;
  }();
  return names;
}

bool is_name(const std::string& text) {
  const auto letter = [](unsigned char c) { return c < 0x80 && std::isalpha(c) != 0; };
  return !text.empty() && text.size() <= longest_name && letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [&](unsigned char c) {
           return letter(c) || (c >= '0' && c <= '9') || c == '_';
         });
}

class AxisCollector {
 public:
  AxisCollector(Problems& problems, std::vector<WrongWays>& wrong)
      : problems_(problems), wrong_(wrong) {}

  void ask(StrategyChoice& choice) {
    const PluginPlace speaker{choice.name, choice.path};
    try {
      choice.axes =
          call_plugin(speaker, "said which axes it needs", [&] { return choice.strategy->axes(); });
    } catch (const Error& error) {
      problems_.add(error);
      return;
    }
    for (const AxisRequest& axis : choice.axes) take(axis, speaker);
  }

  Mesh mesh() {
    if (!problems_.empty()) return {};
    Mesh mesh;
    try {
      mesh = Mesh(own_);
    } catch (const Error& error) {
      add(error, askers_.size() == 1 ? askers_.front() : PluginPlace{"", "plan"});
      return {};
    }
    for (const auto& [axis, speaker] : borrowed_) borrow(mesh, axis, speaker);
    return mesh;
  }

 private:
  void refuse(const PluginPlace& speaker, const char* code, std::string message, std::string hint) {
    problems_.add(
        attributed(speaker, {Stage::plan, code, "", std::move(message), std::move(hint)}));
  }

  void add(const Error& error, const PluginPlace& speaker) {
    for (const Problem& p : error.problems()) problems_.add(attributed(speaker, p));
  }

  void take(const AxisRequest& axis, const PluginPlace& speaker) {
    if (!is_name(axis.name) ||
        std::find(taken_names().begin(), taken_names().end(), axis.name) != taken_names().end()) {
      refuse(speaker, "axis.name",
             fmt::format("it asks for an axis named \"{}\"",
                         readable(std::string_view(axis.name).substr(0, longest_name))),
             fmt::format("a name is a letter, then letters, digits and \"_\", {} at most; taken "
                         "are {}",
                         longest_name, join(taken_names())));
      return;
    }
    if (axis.ways < 1 || axis.ways > Mesh::most_ranks) {
      refuse(speaker, "axis.ways",
             fmt::format("it asks for the axis {} with {} ranks", axis.name, axis.ways),
             fmt::format("an axis has 1 to {}", Mesh::most_ranks));
      return;
    }
    const auto [known, fresh] = asked_.emplace(axis.name, speaker);
    if (!fresh) {
      const PluginPlace& first = known->second;
      const bool same = first.plugin == speaker.plugin && first.place == speaker.place;
      refuse(speaker, "axis.twice",
             same ? fmt::format("it asks for the axis {} twice", axis.name)
                  : fmt::format("it asks for the axis {}, and so does {}{}", axis.name,
                                first.plugin, first.place.empty() ? "" : " (" + first.place + ")"),
             same                             ? "give each axis a name of its own"
             : first.plugin == speaker.plugin ? "name each strategy once"
                                              : "leave one of them out");
      return;
    }
    if (!axis.borrow.empty()) {
      borrowed_.emplace_back(axis, speaker);
      return;
    }
    own_.push_back({axis.name, axis.ways, axis.role});
    if (askers_.empty() || askers_.back().place != speaker.place) askers_.push_back(speaker);
  }

  void borrow(Mesh& mesh, const AxisRequest& axis, const PluginPlace& speaker) {
    std::vector<std::string> lenders, wanted;
    for (const std::string& name : axis.borrow) {
      const std::optional<Role> role = role_of(name);
      wanted.push_back(role ? "any " + name + " axis" : name);
      if (role) {
        for (const Axis& lender : mesh.with_role(*role)) lenders.push_back(lender.name);
      } else if (mesh.has(name)) {
        lenders.push_back(name);
      }
    }
    if (lenders.empty()) {
      refuse(speaker, "axis.unknown",
             fmt::format("{}({}) takes ranks of {}, and the plan has none of these axes", axis.name,
                         axis.ways, readable(join(wanted))),
             role_of(axis.borrow.front())
                 ? fmt::format("add a strategy that splits the {}, in {} ways", axis.borrow.front(),
                               axis.ways)
                 : fmt::format("add {}({})", readable(axis.borrow.front()), axis.ways));
      return;
    }
    try {
      mesh.borrow(axis.name, axis.ways, lenders, axis.role);
    } catch (const Error& error) {
      WrongWays ways{speaker.plugin, problems_.list().size(), {}, {}, true};
      for (int w : mesh.borrowable(lenders, axis.ways)) {
        w < axis.ways ? ways.below.insert(ways.below.begin(), w)
                      : ways.above.insert(ways.above.end(), w);
      }
      wrong_.push_back(std::move(ways));
      add(error, speaker);
    }
  }

  Problems& problems_;
  std::vector<WrongWays>& wrong_;
  std::vector<OwnAxis> own_;
  std::vector<PluginPlace> askers_;  // the strategies that asked for own_
  std::vector<std::pair<AxisRequest, PluginPlace>> borrowed_;
  std::map<std::string, PluginPlace> asked_;
};

// Refuses an entry that repeats an earlier one and has no axis (sp() on tp's ranks). Axes that are
// asked for twice are refused already.
void refuse_doubles(const std::vector<StrategyChoice>& strategies, Problems& problems) {
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    const StrategyChoice& again = strategies[i];
    const auto first =
        std::find_if(strategies.begin(), strategies.begin() + static_cast<std::ptrdiff_t>(i),
                     [&](const StrategyChoice& other) {
                       return other.name == again.name && other.options == again.options &&
                              other.axes.empty() && again.axes.empty();
                     });
    if (first == strategies.begin() + static_cast<std::ptrdiff_t>(i)) continue;
    problems.add(attributed(
        {again.name, again.path},
        {Stage::plan, "plan.twice", "",
         fmt::format("it is what {} asks for already, with the same options", first->path),
         "leave one of them out"}));
  }
}

// numbers of ways that are tried in each direction
constexpr std::size_t most_tried = 4;

// A problem's code and key, which stay in another trial; numbers in its message may not.
using Fault = std::pair<std::string, std::string>;
Fault fault_of(const Problem& problem) {
  return {problem.code, problem.key};
}

class Trial {
 public:
  Trial(const PlanRequest& request, const Problems& problems)
      : request_(request), problems_(problems) {
    for (const Problem& p : problems.list()) known_.insert(fault_of(p));
  }

  bool possible(const std::string& strategy) const {
    const StrategyChoice* choice = find(strategy);
    return choice != nullptr && choice->with_ways;
  }

  // Whether this number of ways mends the problem and brings no new one. Where the mesh could not
  // be made (WrongWays::all), problems that the plan has with one way are not new.
  bool accepts(const WrongWays& wrong, int ways) const {
    const std::optional<Problems> found = problems_with(wrong.strategy, ways);
    if (!found) return false;
    const Fault own = fault_of(problems_.list()[wrong.problem]);
    std::set<Fault> known = known_;
    if (wrong.all && ways != 1) {
      const std::optional<Problems> anyway = problems_with(wrong.strategy, 1);
      for (const Problem& p : anyway ? anyway->list() : std::vector<Problem>{}) {
        known.insert(fault_of(p));
      }
    }
    return (wrong.all && ways == 1) ||
           std::all_of(found->list().begin(), found->list().end(), [&](const Problem& p) {
             return fault_of(p) != own && known.count(fault_of(p)) > 0;
           });
  }

 private:
  // Nothing if the strategy does not allow this number of ways.
  std::optional<Problems> problems_with(const std::string& strategy, int ways) const {
    PlanRequest request = request_;
    request.placements_only = true;
    request.recompute = {};
    Problems found;
    try {
      StrategyChoice& choice = request.strategies[find(strategy) - request_.strategies.data()];
      choice = choice.with_ways(ways);
      make_plan(request, found);
    } catch (const Error&) {
      return std::nullopt;
    }
    return found;
  }

  const StrategyChoice* find(const std::string& strategy) const {
    const auto& list = request_.strategies;
    const auto found = std::find_if(list.begin(), list.end(), [&](const StrategyChoice& choice) {
      return choice.name == strategy;
    });
    return found == list.end() ? nullptr : &*found;
  }

  const PlanRequest& request_;
  const Problems& problems_;
  std::set<Fault> known_;
};

std::string with_nearest(const std::string& wanted, const std::vector<std::string>& names,
                         const std::string& plural) {
  if (names.empty()) return "it has none";
  const std::string near = did_you_mean(wanted, names);
  return fmt::format("{}{}{}: {}", near, near.empty() ? "" : " ", plural, join(names));
}

}  // namespace

Mesh ask_axes(std::vector<StrategyChoice>& strategies, Problems& problems,
              std::vector<WrongWays>& wrong) {
  AxisCollector asker(problems, wrong);
  for (StrategyChoice& choice : strategies) asker.ask(choice);
  refuse_doubles(strategies, problems);
  return asker.mesh();
}

WrongWays ways_near(const std::string& strategy, std::int64_t size, int ways, bool even) {
  WrongWays wrong;
  wrong.strategy = strategy;
  if (even) {
    for (std::int64_t w : divisors(size)) {
      if (w < ways) wrong.below.insert(wrong.below.begin(), static_cast<int>(w));
      if (w > ways && w <= Mesh::most_ranks) wrong.above.push_back(static_cast<int>(w));
    }
  } else {
    const auto last = static_cast<int>(std::min<std::int64_t>(size, Mesh::most_ranks));
    for (int w = std::min(ways - 1, last); w >= 1 && wrong.below.size() < most_tried; --w)
      wrong.below.push_back(w);
    for (int w = ways + 1; w <= last && wrong.above.size() < most_tried; ++w)
      wrong.above.push_back(w);
  }
  for (std::vector<int>* list : {&wrong.below, &wrong.above})
    list->resize(std::min(list->size(), most_tried));
  return wrong;
}

std::string hint_of(const WrongWays& wrong) {
  if (wrong.all) {
    std::vector<int> list(wrong.below.rbegin(), wrong.below.rend());
    list.insert(list.end(), wrong.above.begin(), wrong.above.end());
    return fmt::format("possible: {}", fmt::join(list, ", "));
  }
  std::string text;
  for (const std::vector<int>* list : {&wrong.below, &wrong.above}) {
    if (list->empty()) continue;
    text +=
        fmt::format("{}{}({})", text.empty() ? "nearest: " : ", ", wrong.strategy, list->front());
  }
  return text;
}

void try_nearest(const PlanRequest& request, const std::vector<WrongWays>& wrong,
                 Problems& problems) {
  if (request.placements_only || wrong.empty()) return;
  const Trial trial(request, problems);
  std::vector<Problem> list = problems.list();
  for (const WrongWays& about : wrong) {
    if (!trial.possible(about.strategy)) continue;
    WrongWays left = about;
    for (std::vector<int>* near : {&left.below, &left.above}) {
      bool found = false;
      std::erase_if(*near, [&](int ways) {
        if (found && !left.all) return false;  // the hint names the first alone
        const bool taken = trial.accepts(about, ways);
        found = found || taken;
        return !taken;
      });
    }
    const bool none = left.below.empty() && left.above.empty();
    list[about.problem].hint =
        none ? fmt::format(
                   "no other number near it goes with the rest of the plan; leave {} out, "
                   "or change what it meets",
                   about.strategy)
             : hint_of(left);
  }
  problems = {};
  for (Problem& problem : list) problems.add(std::move(problem));
}

std::string name_of(Dim dim) {
  return dim.valid() ? fmt::format("\"{}\"", readable(dim.name())) : "no dim";
}

std::string rule_text(Dim dim, const std::string& axis) {
  return fmt::format("{} -> {}", dim.valid() ? readable(dim.name()) : "", readable(axis));
}

bool has_dim(const Graph& graph, Dim dim) {
  if (!dim.valid()) return false;
  if (graph.dims().count(dim) > 0) return true;
  return std::any_of(graph.ops().begin(), graph.ops().end(),
                     [&](const Op& op) { return contains(op.space(), dim); });
}

std::string dims_there_are(const Graph& graph, Dim wanted) {
  std::set<std::string> names;  // a Dim's own order differs between processes
  for (const Op& op : graph.ops()) {
    for (Dim dim : op.space()) {
      if (!contains(op.whole, dim)) names.insert(dim.name());
    }
  }
  return with_nearest(wanted.valid() ? wanted.name() : "", {names.begin(), names.end()}, "dims");
}

std::string axes_there_are(const Mesh& mesh, const std::string& wanted) {
  return with_nearest(wanted, mesh.names_of_axes(), "axes");
}

std::string kinds_of(const Graph& graph, const std::function<bool(const Op&)>& takes) {
  constexpr std::size_t most = 12;
  std::vector<std::string> kinds;
  for (const Op& op : graph.ops()) {
    if (std::find(kinds.begin(), kinds.end(), op.kind()) != kinds.end() || !takes(op)) continue;
    if (kinds.size() == most) {
      kinds.emplace_back("…");
      break;
    }
    kinds.push_back(op.kind());
  }
  return join(kinds);
}

std::string kinds_with(const Graph& graph, Dim dim) {
  return kinds_of(
      graph, [&](const Op& op) { return contains(op.space(), dim) && !contains(op.whole, dim); });
}

}  // namespace mw
