// Lets replicas differ: takes their atoms out of the reductions of gradients, and makes the
// programs of the outer steps that bring the replicas together.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/outer_steps.h"
#include "plan/build.h"

namespace mw {
namespace {

// The fragment of each value of the graph, by the last layer that reads it: the same on all stages.
std::vector<int> fragments_of(const Graph& graph, int fragments) {
  const int layers = std::max(1, graph.layers);
  std::vector<int> layer(graph.values().size(), 0);
  for (const Op& op : graph.ops()) {
    for (const Use& use : op.inputs)
      layer[use.value] = std::max(layer[use.value], std::min(op.layer, layers - 1));
  }
  for (int& one : layer) one = one * fragments / layers;
  return layer;
}

// Refuses other splits of the batch before that over replicas, as a replica's samples would not lie
// together, and what gathers them would go over other replicas; and cuts of other dims over them.
void check_order(const Program& program, const OuterSteps& steps) {
  static const Dim batch("batch");
  for (int atom = 0; atom < steps.atoms.front(); ++atom) {
    const bool splits = std::ranges::any_of(program.cut, [&](const Layout& cut) {
      return cut[atom].is_shard() && cut[atom].dim == batch;
    });
    if (splits && program.mesh.atoms()[atom].ways > 1)
      throw Error(
          Stage::plan, "replicas.order", "",
          fmt::format("{} splits the batch before replicas do", program.mesh.name_of({atom})),
          "put the entry for replicas first");
  }
  for (const int atom : steps.atoms) {
    for (const Layout& cut : program.cut) {
      if (cut[atom].is_shard() && cut[atom].dim != batch)
        throw Error(Stage::plan, "replicas.cut", "",
                    fmt::format("an entry cuts {} over {}, whose ranks have replicas of the whole "
                                "model",
                                cut[atom].dim.name(), program.mesh.name_of({atom})),
                    "give that entry an axis of its own");
    }
  }
}

void part(Program& program, const OuterSteps& steps) {
  if (program.outer != nullptr)
    throw Error(Stage::plan, "replicas.twice", "",
                "the plan has replicas that differ already, by another entry",
                "one entry for all replicas");
  const int layers = std::max(1, program.graph->layers);
  if (steps.fragments > layers)
    throw Error(Stage::plan, "replicas.fragments", "fragments",
                fmt::format("{} fragments are more than the model's {}", steps.fragments,
                            plural(layers, "layer")),
                fmt::format("nearest: fragments = {}", layers));
  check_order(program, steps);
  program.outer = std::make_shared<const OuterSteps>(steps);
  const std::vector<int> fragments = fragments_of(*program.graph, steps.fragments);
  std::vector<Bucket> split;
  for (const Bucket& bucket : program.buckets) {
    if (bucket.frozen) {
      split.push_back(bucket);
      continue;
    }
    std::map<int, std::vector<int>> parts;
    for (const int p : bucket.parameters)
      parts[fragments[program.parameters[p].value]].push_back(p);
    for (auto& [fragment, parameters] : parts) {
      Bucket& part = split.emplace_back(bucket);
      part.parameters = std::move(parameters);
      part.fragment = fragment;
      std::erase_if(part.reduce_atoms,
                    [&](int atom) { return std::ranges::count(steps.atoms, atom) > 0; });
    }
  }
  program.buckets = std::move(split);
  name_buckets(program);
}

class OuterProgram {
 public:
  OuterProgram(Program& program, const OuterEvent& event)
      : program_(program), outer_(*program.outer), event_(event) {}

  void run() {
    program_.segments.clear();
    program_.timeline.clear();
    std::vector<int> buckets;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      Bucket& bucket = program_.buckets[b];
      bucket.gather_overlaps_forward = bucket.update_overlaps_forward = false;
      if (bucket.fragment == event_.fragment) buckets.push_back(static_cast<int>(b));
    }
    // The sum of a bucket is under way while the bucket before it is updated.
    for (std::size_t n = 0; n < buckets.size(); ++n) {
      if (event_.begins) begin(buckets[n]);
      if (event_.ends && n > 0) end(buckets[n - 1]);
    }
    if (event_.ends && !buckets.empty()) end(buckets.back());
    program_.segments.push_back(
        {.name = "outer step", .code = std::move(code_), .kind = SegmentKind::finish});
    program_.timeline.push_back({.segment = 0});
  }

 private:
  Instruction on(int bucket, Code code, Serves serves = Serves::update) const {
    return of_bucket(code, bucket, program_, serves, "outer");
  }

  void begin(int bucket) {
    const FlatSlots& flat = program_.buckets[bucket].flat;
    Instruction made = on(bucket, Code::compute);
    made.update = Update::outer_gradient;
    made.inputs = {flat.anchor, flat.updated()};
    made.outputs = {flat.outer_gradient};
    code_.push_back(std::move(made));
    if (flat.outer_sum >= 0) code_.push_back(sum(bucket, Code::start));
  }

  void end(int bucket) {
    const Bucket& b = program_.buckets[bucket];
    const FlatSlots& flat = b.flat;
    if (flat.outer_sum >= 0) {
      code_.push_back(sum(bucket, Code::wait));
      // Where the sum began after an earlier step, code that has read tensors since then, as a
      // checkpoint does, may have awaited it.
      code_.back().again = !event_.begins;
    }
    Instruction update = on(bucket, Code::compute);
    update.update = Update::outer_step;
    update.inputs = {flat.outer_gradient};
    update.outputs = {flat.anchor, flat.updated()};
    update.saved = {flat.outer_states.begin(), flat.outer_states.end()};
    if (program_.slots[flat.outer_gradient].transient) update.release = {flat.outer_gradient};
    code_.push_back(std::move(update));
    if (flat.master >= 0) {
      Instruction copy = on(bucket, Code::copy);
      copy.inputs = {flat.master};
      copy.outputs = {flat.stored};
      code_.push_back(std::move(copy));
    }
    if (!b.gathered_once_updated()) return;
    std::ranges::move(begin_gather(program_, bucket, "outer"), std::back_inserter(code_));
    code_.push_back(end_gather(program_, bucket, "outer"));
  }

  // Begins, or awaits, the sum of a bucket's outer gradients.
  Instruction sum(int bucket, Code code) const {
    const FlatSlots& flat = program_.buckets[bucket].flat;
    Instruction i = on(bucket, code, Serves::outer_gradients);
    i.inputs = i.outputs = {flat.outer_gradient};
    i.move.kind = Move::Kind::all_reduce;
    i.move.atoms = outer_.atoms;
    i.pending = flat.outer_sum;
    return i;
  }

  Program& program_;
  const OuterSteps& outer_;
  const OuterEvent event_;
  std::vector<Instruction> code_;
};

}  // namespace

Pass outer_steps(const std::string& axis, OuterSteps steps) {
  steps.rule = steps.optimizer ? steps.optimizer->rule(0) : UpdateRule{};
  return {.name = "outer steps",
          .run =
              [axis, steps = std::move(steps)](Program& program) {
                OuterSteps own = steps;
                own.atoms = program.mesh.axis(axis).atoms;
                part(program, own);
              },
          .order = Pass::buckets,
          .axis = axis};
}

std::shared_ptr<const Plan> outer_plan(const Plan& plan, const OuterEvent& event) {
  auto made = std::make_shared<Plan>(plan);
  made->request.priced_data = nullptr;  // no attention runs, whose time documents would decide
  for (Program& program : made->programs) OuterProgram(program, event).run();
  return made;
}

}  // namespace mw
