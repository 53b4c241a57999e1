// Asks a plan's strategies for their axes and makes the mesh of them.
#include "plan/ask_axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_name = 64;

// "world" is all ranks, "none" no axis; roles stand for the axes that have them.
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

class Asker {
 public:
  Asker(Problems& problems, std::vector<WrongWays>& wrong) : problems_(problems), wrong_(wrong) {}

  void ask(StrategyChoice& choice) {
    const Speaker speaker{choice.name, choice.path};
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
      add(error, askers_.size() == 1 ? askers_.front() : Speaker{"", "plan"});
      return {};
    }
    for (const auto& [axis, speaker] : borrowed_) borrow(mesh, axis, speaker);
    return mesh;
  }

 private:
  void refuse(const Speaker& speaker, const char* code, std::string message, std::string hint) {
    problems_.add(
        attributed(speaker, {Stage::plan, code, "", std::move(message), std::move(hint)}));
  }

  void add(const Error& error, const Speaker& speaker) {
    for (const Problem& p : error.problems()) problems_.add(attributed(speaker, p));
  }

  void take(const AxisRequest& axis, const Speaker& speaker) {
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
             fmt::format("it asks for the axis {} of {} ways", axis.name, axis.ways),
             fmt::format("an axis has 1 to {}", Mesh::most_ranks));
      return;
    }
    const auto [known, fresh] = asked_.emplace(axis.name, speaker);
    if (!fresh) {
      const Speaker& first = known->second;
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

  void borrow(Mesh& mesh, const AxisRequest& axis, const Speaker& speaker) {
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
  std::vector<Speaker> askers_;  // of own_, each once
  std::vector<std::pair<AxisRequest, Speaker>> borrowed_;
  std::map<std::string, Speaker> asked_;
};

// An entry without an axis of its own (sp() on tp's ranks) clashes with no other.
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

}  // namespace

Mesh ask_axes(std::vector<StrategyChoice>& strategies, Problems& problems,
              std::vector<WrongWays>& wrong) {
  Asker asker(problems, wrong);
  for (StrategyChoice& choice : strategies) asker.ask(choice);
  refuse_doubles(strategies, problems);
  return asker.mesh();
}

}  // namespace mw
