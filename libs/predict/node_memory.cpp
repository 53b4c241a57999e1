// Adds up what the ranks of each node hold in host memory.
#include "predict/node_memory.h"

#include <algorithm>
#include <iterator>

namespace mw {

void NodeMemory::add(const Program& program, const RankClass& kind, const MemoryForecast& memory) {
  Stage& stage = stages_[&program];
  stage.bytes[kind.at] = memory[Category::host];
  stage.begins.resize(kind.at.size());
  for (std::size_t a = 0; a < kind.at.size(); ++a) stage.begins[a].insert(kind.at[a]);
}

bool NodeMemory::Stage::alike() const {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](const auto& one) { return one.second == bytes.begin()->second; });
}

std::int64_t NodeMemory::most(const Plan& plan, int ranks_of_node) const {
  // Bytes of a rank, of stages whose ranks all have as much.
  std::map<const Program*, std::int64_t> of_each;
  std::int64_t highest = 0;
  for (const auto& [program, stage] : stages_) {
    if (stage.alike()) of_each[program] = stage.bytes.begin()->second;
    for (const auto& [at, bytes] : stage.bytes) highest = std::max(highest, bytes);
  }
  if (highest == 0) return 0;
  if (plan.programs.size() == 1 && of_each.size() == 1)
    return highest * std::min(ranks_of_node, plan.ranks());
  const auto of = [&](int rank) {
    const Program* program = &plan.program_of(rank);
    if (const auto same = of_each.find(program); same != of_each.end()) return same->second;
    const Stage& stage = stages_.at(program);
    Coordinates at = plan.mesh.coordinates(rank);
    for (std::size_t a = 0; a < at.size(); ++a)
      at[a] = *std::prev(stage.begins[a].upper_bound(at[a]));
    return stage.bytes.at(at);
  };
  std::int64_t most = 0, node = 0;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    if (rank % ranks_of_node == 0) node = 0;
    most = std::max(most, node += of(rank));
  }
  return most;
}

}  // namespace mw
