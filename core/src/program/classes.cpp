// Finds which ranks of a stage have equal sizes, so that one of each kind is priced and not all.
// Along an atom, sizes change where the larger parts of an uneven cut end; the first rank
// differs where it alone contributes to a sum; and ops whose cost depends on the place of a part
// (causal attention over cut queries) make every coordinate differ, of which a few stand for
// all.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "meshwright/engine/op_cost.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/rank_view.h"

namespace mw {
namespace {

constexpr int samples = 4;  // coordinates that stand for all, where all differ

void add_cuts(const Layout& layout, std::vector<Dims>& cuts) {
  for (std::size_t a = 0; a < layout.size(); ++a) {
    if (layout[a].is_shard() && !contains(cuts[a], layout[a].dim)) cuts[a].push_back(layout[a].dim);
  }
}

// The coordinates along an atom at which a dim's parts become smaller.
void add_steps(const Program& program, std::size_t atom, const std::vector<Dims>& cuts,
               std::set<int>& starts) {
  const int ways = program.mesh.atoms()[atom].ways;
  for (Dim dim : cuts[atom]) {
    std::set<std::int64_t> sizes{program.graph->size(dim)};
    for (std::size_t outer = 0; outer < atom; ++outer) {
      if (!contains(cuts[outer], dim)) continue;
      const std::int64_t by = program.mesh.atoms()[outer].ways;
      for (std::int64_t size : std::set<std::int64_t>(sizes)) {
        sizes.insert(size / by);
        sizes.insert((size + by - 1) / by);
      }
    }
    for (std::int64_t size : sizes) {
      if (size % ways != 0) starts.insert(static_cast<int>(size % ways));
    }
  }
}

bool alike(const Cost& x, const Cost& y) {
  return x.executed == y.executed && x.workspace == y.workspace &&
         x.accelerator_workspace == y.accelerator_workspace;
}

// Whether each piece of an op costs the same with these dims as with those.
bool alike(const Program& program, int op, const LocalDims& a, const LocalDims& b) {
  const Op& the_op = program.graph->ops()[static_cast<std::size_t>(op)];
  const OpTraits& traits = program.graph->traits(op);
  const int element = bytes_of(program.dtype);
  const auto same = [&](Piece piece) {
    return alike(cost_of(the_op, piece, a, element), cost_of(the_op, piece, b, element));
  };
  if (!same(Piece::forward)) return false;
  if (!traits.differentiable) return true;
  return traits.splits ? same(Piece::dgrad) && same(Piece::wgrad) : same(Piece::backward);
}

// Whether a ring over the atom has parts of different sizes: each rank then sends other ones.
bool uneven_round(const Program& program, std::size_t atom) {
  const int a = static_cast<int>(atom);
  return std::any_of(program.rotations.begin(), program.rotations.end(), [&](const auto& entry) {
    const auto& [dim, atoms] = entry.second;
    return std::find(atoms.begin(), atoms.end(), a) != atoms.end() &&
           program.graph->size(dim) % program.mesh.ways(atoms) != 0;
  });
}

// Whether ranks whose parts are of one size, from coordinate `from` to `to` of the atom,
// differ all the same.
bool place_matters(const Program& program, LikeOps& like, std::size_t atom, int from, int to) {
  // Each rank orthogonalises the matrices of which it updates a part.
  for (const Bucket& bucket : program.buckets) {
    const auto& parts = bucket.shard_atoms;
    if (bucket.matrix &&
        std::find(parts.begin(), parts.end(), static_cast<int>(atom)) != parts.end())
      return true;
  }
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      const auto& list = i.owner >= 0 ? i.contributing[0] : std::vector<int>();
      if (std::find(list.begin(), list.end(), static_cast<int>(atom)) != list.end()) return true;
    }
  }
  if (uneven_round(program, atom)) return true;
  Coordinates first = program.first(), last = first;
  first[atom] = from;
  last[atom] = to;
  for (std::size_t i = 0; i < program.graph->ops().size(); ++i) {
    const int vstage = program.vstage_of.empty() ? -1 : program.vstage_of[i];
    // an op of another stage
    if (vstage >= 0 && program.stage_of[vstage] != program.stage) continue;
    if (!program.cut[i][atom].is_shard()) continue;
    // like an op that was looked at before
    if (like.first(static_cast<int>(i)) != static_cast<int>(i)) continue;
    const auto rotation = program.rotations.find(static_cast<int>(i));
    const int ring_steps =
        rotation == program.rotations.end() ? 1 : program.mesh.ways(rotation->second.atoms);
    for (int ring_step = 0; ring_step < ring_steps; ++ring_step) {
      const LocalDims a = program.local_dims(static_cast<int>(i), first, ring_step);
      const LocalDims b = program.local_dims(static_cast<int>(i), last, ring_step);
      const Dim dim = program.cut[i][atom].dim;
      // ranks of different sizes are told apart by add_steps()
      if (a.at(dim).size != b.at(dim).size) continue;
      if (!alike(program, static_cast<int>(i), a, b)) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<RankClass> rank_classes(const Program& program) {
  const std::size_t atoms = program.mesh.atoms().size();
  std::vector<Dims> cuts(atoms);
  const Layout* known = nullptr;  // the layout that was added last: the next often equals it
  const auto add = [&](const Layout& layout) {
    if (known == nullptr || *known != layout) add_cuts(layout, cuts);
    known = &layout;
  };
  for (const Layout& layout : program.cut) add(layout);
  for (const Layout& layout : program.follow) add(layout);
  for (const Slot& slot : program.slots) {
    if (!slot.is_flat()) add(slot.layout);
  }
  std::vector<bool> firsts(atoms, false);
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (i.code != Code::compute) continue;  // an add is priced alike on all ranks
      for (const auto& list : i.contributing) {
        for (const int atom : list) firsts[atom] = true;
      }
    }
  }
  LikeOps like(program);
  std::vector<RankClass> classes{{program.first(), 1}};
  for (std::size_t a = 0; a < atoms; ++a) {
    if (static_cast<int>(a) == program.stage_atom) continue;
    const int ways = program.mesh.atoms()[a].ways;
    std::set<int> starts{0};
    add_steps(program, a, cuts, starts);
    if (firsts[a] && ways > 1) starts.insert(1);
    if (uneven_round(program, a)) {
      // A rank of a ring sends on all parts but its successor's. So the last rank before the parts
      // become smaller sends most, and is in a class of its own.
      for (const int start : std::set<int>(starts)) {
        if (start > 0) starts.insert(start - 1);
      }
    }
    bool differ = false;
    for (auto start = starts.begin(); start != starts.end() && !differ; ++start) {
      const auto next = std::next(start);
      const int last = (next == starts.end() ? ways : *next) - 1;
      differ = *start < last && place_matters(program, like, a, *start, last);
    }
    if (differ) {
      for (int k = 1; k < std::min(samples, ways); ++k)
        starts.insert(k * ways / std::min(samples, ways));
      starts.insert(ways - 1);
    }
    std::vector<RankClass> split;
    for (auto start = starts.begin(); start != starts.end(); ++start) {
      const auto next = std::next(start);
      const int count = (next == starts.end() ? ways : *next) - *start;
      for (RankClass each : classes) {
        each.at[a] = *start;
        each.ranks *= count;
        split.push_back(std::move(each));
      }
    }
    classes = std::move(split);
  }
  return classes;
}

}  // namespace mw
