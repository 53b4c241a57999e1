// Derives placements from rules: one rule wins each op on each axis, its cut gives the layouts of
// the op's values, and where two ops need a value in different layouts there is a move. What cannot
// be cut is refused once, however many ops it concerns.
#include "plan/derive.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/strategy.h"
#include "plan/axes.h"
#include "plan/matched.h"
#include "plan/view_moves.h"

namespace mw {

class CutChecks {
 public:
  // Keeps references to all arguments.
  CutChecks(const Graph& graph, const Mesh& mesh, Problems& problems,
            std::vector<WrongWays>& wrong_ways)
      : graph_(graph), mesh_(mesh), problems_(problems), wrong_ways_(wrong_ways) {}

  void clash(const Op& op, const Rule& a, const Rule& b, int atom);
  // Refuses a cut of the rule's dim into parts that are uneven, or empty.
  void even(const Layout& cut, const Rule& rule);

 private:
  const Graph& graph_;
  const Mesh& mesh_;
  Problems& problems_;
  std::vector<WrongWays>& wrong_ways_;
  std::set<std::string> said_;
  std::set<Dim> at_fault_;  // dims that some strategy cannot split
};

class RuledKinds {
 public:
  // Keeps references to all arguments.
  RuledKinds(const Graph& graph, const std::vector<Rule>& rules,
             const std::vector<RotationRule>& rotations);

  struct HeldLayout {
    // The first op of the asked op's kind for which the same rules hold; the asked op itself where
    // there is none before it.
    int first = -1;
    std::vector<const Rule*> rules;  // rules that hold, over dims that need not be whole
    std::vector<const RotationRule*> rotations;
  };
  // Finds the rules that hold for an op, by asking each one (Rule::where). The result is valid
  // until the next call.
  const HeldLayout& ask(int op);

 private:
  struct Kind {
    std::vector<const Rule*> rules;  // rules that the op's dims allow
    bool shared = true;
    std::vector<HeldLayout> known;
  };
  Kind make(int op) const;

  const Graph& graph_;
  const std::vector<Rule>& rules_;
  const std::vector<RotationRule>& rotations_;
  std::unordered_map<int, Kind> kinds_;  // by Graph::kind
  HeldLayout held_;
};

void CutChecks::clash(const Op& op, const Rule& a, const Rule& b, int atom) {
  if (!said_.insert(fmt::format("{}/{}/{}", a.strategy, b.strategy, op.kind())).second) return;
  problems_.add(Stage::plan, "rule.clash", key_in(b.place, b.option),
                fmt::format("{} ({} -> {}) and {} ({} -> {}) both claim the ranks of axis {} in {}",
                            a.strategy, a.dim.name(), a.axis, b.strategy, b.dim.name(), b.axis,
                            mesh_.atoms()[atom].name, op.name),
                "give each an axis of its own, or leave one out");
}

void CutChecks::even(const Layout& cut, const Rule& rule) {
  const auto info = graph_.dims().find(rule.dim);
  if (info == graph_.dims().end()) return;
  int ways = 1;
  for (std::size_t a = 0; a < cut.size(); ++a) {
    if (cut[a].is_shard() && cut[a].dim == rule.dim) ways *= mesh_.atoms()[a].ways;
  }
  const std::int64_t size = info->second.size;
  const bool fits = info->second.even ? size % ways == 0 : size >= ways;
  if (fits) return;
  const int own = mesh_.axis(rule.axis).ways;
  const int others = ways == own ? 1 : std::max(1, ways / own);
  // The other axes leave no even parts to cut: they are at fault and have been refused already.
  if (info->second.even && size % others != 0 && at_fault_.count(rule.dim) > 0) return;
  if (!said_.insert(rule.strategy + "/" + rule.dim.name()).second) return;
  at_fault_.insert(rule.dim);
  const std::int64_t left = size / others;
  WrongWays wrong = ways_near(rule.strategy, left, own, info->second.even);
  wrong.problem = problems_.list().size();
  problems_.add(Stage::plan, "axis.cannot-split", key_in(rule.place, "ways"),
                fmt::format("{}({}) cannot split {} {}", rule.strategy, own, left, rule.dim.name()),
                hint_of(wrong));
  wrong_ways_.push_back(std::move(wrong));
}

RuledKinds::RuledKinds(const Graph& graph, const std::vector<Rule>& rules,
                       const std::vector<RotationRule>& rotations)
    : graph_(graph), rules_(rules), rotations_(rotations) {}

RuledKinds::Kind RuledKinds::make(int op) const {
  const Op& what = graph_.ops()[op];
  const Dims space = what.space();
  Kind kind;
  for (const Rule& rule : rules_) {
    if (contains(space, rule.dim) && !contains(what.whole, rule.dim)) kind.rules.push_back(&rule);
  }
  // A follower is cut by rules for its own dim, which `rules` lacks where the op needs that dim
  // whole.
  kind.shared = std::none_of(what.follows.begin(), what.follows.end(),
                             [&](const auto& pair) { return contains(what.whole, pair.first); });
  return kind;
}

const RuledKinds::HeldLayout& RuledKinds::ask(int op) {
  const Op& what = graph_.ops()[op].of_model();
  const auto [found, missing] = kinds_.try_emplace(graph_.kind(op));
  Kind& kind = found->second;
  if (missing) kind = make(op);
  held_.rules.clear();
  held_.rotations.clear();
  for (const Rule* rule : kind.rules) {
    if (!rule->where || rule->where(what)) held_.rules.push_back(rule);
  }
  for (const RotationRule& rule : rotations_) {
    if (!rule.where || rule.where(what)) held_.rotations.push_back(&rule);
  }
  const auto known =
      std::find_if(kind.known.begin(), kind.known.end(), [&](const HeldLayout& other) {
        return other.rules == held_.rules && other.rotations == held_.rotations;
      });
  held_.first = known != kind.known.end() ? known->first : op;
  if (known == kind.known.end() && kind.shared) kind.known.push_back(held_);
  return held_;
}

namespace {

class Deriver {
 public:
  Deriver(const Graph& graph, const Mesh& mesh, const std::vector<Rule>& rules,
          const std::vector<StorageRule>& storage, Problems& problems,
          const std::vector<RotationRule>& rotations)
      : graph_(graph),
        mesh_(mesh),
        rules_(rules),
        storage_(storage),
        rotation_rules_(rotations),
        problems_(problems),
        matched_(rules),
        kinds_(graph, rules, rotations),
        checks_(graph, mesh, problems, result_.wrong_ways),
        moves_(graph, mesh, result_.layout, problems),
        replicated_(mesh.atoms().size()) {}

  Derived run() {
    const std::size_t ops = graph_.ops().size();
    result_.cut.assign(ops, replicated_);
    result_.follow.assign(ops, replicated_);
    result_.layout.assign(graph_.values().size(), replicated_);
    first_.resize(ops);
    needs_.resize(ops);
    for (std::size_t i = 0; i < ops; ++i) {
      throw_if_stopped();
      cut_op(static_cast<int>(i));
    }
    for (std::size_t i = 0; i < ops; ++i) place_outputs(static_cast<int>(i));
    place_sources();
    matched_.refuse(graph_, rotation_rules_, storage_, problems_);
    result_.view_of.resize(ops);
    by_value_.resize(graph_.values().size());
    result_.views.reserve(3 * ops);
    for (std::size_t i = 0; i < ops; ++i) {
      throw_if_stopped();
      make_views(static_cast<int>(i));
    }
    return std::move(result_);
  }

 private:
  static bool follows(const Op& op, Dim dim) {
    return std::any_of(op.follows.begin(), op.follows.end(),
                       [&](const auto& pair) { return pair.first == dim; });
  }

  const Rule* rule_for(const Op& op, Dim dim, std::size_t atom) const {
    for (const Rule& rule : rules_) {
      const auto& atoms = rule.atoms(mesh_);
      if (rule.dim == dim && (!rule.where || rule.where(op.of_model())) &&
          std::find(atoms.begin(), atoms.end(), static_cast<int>(atom)) != atoms.end()) {
        return &rule;
      }
    }
    return nullptr;
  }

  // Cuts the op on each atom by the rule that wins there.
  void cut_op(int index) {
    const Op& op = graph_.ops()[index];
    const RuledKinds::HeldLayout& held = kinds_.ask(index);
    for (const Rule* rule : held.rules) matched_.add(*rule, index);
    if ((first_[index] = held.first) != index) {
      result_.cut[index] = result_.cut[held.first];
      result_.follow[index] = result_.follow[held.first];
      if (const auto rotation = result_.rotations.find(held.first);
          rotation != result_.rotations.end())
        result_.rotations[index] = rotation->second;
      return;
    }
    ++result_.placed;
    std::vector<const Rule*> winner(mesh_.atoms().size(), nullptr);
    std::vector<std::vector<const Rule*>> candidates(mesh_.atoms().size());
    for (const Rule* rule : held.rules) {
      if (follows(op, rule->dim)) continue;
      for (int atom : rule->atoms(mesh_)) {
        if (mesh_.atoms()[atom].ways == 1) continue;
        candidates[atom].push_back(rule);
        const Rule*& best = winner[atom];
        if (best == nullptr || (rule->named && !best->named)) best = rule;
      }
    }
    for (std::size_t a = 0; a < winner.size(); ++a) {
      for (const Rule* rule : candidates[a]) {
        if (rule->named == winner[a]->named && rule->dim != winner[a]->dim &&
            rule->strategy != winner[a]->strategy) {
          checks_.clash(op, *winner[a], *rule, static_cast<int>(a));
        }
      }
    }
    std::set<Dim> left;  // followers that an outer atom leaves whole: inner atoms may not cut them
    for (std::size_t a = 0; a < winner.size(); ++a) {
      if (winner[a] == nullptr) continue;
      const Dim dim = winner[a]->dim;
      result_.cut[index][a] = Placement::shard(dim);
      for (const auto& [follower, leader] : op.follows) {
        if (leader != dim) continue;
        const Rule* rule = left.count(follower) > 0 ? nullptr : rule_for(op, follower, a);
        if (rule == nullptr) {
          left.insert(follower);
          continue;
        }
        result_.follow[index][a] = Placement::shard(follower);
        checks_.even(result_.follow[index], *rule);
      }
    }
    for (std::size_t a = 0; a < winner.size(); ++a) {
      if (winner[a] != nullptr) checks_.even(result_.cut[index], *winner[a]);
    }
    for (const RotationRule* rule : held.rotations) rotate(index, *rule);
  }

  // Has a dim go round in ring steps, cut as its operand lies, so that nothing has to be gathered.
  void rotate(int index, const RotationRule& rule) {
    const Op& op = graph_.ops()[index];
    if (graph_.traits(index).rotates != rule.dim) return;
    matched_.add(rule);
    Rotation rotation{rule.dim, {}};
    Dim own;  // the rotating dim as the operand's value names it: "seq" for keys
    for (const Use& use : op.inputs) {
      if (Dim d = in_value(use.dims, graph_.value(use.value).dims, rule.dim); d.valid()) own = d;
    }
    for (int atom : mesh_.axis(rule.axis).atoms) {
      if (mesh_.atoms()[atom].ways == 1 || result_.cut[index][atom] != Placement::shard(own)) {
        continue;
      }
      result_.follow[index][atom] = Placement::shard(rule.dim);
      rotation.atoms.push_back(atom);
    }
    if (!rotation.atoms.empty()) result_.rotations[index] = rotation;
  }

  // The dim of a value with dims `own` that an operand with dims `called` calls `dim`, or none.
  Dim in_value(const Dims& called, const Dims& own, Dim dim) const {
    for (std::size_t i = 0; i < called.size(); ++i) {
      if (called[i] == dim) return own[i];
    }
    return {};
  }

  // Whether the op passes a partial sum on: the atom cuts nothing of the op, and an operand that it
  // is linear in is Partial there.
  bool carries(int op, std::size_t atom) const {
    const Op& node = graph_.ops()[op];
    return !result_.cut[op][atom].is_shard() &&
           std::any_of(node.inputs.begin(), node.inputs.end(), [&](const Use& use) {
             return use.linear && result_.layout[use.value][atom].is_partial();
           });
  }

  Placement output_placement(int op, std::size_t output, std::size_t atom) const {
    const Op& node = graph_.ops()[op];
    const Placement& cut = result_.cut[op][atom];
    if (!cut.is_shard()) {
      return carries(op, atom) ? Placement::partial() : Placement::replicate();
    }
    const Dims& own = graph_.value(node.outputs[output]).dims;
    for (Dim dim : {cut.dim, result_.follow[op][atom].dim}) {
      if (!dim.valid()) continue;
      if (Dim d = in_value(node.output_dims[output], own, dim); d.valid())
        return Placement::shard(d);
    }
    // Indices cannot be partial sums: an op whose indices follow from a whole dim says so
    // (Op::whole).
    if (graph_.value(node.outputs[output]).scalar == Scalar::index) return Placement::replicate();
    return Placement::partial(node.contraction);
  }

  void place_outputs(int op) {
    const Op& node = graph_.ops()[op];
    if (const int first = first_of(op); first != op && node.contraction == Reduction::sum) {
      for (std::size_t o = 0; o < node.outputs.size(); ++o)
        result_.layout[node.outputs[o]] = result_.layout[graph_.ops()[first].outputs[o]];
      return;
    }
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      for (std::size_t a = 0; a < replicated_.size(); ++a) {
        result_.layout[node.outputs[o]][a] = output_placement(op, o, a);
        if (node.contraction != Reduction::sum && graph_.value(node.outputs[o]).needs_grad &&
            result_.layout[node.outputs[o]][a].is_partial()) {
          problems_.add(
              Stage::plan, "rule.maximum", "",
              fmt::format("{} takes a maximum over {}, which {} cuts, and no gradient can "
                          "be derived through that",
                          node.name, result_.cut[op][a].dim.name(), mesh_.atoms()[a].name),
              "declare the dim whole in this op, or its output without a gradient");
        }
      }
    }
  }

  // The op whose placement this one takes over; the op itself, where its operands' layouts matter
  // too.
  int first_of(int op) const {
    const auto& inputs = graph_.ops()[op].inputs;
    const bool linear =
        std::any_of(inputs.begin(), inputs.end(), [](const Use& use) { return use.linear; });
    return linear ? op : first_[op];
  }

  // The layouts of an operand, and of the gradient that backward leaves for it.
  struct Need {
    Layout need, gradient;
  };
  const Need& need(int op, std::size_t input) {
    const int first = first_of(op);
    std::vector<Need>& known = needs_[first];
    if (!known.empty()) return known[input];
    for (std::size_t i = 0; i < graph_.ops()[first].inputs.size(); ++i) {
      Need made{replicated_, replicated_};
      for (std::size_t a = 0; a < replicated_.size(); ++a) {
        const Placement p = made.need[a] = need(first, i, a);
        if (p.is_shard()) {
          made.gradient[a] = p;
        } else if (p.is_replicate() && (result_.cut[first][a].is_shard() || carries(first, a))) {
          made.gradient[a] = Placement::partial();
        }
      }
      known.push_back(std::move(made));
    }
    return known[input];
  }

  Placement need(int op, std::size_t input, std::size_t atom) const {
    const Op& node = graph_.ops()[op];
    const Use& use = node.inputs[input];
    const Placement& cut = result_.cut[op][atom];
    if (!cut.is_shard()) {
      const bool summed = (use.linear || use.additive) && carries(op, atom);
      return summed ? Placement::partial() : Placement::replicate();
    }
    for (Dim dim : {cut.dim, result_.follow[op][atom].dim}) {
      if (!dim.valid()) continue;
      if (Dim d = in_value(use.dims, graph_.value(use.value).dims, dim); d.valid()) {
        return Placement::shard(d);
      }
    }
    if (use.additive && output_placement(op, 0, atom).is_partial()) return Placement::partial();
    return Placement::replicate();
  }

  // Parameters and data lie as they are used, where all uses agree on a Shard; else whole. Storage
  // rules come on top.
  void place_sources() {
    std::vector<std::vector<std::pair<int, std::size_t>>> uses(graph_.values().size());
    for (std::size_t o = 0; o < graph_.ops().size(); ++o) {
      const Op& op = graph_.ops()[o];
      for (std::size_t i = 0; i < op.inputs.size(); ++i) {
        if (graph_.value(op.inputs[i].value).source == Value::Source::op) continue;
        uses[op.inputs[i].value].emplace_back(static_cast<int>(o), i);
      }
    }
    for (std::size_t v = 0; v < uses.size(); ++v) {
      const Value& value = graph_.value(static_cast<int>(v));
      if (value.source == Value::Source::op || uses[v].empty()) continue;
      for (std::size_t a = 0; a < replicated_.size(); ++a) {
        const Placement first = need(uses[v][0].first, uses[v][0].second).need[a];
        const bool agreed =
            first.is_shard() && std::all_of(uses[v].begin(), uses[v].end(), [&](auto& u) {
              return need(u.first, u.second).need[a] == first;
            });
        if (agreed) result_.layout[v][a] = first;
      }
      if (value.source != Value::Source::parameter) continue;
      store(static_cast<int>(v));
    }
  }

  void store(int v) {
    const Value& value = graph_.value(v);
    std::vector<const StorageRule*> owner(replicated_.size(), nullptr);
    for (const StorageRule& rule : storage_) {
      if (rule.where && !rule.where(value)) continue;
      if (std::find(value.dims.begin(), value.dims.end(), rule.dim) == value.dims.end()) continue;
      matched_.add(rule);
      for (int atom : mesh_.axis(rule.axis).atoms) {
        Placement& place = result_.layout[v][atom];
        if (owner[atom] != nullptr && owner[atom]->strategy != rule.strategy) {
          problems_.add(Stage::plan, "storage.clash", key_in(rule.place, rule.option),
                        fmt::format("{} and {} both store {} on the ranks of {}",
                                    owner[atom]->strategy, rule.strategy, value.name, rule.axis),
                        "leave one of them out");
        } else if (place.is_replicate() && mesh_.atoms()[atom].ways > 1) {
          place = Placement::shard(rule.dim);
          owner[atom] = &rule;
        }
      }
      const int ways = mesh_.axis(rule.axis).ways;
      if (graph_.size(rule.dim) < ways && said_.insert(rule.strategy + "/stored").second) {
        problems_.add(Stage::plan, "storage.ways", key_in(rule.place, "ways"),
                      fmt::format("{}({}) cannot store {} in parts of its {} {}", rule.strategy,
                                  ways, value.name, graph_.size(rule.dim), rule.dim.name()),
                      fmt::format("a degree of at most {}", graph_.size(rule.dim)));
      }
    }
  }

  void make_views(int op) {
    const Op& node = graph_.ops()[op];
    result_.view_of[op].reserve(node.inputs.size());
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      result_.view_of[op].push_back(share(node.inputs[i].value, need(op, i)));
  }

  int share(int value, const Need& need) {
    Few<int, 2>& same = by_value_[value];
    for (int index : same) {
      const View& other = result_.views[index];
      if (other.need == need.need && other.gradient == need.gradient) return index;
    }
    View view{value, need.need, need.gradient};
    const Layout& layout = result_.layout[value];
    if (problems_.empty()) {
      view.forward = moves_.of(value, layout, view.need);
      if (graph_.value(value).needs_grad)
        view.backward = moves_.of(value, view.gradient, gradient_layout(layout));
    }
    result_.views.push_back(std::move(view));
    same.push_back(static_cast<int>(result_.views.size()) - 1);
    return same.back();
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<Rule>& rules_;
  const std::vector<StorageRule>& storage_;
  const std::vector<RotationRule>& rotation_rules_;
  Problems& problems_;
  Matched matched_;
  RuledKinds kinds_;
  Derived result_;
  CutChecks checks_;
  ViewMoves moves_;
  const Layout replicated_;
  std::vector<int> first_;                // by op: the first op that it is like (RuledKinds)
  std::vector<std::vector<Need>> needs_;  // by first op, then by input
  std::vector<Few<int, 2>> by_value_;     // by value: its views
  std::set<std::string> said_;
};

}  // namespace

Layout gradient_layout(const Layout& value) {
  Layout layout = value;
  for (Placement& p : layout) {
    if (!p.is_shard()) p = Placement::replicate();
  }
  return layout;
}

Derived derive(const Graph& graph, const Mesh& mesh, const std::vector<Rule>& rules,
               const std::vector<StorageRule>& storage, Problems& problems,
               const std::vector<RotationRule>& rotations) {
  return Deriver(graph, mesh, rules, storage, problems, rotations).run();
}

}  // namespace mw
