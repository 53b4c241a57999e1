// Chooses for each tensor that layers keep for backward whether it is saved, recomputed or sent to
// host memory, by exact bytes, recompute seconds and seconds of the host link (Beaumont et al.
// 2021, "Efficient Combination of Rematerialization and Offloading").
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/text.h"
#include "predict/fit.h"
#include "predict/machine.h"
#include "predict/prediction.h"

namespace mw {
namespace {

constexpr std::int64_t least_bytes = std::int64_t{64} << 10;  // smaller tensors stay on the device

// A tensor that a layer keeps for backward.
struct OffloadCandidate {
  std::string name;
  int layer = -1;
  double again = 0;  // seconds to make the tensor again from what else is kept
  double copy = 0;   // seconds of the host link, one way
  double worth() const { return again / std::max(copy, 1e-12); }
};

// The tensors that one virtual stage's forward keeps for backward, and the seconds that its layers
// compute.
class KeptTensors {
 public:
  KeptTensors(const Program& program, const Segment& forward, const Machine& machine, int threads)
      : program_(program),
        code_(forward.code),
        rank_(program, program.first(), 0, machine.scratch()),
        machine_(machine.of_rank(rank_, program.mesh.size(), threads)) {
    find_read(forward.vstage);
    for (std::size_t n = 0; n < code_.size(); ++n) {
      const Instruction& i = code_[n];
      for_each_use(i, [&](int slot, Access access) {
        if (access == Access::write || access == Access::add)
          writers_[slot].push_back(static_cast<int>(n));
      });
      if (i.op < 0 || !in_layers(op(i), *program_.graph)) continue;
      seconds_[op(i).layer] += seconds_of(i);
    }
  }

  // The kept tensors of layers, those first that are dearest to make again for their seconds of the
  // host link.
  std::vector<OffloadCandidate> list() const {
    std::map<std::string, OffloadCandidate> found;  // by name, as views of one value go together
    for (const auto& [slot, writers] : writers_) {
      const Instruction& maker = code_[writers.front()];
      const int layer = layer_of(slot, maker);
      if (layer < 0 || read_.count(slot) == 0) continue;
      const std::int64_t bytes = rank_.bytes(slot);
      if (bytes < least_bytes) continue;
      OffloadCandidate& kept = found[program_.slots[slot].name];
      std::set<int> counted;
      kept.name = program_.slots[slot].name;
      kept.layer = layer;
      kept.copy += machine_->host_copy(static_cast<double>(bytes));
      kept.again = std::max(kept.again, seconds_to_make(slot, counted));
    }
    std::vector<OffloadCandidate> list;
    for (auto& [name, kept] : found) list.push_back(std::move(kept));
    std::stable_sort(
        list.begin(), list.end(),
        [](const OffloadCandidate& a, const OffloadCandidate& b) { return a.worth() > b.worth(); });
    return list;
  }

  // Seconds that the forward of a layer computes.
  double layer_seconds(int layer) const {
    const auto found = seconds_.find(layer);
    return found == seconds_.end() ? 0 : found->second;
  }

 private:
  const Op& op(const Instruction& i) const { return program_.graph->ops()[i.op]; }

  void find_read(int vstage) {
    for (const Segment& segment : program_.segments) {
      if (segment.kind != SegmentKind::backward && segment.kind != SegmentKind::dgrad &&
          segment.kind != SegmentKind::wgrad)
        continue;
      if (segment.vstage != vstage) continue;
      for (const Instruction& i : segment.code)
        for_each_slot(i, [&](int slot) { read_.insert(slot); });
    }
  }

  // The layer of an activation; -1: the slot is no activation, or no op of a layer makes it.
  int layer_of(int slot, const Instruction& maker) const {
    const Slot& s = program_.slots[slot];
    if (s.persistent || s.category != Category::activations || s.alias_of >= 0) return -1;
    int producer = maker.op;
    if (producer < 0 && s.value >= 0) producer = program_.graph->value(s.value).producer;
    if (producer < 0) return -1;
    const Op& of = program_.graph->ops()[producer];
    return in_layers(of, *program_.graph) ? of.layer : -1;
  }

  double seconds_of(const Instruction& i) const {
    return machine_->work(rank_, i, footprint(rank_, i, FootprintParts::work)).seconds;
  }

  // Seconds to make the slot again, from slots that are kept or that no op of a layer makes.
  double seconds_to_make(int slot, std::set<int>& counted) const {
    const auto writers = writers_.find(slot);
    if (writers == writers_.end()) return 0;
    double seconds = 0;
    for (const int n : writers->second) {
      const Instruction& i = code_[n];
      if (!counted.insert(n).second) continue;
      seconds += seconds_of(i);
      for (const int input : i.inputs) {
        const bool kept = input < 0 || program_.slots[input].persistent || read_.count(input) > 0 ||
                          layer_of(input, i) < 0;
        if (!kept) seconds += seconds_to_make(input, counted);
      }
    }
    return seconds;
  }

  const Program& program_;
  const std::vector<Instruction>& code_;
  const RankView rank_;
  std::unique_ptr<RankMachine> machine_;
  std::set<int> read_;                       // slots that backward reads
  std::map<int, std::vector<int>> writers_;  // by slot: forward's instructions that write it
  std::map<int, double> seconds_;            // seconds of forward, by layer
};

// The kept tensors of one virtual stage in order of their worth, and the seconds of each layer's
// forward.
struct StageTensors {
  std::vector<OffloadCandidate> kept;
  std::map<int, double> layer_seconds;
};

std::vector<StageTensors> stages_of(const Plan& plan, const Machine& machine, std::int64_t limit) {
  std::vector<StageTensors> stages;
  for (const Program& program : plan.programs) {
    if (highest_peak({&program, 1}, machine.scratch()) + plan.request.kept_by_libraries <= limit)
      continue;  // all ranks fit: nothing needs to go to host memory
    for (const Segment& segment : program.segments) {
      if (segment.kind != SegmentKind::forward || segment.copy_of >= 0) continue;
      const KeptTensors tensors(program, segment, machine, plan.request.threads);
      StageTensors stage{tensors.list(), {}};
      for (const OffloadCandidate& kept : stage.kept)
        stage.layer_seconds[kept.layer] = tensors.layer_seconds(kept.layer);
      stages.push_back(std::move(stage));
    }
  }
  return stages;
}

// Fills a knapsack for each layer: the tensors of most worth that the host link can carry in
// `share` of the layer's forward. What is left of one layer's share goes to the next layer.
std::set<std::string> chosen(const std::vector<StageTensors>& stages, double share) {
  std::set<std::string> names;
  for (const StageTensors& stage : stages) {
    double left = 0;
    for (const auto& [layer, seconds] : stage.layer_seconds) {
      left += share * seconds;
      for (const OffloadCandidate& kept : stage.kept) {
        if (kept.layer != layer || kept.copy > left) continue;
        left -= kept.copy;
        names.insert(kept.name);
      }
    }
  }
  return names;
}

bool has_link(const Plan& plan, const Machine& machine) {
  const Program& program = plan.programs.front();
  const RankView rank(program, program.first(), 0, machine.scratch());
  return machine.of_rank(rank, plan.ranks(), plan.request.threads)->host_copy(1) > 0;
}

// "attention.q in 3 layers, mlp.up in 4 layers".
std::string text_of(const std::set<std::string>& names) {
  std::map<std::string, int> layers;
  for (const std::string& name : names) ++layers[part_of_layer(name)];
  std::string text;
  for (const auto& [part, count] : layers)
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", part, plural(count, "layer"));
  return text.empty() ? "nothing" : text;
}

std::string nothing_sent(std::int64_t limit, bool all_fit) {
  return fmt::format(
             "offload: nothing goes to host memory, {} {}",
             all_fit ? "as no rank holds more without it than" : "as no plan with it that fits",
             memory_text(limit)) +
         (all_fit ? "" : " is faster");
}

}  // namespace

std::shared_ptr<const Plan> fit_with_offload(const PlanRequest& request, const PlanMaker& fit,
                                             const Machine* machine, Problems& problems) {
  if (request.offload.kind != OffloadPolicy::Kind::none) {
    problems.add(Stage::plan, "option.conflict", "offload",
                 "offload: recompute.offload chooses what goes to host memory, and offload says it",
                 "leave one of the two out");
    return nullptr;
  }
  PlanRequest alone = request;
  alone.recompute.offload = false;
  PlanRequest whole = alone;
  whole.recompute.kind = RecomputePolicy::Kind::none;
  const auto plan = make_plan(whole, problems);
  if (plan == nullptr) return nullptr;
  if (machine == nullptr || !has_link(*plan, *machine)) {
    problems.add(Stage::plan, "recompute.offload", "recompute.offload",
                 "recompute.offload: the choice of tensors for host memory needs a cluster whose "
                 "devices have a host link",
                 "name a cluster whose device has `link`, or write offload = { ops = … }");
    return nullptr;
  }
  const std::vector<StageTensors> stages = stages_of(*plan, *machine, request.recompute.fit);
  std::shared_ptr<const Plan> best;
  std::set<std::set<std::string>> tried;
  double least = std::numeric_limits<double>::infinity();
  Problems refusals;
  for (const double share : {0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 1e9}) {
    const std::set<std::string> names = chosen(stages, share);
    if (!tried.insert(names).second) continue;
    PlanRequest with = alone;
    if (names.empty()) {
      with.notes.push_back(nothing_sent(request.recompute.fit, stages.empty()));
    } else {
      with.offload.kind = OffloadPolicy::Kind::fixed;
      with.offload.set.tensors = names;
      with.offload.set.prefetch = 1;
      with.notes.push_back(fmt::format("offload, to fit {} with the fewest seconds: {}",
                                       memory_text(request.recompute.fit), text_of(names)));
    }
    Problems none;
    const auto made = fit(with, none);
    if (made == nullptr) {
      if (refusals.empty()) refusals.add(none);
      continue;
    }
    const double seconds = predict(*made, *machine, request.threads).step_seconds;
    if (seconds >= least) continue;
    least = seconds;
    best = made;
  }
  if (best == nullptr) problems.add(refusals);
  return best;
}

}  // namespace mw
