// Assigns ops to virtual pipeline stages and finds the values that cross from one to another.
#include "plan/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace mw {
namespace {

// Ops of data alone, without a gradient, are cheaper computed again than sent.
std::vector<bool> of_data_alone(const Graph& graph) {
  std::vector<bool> alone(graph.ops().size(), false);
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    alone[i] = std::all_of(op.inputs.begin(), op.inputs.end(), [&](const Use& use) {
      const Value& value = graph.value(use.value);
      return value.source == Value::Source::data ||
             (value.source == Value::Source::op && alone[value.producer]);
    });
    for (int output : op.outputs) alone[i] = alone[i] && !graph.value(output).needs_grad;
  }
  return alone;
}

class StageParter {
 public:
  StageParter(const Graph& graph, const Pipeline& pipeline, Partition& partition,
              Problems& problems)
      : graph_(graph), pipeline_(pipeline), part_(partition), problems_(problems) {}

  void run() {
    place_ops();
    part_.ops.resize(part_.vstages());
    for (int v = 0; v < part_.vstages(); ++v) part_.ops[v] = ops_of(v);
    for (std::size_t i = 0; i < graph_.ops().size() && problems_.empty(); ++i) cross(i);
    std::sort(part_.crossings.begin(), part_.crossings.end(), [](auto& a, auto& b) {
      return std::tie(a.from, a.value, a.to) < std::tie(b.from, b.value, b.to);
    });
    share();
  }

 private:
  void place_ops() {
    std::vector<int> of_layer;
    for (std::size_t v = 0; v < pipeline_.layers.size(); ++v) {
      of_layer.insert(of_layer.end(), pipeline_.layers[v], static_cast<int>(v));
    }
    const std::vector<bool> alone = of_data_alone(graph_);
    part_.vstage_of.resize(graph_.ops().size());
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      const int layer = graph_.ops()[i].layer;
      int& at = part_.vstage_of[i];
      if (alone[i]) {
        at = part_.vstages() == 1 ? 0 : -1;
      } else if (layer < 0) {
        at = 0;
      } else {
        at = layer < graph_.layers ? of_layer.at(layer) : part_.vstages() - 1;
      }
    }
  }

  std::vector<int> ops_of(int v) const {
    std::vector<int> list;
    std::vector<bool> needed(graph_.values().size(), false);
    for (std::size_t i = graph_.ops().size(); i-- > 0;) {
      const Op& op = graph_.ops()[i];
      const bool here =
          part_.vstage_of[i] == v ||
          (part_.vstage_of[i] < 0 && std::any_of(op.outputs.begin(), op.outputs.end(),
                                                 [&](int output) { return needed[output]; }));
      if (!here) continue;
      list.push_back(static_cast<int>(i));
      for (const Use& use : op.inputs) needed[use.value] = true;
    }
    std::reverse(list.begin(), list.end());
    return list;
  }

  void cross(std::size_t consumer) {
    const int to = part_.vstage_of[consumer];
    if (to < 0) return;
    for (const Use& use : graph_.ops()[consumer].inputs) {
      const Value& value = graph_.value(use.value);
      if (value.source != Value::Source::op) continue;
      const int from = part_.vstage_of[value.producer];
      if (from < 0 || from == to || !crossed_.insert({use.value, to}).second) continue;
      if (value.scalar != Scalar::real) {
        problems_.add(
            Stage::plan, "pipeline.sends", pipeline_.place,
            fmt::format("{}: {} of virtual stage {} reads {} of virtual stage {}, and only "
                        "real numbers are sent",
                        pipeline_.axis, graph_.ops()[consumer].name, to, value.name, from),
            "compute it from data where it is needed");
        continue;
      }
      if (from > to) {
        problems_.add(
            Stage::plan, "pipeline.sends", pipeline_.place,
            fmt::format("{}: {} of virtual stage {} reads {} before virtual stage {} "
                        "makes it",
                        pipeline_.axis, graph_.ops()[consumer].name, to, value.name, from),
            "a pipeline's values go from earlier layers to later ones; give the op the "
            "layer of what it reads");
        continue;
      }
      part_.crossings.push_back({use.value, from, to});
    }
  }

  void share() {
    std::vector<int> user(graph_.values().size(), -1);  // first stage that reads the value
    std::map<int, std::set<int>> users;                 // stages that read a value, if several do
    for (std::size_t i = 0; i < graph_.ops().size(); ++i) {
      for (const Use& use : graph_.ops()[i].inputs) {
        if (graph_.value(use.value).source != Value::Source::parameter) continue;
        const int stage = part_.stage_of[part_.vstage_of[i]];
        int& first = user[use.value];
        if (first < 0) first = stage;
        if (first != stage) users[use.value].insert({first, stage});
      }
    }
    for (const auto& [value, stages] : users)
      part_.shared[value].assign(stages.begin(), stages.end());
  }

  const Graph& graph_;
  const Pipeline& pipeline_;
  Partition& part_;
  Problems& problems_;
  std::set<std::pair<int, int>> crossed_;
};

}  // namespace

Partition part_layers(const Graph& graph, const Mesh& mesh, const Pipeline& pipeline,
                      Problems& problems) {
  Partition part;
  Pipeline whole = pipeline;
  if (whole.layers.empty()) whole.layers = {graph.layers};
  if (whole.stage_of.empty()) whole.stage_of.assign(whole.layers.size(), 0);
  part.stage_of = whole.stage_of;
  if (!pipeline.axis.empty()) {
    const Axis& axis = mesh.axis(pipeline.axis);
    if (axis.atoms.size() != 1) {
      problems.add(Stage::plan, "pipeline.lends", pipeline.place,
                   fmt::format("{}: another strategy borrows ranks of the axis {}", pipeline.axis,
                               pipeline.axis),
                   "stages lend no ranks; borrow from another axis");
      return part;
    }
    part.stages = axis.ways;
    part.stage_atom = axis.atoms.front();
  }
  if (whole.layers.size() != whole.stage_of.size()) {
    problems.add(Stage::plan, "pipeline.stages", pipeline.place,
                 fmt::format("{}: layers are split into {}, the schedule has {} virtual stages",
                             pipeline.axis, whole.layers.size(), whole.stage_of.size()),
                 "make them as many");
    return part;
  }
  const int sum = std::accumulate(whole.layers.begin(), whole.layers.end(), 0);
  if (sum != graph.layers) {
    problems.add(Stage::plan, "pipeline.layers", pipeline.place,
                 fmt::format("{}: the layout {} has {} layers, the model {}", pipeline.axis,
                             fmt::join(whole.layers, ", "), sum, graph.layers),
                 fmt::format("make the parts add up to {}", graph.layers));
    return part;
  }
  for (std::size_t v = 1; v + 1 < whole.layers.size(); ++v) {
    if (whole.layers[v] > 0) continue;
    problems.add(
        Stage::plan, "pipeline.layers", pipeline.place,
        fmt::format("{}: virtual stage {} of {} has no layer", pipeline.axis, v,
                    whole.layers.size()),
        "only the first and the last, which hold the embedding and the head, may have none");
    return part;
  }
  Problems found;
  StageParter(graph, whole, part, found).run();
  problems.add(found);
  return part;
}

}  // namespace mw
