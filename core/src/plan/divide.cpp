// Divides ops along a dim that they need whole, into as many parts as the rules cut the dim
// into. The rules for the dim then hold for the dim of parts too, so that what ranks exchange
// about their parts follows from placements, as for any other value.
#include "plan/divide.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace mw {
namespace {

class Divider {
 public:
  Divider(const std::shared_ptr<const Graph>& graph, const Draft& draft)
      : graph_(graph),
        mesh_(draft.mesh()),
        made_{graph, draft.rules(), draft.order(), draft.document_parts()} {}

  DividedGraph run() {
    const std::vector<Rule> rules = made_.rules;
    Graph graph = *graph_;
    std::map<int, Dim> parts;
    for (std::size_t op = 0; op < graph_->ops().size(); ++op) {
      const Dim along = graph_->traits(static_cast<int>(op)).divides;
      if (!along.valid()) continue;
      const std::vector<int> atoms = atoms_that_cut(graph_->ops()[op], along, rules);
      if (atoms.empty()) continue;
      if (const Dim dim = parts_of(along, atoms, graph); dim.valid())
        parts[static_cast<int>(op)] = dim;
    }
    if (parts.empty()) return std::move(made_);
    for (const Rule& rule : rules) copy_rule(rule, parts);
    made_.graph = std::make_shared<const Graph>(graph.with_parts(parts));
    return std::move(made_);
  }

 private:
  // The atoms on which a rule for the dim would win the op, if the op did not need the dim
  // whole.
  std::vector<int> atoms_that_cut(const Op& op, Dim along, const std::vector<Rule>& rules) const {
    std::map<int, const Rule*> winner;
    for (const Rule& rule : rules) {
      const bool follows = std::any_of(op.follows.begin(), op.follows.end(),
                                       [&](const auto& pair) { return pair.first == rule.dim; });
      if (!op.has(rule.dim) || follows || (rule.where && !rule.where(op))) continue;
      if (rule.dim != along && contains(op.whole, rule.dim)) continue;
      for (const int atom : rule.atoms(mesh_)) {
        const Rule*& best = winner[atom];
        if (best == nullptr || (rule.named && !best->named)) best = &rule;
      }
    }
    std::vector<int> atoms;
    for (const auto& [atom, rule] : winner) {
      if (rule->dim == along && mesh_.atoms()[atom].ways > 1) atoms.push_back(atom);
    }
    return atoms;
  }

  // The dim of the parts into which these atoms cut a dim; an invalid dim if some rank would have
  // no part, or only a piece of one.
  Dim parts_of(Dim along, const std::vector<int>& atoms, Graph& graph) {
    const auto [known, fresh] = known_.try_emplace({along, atoms});
    if (!fresh) return known->second;
    const std::int64_t ways = mesh_.ways(atoms), size = graph.size(along);
    const auto order = made_.order.find(along);
    const bool lies = order != made_.order.end();
    const std::int64_t count = lies ? static_cast<std::int64_t>(order->second.size()) : ways;
    if (size < ways || (lies && !fits(order->second, size, atoms, count))) return {};
    std::string name = along.name() + "_parts";
    for (int n = 2; graph.dims().count(Dim(name)) > 0; ++n)
      name = fmt::format("{}_parts_{}", along.name(), n);
    const Dim dim(name);
    graph.set_dim(dim, count, true, {}, "parts of " + along.name());
    if (lies) made_.order[dim] = places_of(order->second);
    return known->second = dim;
  }

  // Adds the rule for each dim of parts that its atoms cut, if it holds for an op of these parts.
  void copy_rule(const Rule& rule, const std::map<int, Dim>& parts) {
    const auto& own = rule.atoms(mesh_);
    for (const auto& [key, dim] : known_) {
      const auto& [along, atoms] = key;
      const bool cuts = std::any_of(own.begin(), own.end(), [&, &atoms = atoms](int atom) {
        return std::find(atoms.begin(), atoms.end(), atom) != atoms.end();
      });
      const bool holds = std::any_of(parts.begin(), parts.end(), [&, dim = dim](const auto& one) {
        return one.second == dim && (!rule.where || rule.where(graph_->ops()[one.first]));
      });
      if (rule.dim != along || !cuts || !holds) continue;
      made_.rules.push_back(rule);
      made_.rules.back().dim = dim;
    }
  }

  // Whether the ranges of an order lie on the ranks as even parts do, each on one rank.
  bool fits(const std::vector<Range>& order, std::int64_t size, const std::vector<int>& atoms,
            std::int64_t count) const {
    const auto small = [&](const Range& range) { return range.size < size / count; };
    if (count % mesh_.ways(atoms) != 0 || std::any_of(order.begin(), order.end(), small))
      return false;
    Layout layout(mesh_.atoms().size());
    for (const int atom : atoms) layout[atom] = Placement::shard("cut");
    std::vector<std::int64_t> begins{0};
    for (const Range& range : order) begins.push_back(begins.back() + range.size);
    const std::vector<int> ranks = mesh_.group(0, atoms);
    return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const Coordinates at = mesh_.coordinates(rank);
      const Range own = local_range("cut", size, layout, mesh_, at),
                  parts = local_range("cut", count, layout, mesh_, at);
      return begins[parts.offset] == own.offset;
    });
  }

  // The place in the dim of each range of an order.
  static std::vector<Range> places_of(const std::vector<Range>& order) {
    std::vector<std::size_t> sorted(order.size());
    std::iota(sorted.begin(), sorted.end(), 0);
    std::sort(sorted.begin(), sorted.end(),
              [&](std::size_t a, std::size_t b) { return order[a].offset < order[b].offset; });
    std::vector<Range> places(order.size());
    for (std::size_t place = 0; place < sorted.size(); ++place)
      places[sorted[place]] = {static_cast<std::int64_t>(place), 1};
    return places;
  }

  const std::shared_ptr<const Graph>& graph_;
  const Mesh& mesh_;
  DividedGraph made_;
  std::map<std::pair<Dim, std::vector<int>>, Dim> known_;
};

}  // namespace

DividedGraph divide(const std::shared_ptr<const Graph>& model, const Draft& draft) {
  std::shared_ptr<const Graph> graph = model;
  if (const int parts = draft.document_parts(); parts > 1)
    graph = std::make_shared<const Graph>(model->with_parted_documents(parts));
  return Divider(graph, draft).run();
}

}  // namespace mw
