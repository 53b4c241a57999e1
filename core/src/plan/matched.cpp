// Finds rules that match no op and axes on which no dim lives, and refuses them with a list of
// what there is.
#include "plan/matched.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "meshwright/engine/text.h"
#include "meshwright/passes.h"
#include "plan/axes.h"

namespace mw {
namespace {

template <class Rule>
Problem refused(const Rule& rule, const char* code, std::string message, std::string hint) {
  std::string option;
  if constexpr (requires { rule.option; }) option = rule.option;
  return attributed({rule.strategy, rule.place},
                    {Stage::plan, code, std::move(option), std::move(message), std::move(hint)});
}

// Why a rule's `where` takes no op that an axis could cut along the dim. `taken`: kinds that it
// takes.
std::string why_none(const Graph& graph, const Rule& rule, const std::string& text,
                     const std::string& taken) {
  if (taken.empty())
    return fmt::format("{} is for particular ops, and its `where` takes none", text);
  const std::string whole = kinds_of(graph, [&](const Op& op) {
    return contains(op.space(), rule.dim) && (!rule.where || rule.where(op));
  });
  if (!whole.empty()) {
    return fmt::format(
        "{} is for particular ops ({}), and those that compute over {} need it whole: {}", text,
        taken, rule.dim.name(), whole);
  }
  return fmt::format("{} is for particular ops ({}), none of which computes over {}", text, taken,
                     rule.dim.name());
}

// Says why a rule takes no op, and what it could take; nothing if the model declares the dim and
// has no op of it. `takers`: see Matched::takers_from.
void refuse_rule(const Graph& graph, const Rule& rule, const std::string& takers,
                 Problems& problems) {
  const std::string kinds = kinds_with(graph, rule.dim);
  const bool any = std::any_of(graph.ops().begin(), graph.ops().end(),
                               [&](const Op& op) { return op.has(rule.dim); });
  const std::string taken =
      kinds_of(graph, [&](const Op& op) { return !rule.where || rule.where(op); });
  if (!any && !taken.empty()) return;
  const std::string text = rule_text(rule.dim, rule.axis);
  if (any && kinds.empty()) {
    problems.add(refused(
        rule, "rule.matches-nothing",
        fmt::format("{} splits nothing, because every op needs {} whole", text, rule.dim.name()),
        dims_there_are(graph, rule.dim)));
    return;
  }
  const std::string here = fmt::format("{}; of these, {}", kinds, takers);
  problems.add(refused(rule, "rule.matches-nothing", why_none(graph, rule, text, taken),
                       kinds.empty()
                           ? dims_there_are(graph, rule.dim)
                           : fmt::format("kinds of ops with {}: {}", rule.dim.name(),
                                         taken.empty() && !takers.empty() ? here : kinds)));
}

bool same_claim(const Rule& a, const Rule& b) {
  return a.dim == b.dim && a.axis == b.axis && a.named == b.named && a.only == b.only;
}

void refuse_twice(const Rule& first, const Rule& again, Problems& problems) {
  const std::string text = rule_text(again.dim, again.axis);
  const bool same = first.strategy == again.strategy && first.place == again.place;
  problems.add(refused(
      again, "rule.twice",
      same ? fmt::format("{} is said twice for the same ops", text)
           : fmt::format("{} is what {}{} says already, for the same ops", text, first.strategy,
                         first.place.empty() ? "" : " (" + first.place + ")"),
      same ? "say it once" : "leave one of them out"));
}

// The names of parameters with the dim, a few of many.
std::string parameters_with(const Graph& graph, Dim dim) {
  std::vector<std::string> names;
  for (int value : graph.parameters()) {
    const Dims& dims = graph.value(value).dims;
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) continue;
    if (names.size() == 6) {
      names.emplace_back("…");
      break;
    }
    names.push_back(graph.value(value).name);
  }
  return names.empty() ? "none" : join(names);
}

// The atoms along which ranks have work or storage of their own.
std::vector<bool> atoms_in_use(const Draft& draft, const Derived& derived) {
  const Mesh& mesh = draft.mesh();
  std::vector<bool> used(mesh.atoms().size(), false);
  for (const auto* layouts : {&derived.cut, &derived.layout}) {
    for (const Layout& layout : *layouts) {
      for (std::size_t a = 0; a < layout.size(); ++a) used[a] = used[a] || layout[a].is_shard();
    }
  }
  const auto use = [&](const std::string& axis) {
    if (axis.empty()) return;
    for (int atom : mesh.axis(axis).atoms) used[atom] = true;
  };
  if (draft.pipeline()) use(draft.pipeline()->axis);
  for (const Pass& pass : draft.passes()) use(pass.axis);
  return used;
}

bool meet(const std::vector<int>& some, const std::vector<int>& others) {
  return std::any_of(some.begin(), some.end(), [&](int atom) {
    return std::find(others.begin(), others.end(), atom) != others.end();
  });
}

// Whether a rule, a pass or the pipeline names the axis.
bool named(const Draft& draft, const std::string& axis) {
  const auto speaks = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const auto& rule) { return rule.axis == axis; });
  };
  return speaks(draft.rules()) || speaks(draft.storage()) || speaks(draft.rotations()) ||
         speaks(draft.passes()) || (draft.pipeline() && draft.pipeline()->axis == axis);
}

}  // namespace

std::string Matched::takers_from(const Graph& graph, std::size_t r) const {
  std::vector<std::string> takers;
  for (std::size_t other = 0; other < rules_.size(); ++other) {
    const Rule& rule = rules_[other];
    const bool same = rule.strategy == rules_[r].strategy && rule.place == rules_[r].place;
    if (same || rule.axis != rules_[r].axis) continue;
    const auto cut = std::count_if(ops_[other].begin(), ops_[other].end(), [&](int op) {
      return graph.ops()[static_cast<std::size_t>(op)].has(rules_[r].dim);
    });
    if (cut > 0) {
      takers.push_back(fmt::format("{} of {}{} takes {}", rule_text(rule.dim, rule.axis),
                                   rule.strategy, rule.place.empty() ? "" : " (" + rule.place + ")",
                                   plural(cut, "op")));
    }
  }
  return join(takers);
}

void Matched::refuse(const Graph& graph, const std::vector<RotationRule>& rotations,
                     const std::vector<StorageRule>& storage, Problems& problems) const {
  for (std::size_t r = 0; r < rules_.size(); ++r) {
    if (ops_[r].empty()) {
      refuse_rule(graph, rules_[r], takers_from(graph, r), problems);
      continue;
    }
    for (std::size_t first = 0; first < r; ++first) {
      if (!same_claim(rules_[first], rules_[r]) || ops_[first] != ops_[r]) continue;
      refuse_twice(rules_[first], rules_[r], problems);
      break;
    }
  }
  for (const RotationRule& rule : rotations) {
    if (rotations_.count(&rule) > 0) continue;
    const std::string kinds =
        kinds_of(graph, [&](const Op& op) { return op.type->traits(op).rotates == rule.dim; });
    problems.add(refused(
        rule, "rotation.matches-nothing",
        fmt::format("no op that the rule matches can compute {} in ring steps over {}",
                    rule.dim.name(), rule.axis),
        kinds.empty() ? "an op says so in OpTraits::rotates" : "kinds of ops that do: " + kinds));
  }
  for (const StorageRule& rule : storage) {
    if (storage_.count(&rule) > 0) continue;
    problems.add(refused(
        rule, "storage.matches-nothing",
        fmt::format("no parameter that the rule matches can be sharded along {} over {}",
                    rule.dim.name(), rule.axis),
        fmt::format("parameters with {}: {}", rule.dim.name(), parameters_with(graph, rule.dim))));
  }
}

void refuse_on_stages(const Draft& draft, Problems& problems) {
  if (!draft.pipeline() || draft.pipeline()->axis.empty()) return;
  const Mesh& mesh = draft.mesh();
  const Axis& stages = mesh.axis(draft.pipeline()->axis);
  std::vector<std::string> others;
  for (const Axis& axis : mesh.axes()) {
    if (axis.ways > 1 && !meet(axis.atoms, stages.atoms)) others.push_back(axis.name);
  }
  const auto refuse = [&](const auto& rule, const std::vector<int>& atoms, const char* what) {
    if (stages.ways == 1 || !meet(atoms, stages.atoms)) return;
    problems.add(refused(
        rule, "rule.stages",
        fmt::format(
            "{}{} cannot hold: the ranks of {} are {} stages of the pipeline, each of which "
            "has other layers, so no tensor can be cut over them",
            what, rule_text(rule.dim, rule.axis), stages.name, stages.ways),
        others.empty() ? "give the strategy an axis of its own"
                       : "name another axis, " + join(others) + ", or give the strategy its own"));
  };
  for (const Rule& rule : draft.rules()) refuse(rule, rule.atoms(mesh), "");
  for (const StorageRule& rule : draft.storage())
    refuse(rule, mesh.axis(rule.axis).atoms, "stored ");
  for (const RotationRule& rule : draft.rotations())
    refuse(rule, mesh.axis(rule.axis).atoms, "rotating ");
}

void refuse_idle_axes(const Draft& draft, const Derived& derived,
                      const std::map<std::string, PluginPlace>& asked, Problems& problems) {
  const Mesh& mesh = draft.mesh();
  const std::vector<bool> used = atoms_in_use(draft, derived);
  for (const Axis& axis : mesh.axes()) {
    if (axis.ways == 1) continue;
    int idle = 1;
    for (int atom : axis.atoms) idle *= used[atom] ? 1 : mesh.atoms()[atom].ways;
    // What lives on borrowed ranks may belong to the axis that lent them.
    const bool unused = axis.borrowed && !named(draft, axis.name);
    if (idle == 1 && !unused) continue;
    const auto who = asked.find(axis.name);
    const PluginPlace speaker = who == asked.end() ? PluginPlace{} : who->second;
    const std::string part =
        idle == axis.ways ? "" : fmt::format(" beyond {} of them", axis.ways / idle);
    problems.add(attributed(
        speaker,
        {Stage::plan, "axis.idle", "",
         fmt::format("nothing lives on the axis {} ({} ranks){}: no rule, storage, pass or "
                     "pipeline uses it{}",
                     axis.name, axis.ways, part,
                     unused ? "" : ", and its ranks would do the same work"),
         fmt::format("say what lives there, or leave it out; {}",
                     dims_there_are(draft.graph(), {}))}));
  }
}

}  // namespace mw
