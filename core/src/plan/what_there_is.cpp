// Lists what a model and a mesh have, for messages about names that they lack.
#include "plan/what_there_is.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::string with_nearest(const std::string& wanted, const std::vector<std::string>& names,
                         const std::string& plural) {
  if (names.empty()) return "it has none";
  const std::string near = did_you_mean(wanted, names);
  return fmt::format("{}{}{}: {}", near, near.empty() ? "" : " ", plural, join(names));
}

}  // namespace

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
  std::set<std::string> names;  // by name: a Dim's own order is that of a process
  for (const Op& op : graph.ops()) {
    for (Dim dim : op.space()) {
      if (!contains(op.whole, dim)) names.insert(dim.name());
    }
  }
  return with_nearest(wanted.valid() ? wanted.name() : "", {names.begin(), names.end()}, "dims");
}

std::string axes_there_are(const Mesh& mesh, const std::string& wanted) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes()) names.push_back(axis.name);
  return with_nearest(wanted, names, "axes");
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
