// Makes an op's tables atom by atom, and checks whether an op may be cut as its program says.
#include "prove/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace mw::proving {

OpTables::OpTables(const Program& program)
    : program_(program), graph_(*program.graph), plain_(program.graph->ops().size()) {
  for (std::size_t a = 0; a < program.mesh.atoms().size(); ++a) {
    const int atom = static_cast<int>(a);
    // Where replicas differ, the proof is of one of them.
    const bool apart = atom == program.stage_atom || program.parts_replicas(atom);
    if (program.mesh.atoms()[a].ways > 1 && !apart) living_ |= Atoms{1} << a;
  }
}

Placement OpTables::cut_as(int op, int atom, const Dims& called, const Dims& own) const {
  for (const Placement& by : {program_.cut[op][atom], program_.follow[op][atom]}) {
    if (!by.is_shard()) continue;
    for (std::size_t k = 0; k < called.size(); ++k) {
      if (called[k] == by.dim) return Placement::shard(own[k]);
    }
  }
  return Placement::replicate();
}

Placement OpTables::out(int op, std::size_t output, int atom, bool carried) const {
  const Op& node = graph_.ops()[op];
  const Value& value = graph_.value(node.outputs[output]);
  if (!program_.cut[op][atom].is_shard())
    return carried ? Placement::partial() : Placement::replicate();
  const Placement cut = cut_as(op, atom, node.output_dims[output], value.dims);
  if (cut.is_shard()) return cut;
  // Indices cannot be sums: an op whose indices depend on all of a dim declares that dim whole.
  if (value.scalar == Scalar::index) return Placement::replicate();
  return Placement::partial(node.contraction);
}

Placement OpTables::need(int op, std::size_t input, int atom, bool carried) const {
  const Op& node = graph_.ops()[op];
  const Use& use = node.inputs[input];
  const bool sum = !node.outputs.empty() && out(op, 0, atom, carried).is_partial();
  if (!program_.cut[op][atom].is_shard()) {
    return carried && (use.linear || use.additive) ? Placement::partial() : Placement::replicate();
  }
  const Placement cut = cut_as(op, atom, use.dims, graph_.value(use.value).dims);
  if (cut.is_shard()) return cut;
  return use.additive && sum ? Placement::partial(node.contraction) : Placement::replicate();
}

OpTable OpTables::make(int op, Atoms carried) const {
  const Op& node = graph_.ops()[op];
  const OpTraits& traits = graph_.traits(op);
  const Layout whole(program_.mesh.atoms().size());
  OpTable table;
  table.need.assign(node.inputs.size(), whole);
  table.gradient = table.need;
  table.out.assign(node.outputs.size(), whole);
  table.arrives = table.out;
  table.saved.assign(traits.saved.size(), whole);
  for (int a = 0; a < static_cast<int>(whole.size()); ++a) {
    if (!lives(a)) continue;
    const bool carries = (carried >> a & 1) != 0, cut = program_.cut[op][a].is_shard();
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const Placement needed = table.need[i][a] = need(op, i, a, carries);
      if (needed.is_shard()) {
        table.gradient[i][a] = needed;
      } else if (needed.is_replicate() && (cut || carries)) {
        table.gradient[i][a] = Placement::partial();
      }
    }
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      const Placement lies = table.out[k][a] = out(op, k, a, carries);
      if (lies.is_shard()) table.arrives[k][a] = lies;
    }
    for (std::size_t k = 0; k < traits.saved.size(); ++k)
      table.saved[k][a] = cut_as(op, a, traits.saved[k].dims, traits.saved[k].dims);
  }
  return table;
}

const OpTable& OpTables::of(int op, Atoms carried) {
  if (carried == 0) {
    if (!plain_[op]) plain_[op] = std::make_unique<const OpTable>(make(op, 0));
    return *plain_[op];
  }
  const auto [known, missing] = others_.try_emplace({op, carried});
  if (missing) known->second = make(op, carried);
  return known->second;
}

CutFault OpTables::fault(int op) const {
  const Op& node = graph_.ops()[op];
  const Layout &cut = program_.cut[op], &follow = program_.follow[op];
  const auto rotation = program_.rotations.find(op);
  const auto rotates = [&](int atom) {
    return rotation != program_.rotations.end() &&
           std::find(rotation->second.atoms.begin(), rotation->second.atoms.end(), atom) !=
               rotation->second.atoms.end();
  };
  const auto axis = [&](int atom) { return program_.mesh.atoms()[atom].name; };
  std::set<Dim> cuts, follows;
  std::set<std::pair<Dim, Dim>> left;  // (dim, follower): an outer atom cuts the dim alone
  std::map<Dim, std::int64_t> ways;
  for (int a = 0; a < static_cast<int>(cut.size()); ++a) {
    if (a == program_.stage_atom && program_.mesh.atoms()[a].ways > 1 && cut[a].is_shard()) {
      return {true, fmt::format("{} is cut by {} over {}, whose ranks hold other ops", node.name,
                                cut[a].dim.name(), axis(a))};
    }
    if (!lives(a) || !cut[a].is_shard()) continue;
    const Dim dim = cut[a].dim, follower = follow[a].is_shard() ? follow[a].dim : Dim();
    if (contains(node.whole, dim) || !node.has(dim)) {
      return {false, fmt::format("{} is cut by {} over {}, which it needs whole", node.name,
                                 dim.name(), axis(a))};
    }
    if (follower.valid() && contains(node.whole, follower) &&
        !(rotates(a) && rotation->second.dim == follower)) {
      return {false, fmt::format("{} has {} cut over {}, which it needs whole", node.name,
                                 follower.name(), axis(a))};
    }
    for (const auto& [of, leader] : node.follows) {
      if (leader != dim) continue;
      if (follower != of) left.insert({dim, of});
      if (follower == of && left.count({dim, of}) > 0) {
        return {false, fmt::format("{} has {} cut over {}, though ranks outside of it cut {} alone",
                                   node.name, of.name(), axis(a), dim.name())};
      }
    }
    const std::int64_t parts = program_.mesh.atoms()[a].ways;
    cuts.insert(dim);
    ways[dim] = std::max<std::int64_t>(1, ways[dim]) * parts;
    if (!follower.valid()) continue;
    follows.insert(follower);
    if (!rotates(a)) ways[follower] = std::max<std::int64_t>(1, ways[follower]) * parts;
  }
  for (const Dim dim : follows) {
    if (cuts.count(dim) > 0) {
      return {false, fmt::format("{} has {} cut by itself and as what follows another dim",
                                 node.name, dim.name())};
    }
  }
  for (const auto& [dim, parts] : ways) {
    const auto info = graph_.dims().find(dim);
    if (info == graph_.dims().end() || !info->second.even || info->second.size % parts == 0)
      continue;
    return {false, fmt::format("{} is cut by {} = {} over {} ranks, which do not divide it",
                               node.name, dim.name(), info->second.size, parts)};
  }
  return {};
}

}  // namespace mw::proving
