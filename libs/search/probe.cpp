// Resolves plans of few layers for a search, and reads off them what they send and hold, and what
// their buckets cost.
#include "search/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/rank_view.h"
#include "predict/network.h"

namespace mw {

std::vector<StrategyChoice> choices_of(const SearchRequest& request, const Json& entries,
                                       std::map<Json, StrategyChoice>& made) {
  std::vector<StrategyChoice> choices;
  for (const Json& entry : entries) {
    auto found = made.find(entry);
    if (found == made.end()) found = made.emplace(entry, request.base.make_strategy(entry)).first;
    choices.push_back(found->second);
  }
  return choices;
}

namespace {

// The place in ByLink and PerLink of what a transfer goes over. A cluster tells more links apart
// (OnCluster::Link), of which those with even numbers are inside a node.
std::size_t wire_of(const TransferCost& cost) {
  return static_cast<std::size_t>(cost.link % 2);
}

// How the parameters of a plan lie: what decides what the data's ranks do with them.
std::string parameters_text(const Plan& plan) {
  const Program& program = plan.programs.front();
  std::string text;
  for (const Atom& atom : plan.mesh.atoms()) text += fmt::format("{} ", atom.ways);
  const auto add = [&](const std::vector<int>& atoms) {
    for (const int atom : atoms) text += fmt::format(",{}", atom);
  };
  const Coordinates first = program.first();
  for (const Bucket& bucket : program.buckets) {
    text += fmt::format("/{} {} ", bucket.counts ? 1 : 0, bucket.matrix ? 1 : 0);
    add(bucket.reduce_atoms);
    for (const int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      text += fmt::format(";{} {}", parameter.value,
                          program.local_bytes(program.slots[parameter.slot], first));
      for (std::size_t a = 0; a < parameter.stored.size(); ++a) {
        if (parameter.stored[a].is_shard()) text += fmt::format(" {}", a);
      }
    }
  }
  return text;
}

// Plans of few ranks would have more of what a node's links to its host carry together.
ClusterMachine shared_by(Cluster cluster, const Stack& stack, int ranks) {
  if (cluster.host_node_link > 0) {
    const double bytes = cluster.host_link;  // for a second
    cluster.host_link =
        bytes / host_copy_seconds(cluster, bytes, std::min(ranks, cluster.node.devices));
    cluster.host_node_link = 0;
  }
  return {std::move(cluster), stack};
}

}  // namespace

SearchProbes::SearchProbes(const SearchRequest& request, const SearchSpace& space,
                           const Cluster& cluster)
    : request_(request),
      space_(space),
      machine_(shared_by(cluster, request.machine->stack(), request.ranks)) {
  choose_layers();
}

std::shared_ptr<const Model> SearchProbes::model_with(std::int64_t layers) {
  const auto found = models_.find(layers);
  if (found != models_.end()) return found->second;
  std::shared_ptr<const Model> model;
  if (layers == request_.base.plan->graph->layers) {
    model = request_.base.plan->request.model;
  } else if (request_.with_layers) {
    model = request_.with_layers(layers);
  }
  return models_[layers] = model;
}

// The fewest layers that the model takes (all that are unlike the others among them), one more, and
// two more than that: what a layer adds is the difference.
void SearchProbes::choose_layers() {
  const std::int64_t all = request_.base.plan->graph->layers;
  std::int64_t fewest = 1;
  while (fewest + 3 < all && fewest <= 8 && !model_with(fewest)) ++fewest;
  if (fewest + 3 < all && model_with(fewest) && model_with(fewest + 1) && model_with(fewest + 3)) {
    layers_ = {fewest + 1, fewest + 3};
  } else {
    layers_ = {all, all};
  }
}

int SearchProbes::policies() const {
  return static_cast<int>(request_.recompute.size() * request_.offload.size());
}
const RecomputeChoice& SearchProbes::recompute_of(int policy) const {
  return request_.recompute.at(static_cast<std::size_t>(policy) / request_.offload.size());
}
bool SearchProbes::fits_later(int policy) const {
  const auto fits = [](const RecomputeChoice& choice) {
    return choice.policy.kind == RecomputePolicy::Kind::fit;
  };
  return fits(recompute_of(policy)) && !std::ranges::all_of(request_.recompute, fits);
}
std::vector<int> SearchProbes::fitted(int policy) const {
  const auto offloads = static_cast<int>(request_.offload.size());
  std::vector<int> found;
  for (int other = policy % offloads; other < policies(); other += offloads) {
    if (fits_later(other)) found.push_back(other);
  }
  return found;
}
const OffloadChoice& SearchProbes::offload_of(int policy) const {
  return request_.offload.at(static_cast<std::size_t>(policy) % request_.offload.size());
}

// Policies that look at bytes may choose otherwise for another microbatch.
bool SearchProbes::same_for_all_sizes(int policy) const {
  using Of = RecomputePolicy::Kind;
  const Of kind = recompute_of(policy).policy.kind;
  const OffloadPolicy& away = offload_of(policy).policy;
  return (kind == Of::none || kind == Of::selective || kind == Of::full || kind == Of::ops) &&
         (away.kind == OffloadPolicy::Kind::none || away.kind == OffloadPolicy::Kind::full) &&
         away.least <= 1;
}

std::shared_ptr<const Plan> SearchProbes::make(const PlanRequest& request) {
  throw_if_stopped();
  ++plans_;
  Problems problems;
  try {
    auto plan = make_plan(request, problems);
    if (plan) check_placed(*plan, *request_.machine, problems);
    if (plan && problems.empty()) return plan;
    refused(problems.list());
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {  // of a strategy's own
    refused(error.problems());
  }
  return nullptr;
}

void SearchProbes::refused(const std::vector<Problem>& problems) {
  if (!refusal_ && !problems.empty()) refusal_ = problems.front();
}

std::shared_ptr<const Plan> SearchProbes::plan(const Asked& asked) {
  if (asked.inner != kept_of_) kept_.clear();
  kept_of_ = asked.inner;
  const auto [known, missing] = kept_.try_emplace(asked);
  if (missing) known->second = made(asked);
  return known->second;
}

std::shared_ptr<const Plan> SearchProbes::made(const Asked& asked) {
  PlanRequest probe = request_.base.plan->request;
  probe.model = model_with(asked.layers);
  const DataSide* side = asked.data >= 0 ? &space_.data.at(asked.data) : nullptr;
  try {
    probe.strategies = choices_of(
        request_,
        entries_of(nullptr, 1, side, {asked.ways, asked.groups}, space_.inner.at(asked.inner)),
        choices_);
  } catch (const Error& error) {  // these ways are none of its
    refused(error.problems());
    return nullptr;
  }
  // Two microbatches: gradients are added up, and the last one differs.
  probe.batch = 2 * asked.microbatch * asked.ways;
  probe.microbatch = asked.microbatch;
  probe.recompute = recompute_of(asked.policy).policy;
  probe.offload = offload_of(asked.policy).policy;
  auto plan = make(probe);
  return plan && plan->stages() == 1 ? plan : nullptr;
}

SearchProbes::Asked SearchProbes::plain(int inner) const {
  Asked asked;
  asked.inner = inner;
  asked.ways = space_.inner.at(inner).lent;
  if (asked.ways > 1 && !space_.data.empty()) asked.data = 0;
  return asked;
}

template <class Measured, class Measure>
Both<Measured> SearchProbes::both(Asked asked, const Measure& measure) {
  std::array<Measured, 2> found;
  for (std::size_t i = 0; i < 2; ++i) {
    if (i == 1 && layers_[0] == layers_[1]) {
      found[1] = found[0];
      break;
    }
    asked.layers = layers_[i];
    const auto made = plan(asked);
    if (!made) return std::nullopt;
    found[i] = measure(*made);
  }
  return found;
}

const std::optional<StepProbe>& SearchProbes::step(int inner) {
  const auto [known, missing] = steps_.try_emplace(inner);
  if (!missing) return known->second;
  Asked asked = plain(inner);
  asked.layers = layers_[1];
  if (const auto found = plan(asked)) known->second = measure_step(*found);
  return known->second;
}

std::optional<StepProbe> SearchProbes::step(int inner, int data, DataWays split) {
  Asked asked = plain(inner);
  asked.layers = layers_[1];
  asked.data = data;
  asked.ways = split.ways;
  asked.groups = split.groups;
  const auto found = made(asked);  // it serves once, so it is not kept
  return found ? std::optional(measure_step(*found)) : std::nullopt;
}

const Both<MicrobatchProbe>& SearchProbes::microbatch(int inner, int policy,
                                                      std::int64_t sequences) {
  const auto known = microbatches_.find({inner, policy, sequences});
  if (known != microbatches_.end()) return known->second;
  Asked asked = plain(inner);
  asked.policy = policy;
  if (!same_for_all_sizes(policy)) asked.microbatch = sequences;
  return microbatches_[{inner, policy, sequences}] =
             both<MicrobatchProbe>(asked, [&](const Plan& plan) {
               Asked of = asked;
               of.layers = plan.graph->layers;
               return measure_microbatch(of, plan, sequences);
             });
}

int SearchProbes::alike(int inner) {
  if (const auto known = alike_.find(inner); known != alike_.end()) return known->second;
  Asked asked = plain(inner);
  asked.layers = layers_[1];
  const auto made = plan(asked);
  if (!made) return alike_[inner] = -1;
  const InnerSide& side = space_.inner.at(inner);
  return alike_[inner] =
             first_alike_
                 .try_emplace(
                     fmt::format("{} {} {}", side.ranks, side.lent, parameters_text(*made)), inner)
                 .first->second;
}

const Both<WorkTimes>& SearchProbes::times(int inner, int policy) {
  const auto known = times_.find(policy);
  if (known != times_.end() && known->second) return known->second;
  Asked asked = plain(inner);
  asked.policy = policy;
  return times_[policy] = both<WorkTimes>(asked, [&](const Plan& plan) {
           const Program& program = plan.programs.front();
           const RankView rank(program, program.first());
           return work_times(rank, program.segments.at(program.segment(SegmentKind::forward, 0)),
                             program.segments.at(program.segment(SegmentKind::backward, 0)));
         });
}

const std::optional<SentProbe>& SearchProbes::sent(int inner) {
  const auto [found, missing] = sent_.try_emplace(inner);
  if (!missing) return found->second;
  const InnerSide& side = space_.inner.at(inner);
  const StagesSide& stages = space_.stages.front();
  PlanRequest probe = request_.base.plan->request;
  probe.model = model_with(layers_[1]);
  probe.batch = static_cast<std::int64_t>(2 * stages.chunks) * side.lent;
  probe.microbatch = 1;
  const DataSide* data = side.lent > 1 && !space_.data.empty() ? &space_.data.front() : nullptr;
  try {
    probe.strategies =
        choices_of(request_, entries_of(&stages, 2, data, {side.lent, 1}, side), choices_);
  } catch (const Error& error) {
    refused(error.problems());
    return found->second;
  }
  const auto plan = make(probe);
  if (!plan || plan->stages() != 2) return found->second;
  const Program& program = plan->programs.front();
  const RankView rank(program, plan->mesh.coordinates(0), 0, machine_.scratch());
  SentProbe sent;
  std::vector<int> atoms;
  for (const Axis& axis : plan->mesh.axes()) {
    if (axis.role == Role::model && !axis.borrowed)
      atoms.insert(atoms.end(), axis.atoms.begin(), axis.atoms.end());
  }
  sent.ranks = plan->mesh.ways(atoms);
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (i.code != Code::start || i.move.kind != Move::Kind::send) continue;
      for (const Transfer& transfer : footprint(rank, i, Asks::work).transfers)
        sent.bytes = std::max(sent.bytes, static_cast<double>(transfer.payload));
      sent.whole = std::all_of(atoms.begin(), atoms.end(), [&](int atom) {
        return program.slots[i.inputs[0]].layout[atom].kind == Placement::Kind::replicate;
      });
    }
  }
  found->second = sent;
  return found->second;
}

namespace {

bool ends_step(SegmentKind kind) {
  return kind == SegmentKind::finish || kind == SegmentKind::gather;
}

class Reader {
 public:
  Reader(const Plan& plan, const ClusterMachine& machine)
      : program_(plan.programs.front()),
        rank_(program_, plan.mesh.coordinates(0), 0, machine.scratch()),
        device_(machine.of_rank(rank_, plan.ranks(), 1)) {
    found_.layers = program_.graph->layers;
    share_buckets();
  }

  StepProbe run() {
    for (const SegmentRun& run : program_.timeline) {
      const Segment& segment = program_.segments[run.segment];
      const bool end = ends_step(segment.kind), forward = segment.kind == SegmentKind::forward;
      if (forward && run.microbatch > 0) continue;
      for (const Instruction& i : segment.code) {
        if (end) {
          of_end(i);
        } else if (completes_update(program_, i)) {
          of_end(i);  // the update belongs to the step before
        } else if (i.bucket >= 0) {
          of_microbatch(i, forward, run.microbatch > 0);
        }
      }
    }
    lasting();
    for (std::size_t link = 0; link < beside_.size(); ++link)
      found_.slows[link] = beside_[link] > 0 ? slowed_[link] / beside_[link] : 0;
    return found_;
  }

 private:
  // By bytes of a rank's parameters: of layers, and of the ends.
  void share_buckets() {
    const Graph& graph = *program_.graph;
    std::vector<int> layer(graph.values().size(), -1);  // of a value's last use
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs) layer[use.value] = op.layer;
    }
    const auto layers = static_cast<double>(std::max(1, graph.layers));
    PerLayer whole;
    const auto share = [](const PerLayer& bytes) {
      const double sum = bytes.ends + bytes.layer;
      return sum > 0 ? bytes * (1 / sum) : PerLayer{1, 0};
    };
    const auto each = [&](PerLayer one) { return PerLayer{one.ends, one.layer / layers}; };
    for (const Bucket& bucket : program_.buckets) {
      PerLayer bytes;
      for (const int p : bucket.parameters) {
        const ProgramParameter& parameter = program_.parameters[p];
        const int value = parameter.value;
        const bool inside = layer[value] >= 0 && layer[value] < graph.layers;
        (inside ? bytes.layer : bytes.ends) +=
            static_cast<double>(program_.local_bytes(program_.slots[parameter.slot], rank_.at()));
      }
      whole += bytes;
      shares_.push_back(each(share(bytes)));
    }
    all_ = each(share(whole));
    found_.by_chunk = by_chunk();
  }
  // Whether gradients are kept as shards and yet no segment reduces them each time that it runs:
  // only copies for some runs do.
  bool by_chunk() const {
    const auto shards = [](const Bucket& b) { return b.sharded_state >= ShardedState::gradients; };
    const auto reduces = [&](const Instruction& i) {
      return i.code == Code::start && i.bucket >= 0 && shards(program_.buckets[i.bucket]) &&
             i.pending == program_.buckets[i.bucket].flat.reduction;
    };
    const auto& buckets = program_.buckets;
    return std::any_of(buckets.begin(), buckets.end(), shards) &&
           std::none_of(program_.segments.begin(), program_.segments.end(), [&](const Segment& s) {
             return s.copy_of < 0 && std::any_of(s.code.begin(), s.code.end(), reduces);
           });
  }
  bool sums_shards(const Segment& segment) const {
    return std::any_of(segment.code.begin(), segment.code.end(), [&](const Instruction& i) {
      return i.code == Code::start && i.bucket >= 0 &&
             i.pending == program_.buckets[i.bucket].flat.shard_reduction;
    });
  }
  const PerLayer& share_of(const Instruction& i) const {
    static constexpr PerLayer ends = {1, 0};
    return i.bucket >= 0 ? shares_[i.bucket] : ends;
  }

  void lasting() {
    for (std::size_t k = 0; k < program_.slots.size(); ++k) {
      const Slot& slot = program_.slots[k];
      if (!slot.persistent || slot.transient || slot.alias_of >= 0 || slot.bucket < 0) continue;
      (slot.memory == Memory::host ? found_.host : found_.lasting) +=
          shares_[slot.bucket] * static_cast<double>(rank_.bytes(static_cast<int>(k)));
    }
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int slot = program_.buckets[b].flat.arriving;
      if (slot >= 0) found_.arriving += shares_[b] * static_cast<double>(rank_.bytes(slot));
    }
    const MemoryTimeline line = memory_timeline(rank_);
    double before = 0;
    for (std::size_t k = 0; k < line.moments.size(); ++k) {
      const MemoryOfRun& moment = line.moments[k];
      const SegmentRun& run = program_.timeline[k];
      const SegmentKind kind = program_.segments[run.segment].kind;
      const auto highest = static_cast<double>(moment.sum);
      const auto after = static_cast<double>(moment.activations_after + moment.buffers_after);
      if (kind == SegmentKind::forward) {
        found_.in_forward = std::max(found_.in_forward, highest - after);
        if (run.microbatch == 0) found_.held = all_ * after;
      } else if (kind == SegmentKind::backward) {
        // What microbatches leave to the next one, in which forward comes first.
        // What it leaves, whole gradients or shards of sums, is counted apart.
        if (found_.by_chunk && run.microbatch == 0) found_.pending = all_ * after;
        const double left = found_.by_chunk ? std::max(0.0, after - before) : 0;
        // What is summed over groups of ranks comes while activations go, and is there at the end.
        if (run.microbatch == 0 || !sums_shards(program_.segments[run.segment]))
          found_.in_backward = std::max(found_.in_backward, highest - before - left);
      } else {
        found_.in_end = std::max(found_.in_end, highest);
      }
      before = after;
    }
    share_ends();
  }

  // By bytes of the ends' parameters on a rank.
  void share_ends() {
    const Graph& graph = *program_.graph;
    enum : unsigned { before = 1, inside = 2, behind = 4 };
    std::vector<unsigned> used(graph.values().size(), 0);
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs)
        used[use.value] |= op.layer < 0 ? before : op.layer < graph.layers ? inside : behind;
    }
    double first = 0, last = 0, all = 0;
    for (const ProgramParameter& parameter : program_.parameters) {
      const unsigned where = used[parameter.value];
      if ((where & inside) != 0) continue;
      const auto bytes =
          static_cast<double>(program_.local_bytes(program_.slots[parameter.slot], rank_.at()));
      all += bytes;
      first += (where & before) != 0 ? bytes : 0;
      last += (where & behind) != 0 ? bytes : 0;
    }
    if (all <= 0) return;
    found_.on_first = first / all;
    found_.on_last = last / all;
  }

  void of_end(const Instruction& i) {
    const Footprint made = footprint(rank_, i, Asks::work);
    const double seconds = device_->work(rank_, i, made).seconds;
    if (!completes_update(program_, i)) copy(i, made, found_.copies_end);
    if (made.on_host >= 0 && i.bucket >= 0 && hides_update(program_.buckets[i.bucket])) {
      found_.beside += share_of(i) * seconds;
      found_.beside_backward = !program_.update_needs_totals;
    } else if (i.bucket >= 0) {
      found_.update += share_of(i) * seconds;
    } else {
      // What all buckets have a part in; the rest is there whatever they hold.
      const double fixed =
          i.code == Code::totals ? device_->work(rank_, i, Footprint()).seconds : seconds;
      found_.update += PerLayer{fixed, 0};
      found_.update += all_ * (seconds - fixed);
    }
    const bool outlasts = outlasts_step(program_, i);
    for (const Transfer& transfer : made.transfers) {
      const TransferCost cost = device_->transfer(rank_, i, transfer);
      const PerLayer moved = share_of(i) * cost.seconds;
      (outlasts ? found_.gather_next : found_.end_moves)[wire_of(cost)] += moved;
      if (outlasts) beside(cost, moved);
    }
  }

  // Whether the bucket's update in host memory is made beside what the device computes.
  bool hides_update(const Bucket& bucket) const {
    return bucket.update_overlaps_forward ||
           (bucket.update_overlaps && !program_.update_needs_totals);
  }

  void of_microbatch(const Instruction& i, bool forward, bool last) {
    const Footprint made = footprint(rank_, i, Asks::work);
    (forward ? found_.forward
     : last  ? found_.last
             : found_.backward) += share_of(i) * device_->work(rank_, i, made).seconds;
    if (!last) copy(i, made, forward ? found_.copies_forward : found_.copies_backward);
    for (const Transfer& transfer : made.transfers) {
      const TransferCost cost = device_->transfer(rank_, i, transfer);
      const PerLayer seconds = share_of(i) * cost.seconds;
      PerLink& moves = forward                                            ? found_.gather_forward
                       : last                                             ? found_.last_moves
                       : std::string_view(transfer.phase) == "parameters" ? found_.gather_backward
                                                                          : found_.scatter;
      moves[wire_of(cost)] += seconds;
      beside(cost, seconds);
    }
  }

  void beside(const TransferCost& cost, const PerLayer& seconds) {
    beside_[wire_of(cost)] += seconds.layer;
    slowed_[wire_of(cost)] += cost.slows * seconds.layer;
  }

  void copy(const Instruction& i, const Footprint& made, PerLayer& copies) {
    if (i.bucket < 0 || made.host_copy.bytes <= 0) return;
    copies += share_of(i) * device_->host_copy(static_cast<double>(made.host_copy.bytes));
  }

  const Program& program_;
  const RankView rank_;
  const std::unique_ptr<RankMachine> device_;
  std::vector<PerLayer> shares_;  // of each bucket: what of it is of the ends, and of each layer
  PerLayer all_;                  // the same of all buckets together
  ByLink beside_{}, slowed_{};    // seconds of transfers of layers, and what compute loses of them
  StepProbe found_;
};

}  // namespace

StepProbe SearchProbes::measure_step(const Plan& plan) const {
  throw_if_stopped();
  return Reader(plan, machine_).run();
}

}  // namespace mw
