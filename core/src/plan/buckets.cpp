// Splits buckets of parameters, by size or by layer, in the order in which backward completes
// their gradients.
#include <map>
#include <set>

#include "plan/build.h"

namespace mw {
namespace {

// The segments that write each gradient slot.
std::map<int, std::set<int>> writers_of(const Program& program) {
  std::map<int, std::set<int>> writers;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    for (const Instruction& i : program.segments[s].code) {
      for_each_slot(i, [&](int slot) {
        if (program.slots[slot].category == Category::gradients)
          writers[slot].insert(static_cast<int>(s));
      });
    }
  }
  return writers;
}

// The layer of a value's last use.
std::vector<int> layers_of(const Graph& graph) {
  std::vector<int> layer(graph.values().size(), 0);
  for (const Op& op : graph.ops()) {
    for (const Use& use : op.inputs) layer[use.value] = op.layer;
  }
  return layer;
}

}  // namespace

Instruction of_bucket(Code code, int bucket, const Program& program, const char* phase) {
  Instruction i;
  i.code = code;
  i.bucket = bucket;
  i.phase = phase;
  i.label = program.buckets[bucket].name;
  return i;
}

void split_buckets(Program& program, bool by_layer) {
  const std::map<int, std::set<int>> writers = writers_of(program);
  const std::vector<int> layer = layers_of(*program.graph);
  std::vector<Bucket> split;
  for (const Bucket& bucket : program.buckets) {
    if (!bucket.stages.empty()) {  // stages must split it alike, whatever they write
      split.push_back(bucket);
      continue;
    }
    std::map<std::pair<int, std::set<int>>, std::vector<int>> units;
    for (int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const auto written = writers.find(parameter.gradient_slot);
      units[{by_layer ? layer[parameter.value] : 0,
             written == writers.end() ? std::set<int>{} : written->second}]
          .push_back(p);
    }
    for (auto& [key, parameters] : units) {
      split.push_back(bucket);
      split.back().parameters = std::move(parameters);
    }
  }
  program.buckets = std::move(split);
  name_buckets(program);
}

}  // namespace mw
