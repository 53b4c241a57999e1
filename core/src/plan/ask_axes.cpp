// Asks a plan's strategies for their axes and makes the mesh of them.
#include "plan/ask_axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "base/plugin_call.h"
#include "base/text.h"

namespace mw {
namespace {

constexpr std::size_t longest_name = 64;
constexpr std::array<const char*, 2> taken_names = {"world", "none"};  // of all ranks, of no axis

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
    if (!is_name(axis.name) || std::any_of(taken_names.begin(), taken_names.end(),
                                           [&](const char* name) { return axis.name == name; })) {
      refuse(speaker, "axis.name",
             fmt::format("it asks for an axis named \"{}\"",
                         readable(std::string_view(axis.name).substr(0, longest_name))),
             fmt::format("a name is a letter, then letters, digits and \"_\", {} at most; {} are "
                         "taken",
                         longest_name, fmt::join(taken_names, " and ")));
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
    if (!axis.borrow_from.empty()) {
      borrowed_.emplace_back(axis, speaker);
      return;
    }
    own_.emplace_back(axis.name, axis.ways);
    if (askers_.empty() || askers_.back().place != speaker.place) askers_.push_back(speaker);
  }

  void borrow(Mesh& mesh, const AxisRequest& axis, const Speaker& speaker) {
    std::vector<std::string> lenders;
    for (const std::string& name : axis.borrow_from) {
      if (mesh.has(name)) lenders.push_back(name);
    }
    if (lenders.empty()) {
      refuse(speaker, "axis.unknown",
             fmt::format("{}({}) takes ranks of {}, and the plan has none of these axes", axis.name,
                         axis.ways, readable(fmt::format("{}", fmt::join(axis.borrow_from, ", ")))),
             fmt::format("add {}({})", readable(axis.borrow_from.front()), axis.ways));
      return;
    }
    try {
      mesh.borrow(axis.name, axis.ways, lenders);
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
  std::vector<std::pair<std::string, int>> own_;
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
