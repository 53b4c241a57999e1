// Makes plans of few layers for a search, and reads off them what microbatches take, hold and send.
#include "search/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/rank_view.h"
#include "predict/network.h"
#include "predict/price.h"

namespace mw {

// The strategies of a plan's entries. Each entry's strategy is made once and kept in `made`.
static std::vector<StrategyChoice> choices_of(const SearchRequest& request, const Json& entries,
                                              std::map<Json, StrategyChoice>& made) {
  std::vector<StrategyChoice> choices;
  for (const Json& entry : entries) {
    auto found = made.find(entry);
    if (found == made.end()) found = made.emplace(entry, request.source.make(entry)).first;
    choices.push_back(found->second);
  }
  return choices;
}

std::shared_ptr<const Plan> plan_of(const SearchRequest& search, PlanRequest request,
                                    const Json& entries, std::map<Json, StrategyChoice>& choices,
                                    Problems& problems, const PlanMaker& make) {
  throw_if_stopped();
  return unless_refused(
      [&] {
        request.strategies = choices_of(search, entries, choices);
        auto plan = make(request, problems);
        if (plan) check_placed(*plan, *search.machine, problems);
        return problems.empty() ? plan : nullptr;
      },
      &problems);
}

namespace {

// The machine with the host links that each of all ranks has: plans of few ranks would get more of
// what a node's links to its host carry together.
ClusterMachine shared_by(Cluster cluster, const Stack& stack, int ranks) {
  if (cluster.host_node_link > 0) {
    const double bytes = cluster.host_link;  // the bytes of one second
    cluster.host_link =
        bytes / host_copy_seconds(cluster, bytes, std::min(ranks, cluster.node.devices));
    cluster.host_node_link = 0;
  }
  return {std::move(cluster), stack};
}

}  // namespace

SearchTerms::SearchTerms(const SearchRequest& request, const SearchSpace& space,
                         const Cluster& cluster)
    : request_(request),
      space_(space),
      machine_(shared_by(cluster, request.machine->stack(), request.ranks)),
      orders_(request, space) {
  choose_layers();
}

std::shared_ptr<const Model> SearchTerms::model_with(std::int64_t layers) {
  const auto [found, missing] = models_.try_emplace(layers);
  if (missing && layers == request_.base->graph->layers) {
    found->second = request_.base->request.model;
  } else if (missing && request_.with_layers) {
    found->second = request_.with_layers(layers);
  }
  return found->second;
}

// Chooses the numbers of layers of the two plans: one more than the fewest that the model takes
// (all that are unlike the others among them), and two more than that. What a layer adds is the
// difference.
void SearchTerms::choose_layers() {
  const std::int64_t all = request_.base->graph->layers;
  std::int64_t fewest = 1;
  while (fewest + 3 < all && fewest <= 8 && !model_with(fewest)) ++fewest;
  const bool some =
      fewest + 3 < all && model_with(fewest) && model_with(fewest + 1) && model_with(fewest + 3);
  layers_ = some ? std::array{fewest + 1, fewest + 3} : std::array{all, all};
}

std::shared_ptr<const Plan> SearchTerms::made(const PlanRequest& request, const Json& entries) {
  ++plans_;
  Problems problems;
  auto plan = plan_of(request_, request, entries, choices_, problems);
  if (!refusal_ && !problems.empty()) refusal_ = problems.list().front();
  return plan;
}

std::shared_ptr<const Plan> SearchTerms::made(const Asked& asked) {
  PlanRequest few = request_.base->request;
  few.model = model_with(asked.layers);
  // Two microbatches: gradients are added up, and the last one differs.
  few.batch = 2 * asked.microbatch * asked.ways;
  few.microbatch = asked.microbatch;
  const SearchPolicy& policy = space_.policies.at(asked.policy);
  few.recompute = policy.recompute.policy;
  few.offload = policy.offload.policy;
  const DataSide* side = asked.data >= 0 ? &space_.data.at(asked.data) : nullptr;
  auto plan = made(
      few, entries_of(nullptr, 1, side, {asked.ways, asked.groups}, space_.inner.at(asked.inner)));
  return plan && plan->stages() == 1 ? plan : nullptr;
}

std::shared_ptr<const Plan> SearchTerms::plan(const Asked& asked) {
  if (asked.inner != kept_of_) kept_.clear();
  kept_of_ = asked.inner;
  const auto [known, missing] = kept_.try_emplace(asked);
  if (missing) known->second = made(asked);
  return known->second;
}

// What to ask for the plan of an inner side alone, with no more data ranks than it borrows.
SearchTerms::Asked SearchTerms::plain(int inner) const {
  Asked asked;
  asked.inner = inner;
  asked.ways = space_.inner.at(inner).lent;
  if (asked.ways > 1 && !space_.data.empty()) asked.data = 0;
  asked.layers = layers_[1];
  return asked;
}

template <class Key, class Terms, class Make>
const Terms* SearchTerms::once(std::map<Key, std::optional<Terms>>& known, const Key& key,
                               const Make& make) {
  auto found = known.find(key);
  if (found == known.end()) {
    const double begun = cpu_seconds_now() - spent_;  // nested calls count once
    found = known.emplace(key, make()).first;
    spent_ = cpu_seconds_now() - begun;
  }
  return found->second ? &*found->second : nullptr;
}

const OrderTerms* SearchTerms::order(int stages_side, int ways, std::int64_t microbatches,
                                     int policy, const WorkTerms& work) {
  constexpr WorkTimes alike = {1, 1, 1, 0}, none = {0, 0, 0, 0};
  const bool timed = work.nominal.layer.forward > 0;
  return orders_.find(stages_side, ways, microbatches, policy,
                      timed ? work.nominal : LayerTimes{alike, none});
}

namespace {

// A text of how a plan's parameters lie, which decides what the data ranks do with them.
std::string parameters_text(const Plan& plan) {
  const Program& program = plan.programs.front();
  std::string text;
  for (const Atom& atom : plan.mesh.atoms()) text += fmt::format("{} ", atom.ways);
  for (const Bucket& bucket : program.buckets) {
    text += fmt::format("/{} {} {} ,{}", bucket.counts ? 1 : 0, bucket.frozen ? 1 : 0, bucket.group,
                        fmt::join(bucket.reduce_atoms, ","));
    for (const int p : bucket.parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      text += fmt::format(";{} {}", parameter.value,
                          program.local_bytes(program.slots[parameter.slot], program.first()));
      for (std::size_t a = 0; a < parameter.stored.size(); ++a) {
        if (parameter.stored[a].is_shard()) text += fmt::format(" {}", a);
      }
    }
  }
  return text;
}

}  // namespace

// The first inner side that leaves each parameter on as many ranks as `inner` does, cut and summed
// in the same way: data parallelism costs the same on both. -1: a plan with `inner` is refused.
int SearchTerms::alike(int inner) {
  const int* found = once(alike_, inner, [&]() -> std::optional<int> {
    const auto made = plan(plain(inner));
    if (!made) return std::nullopt;
    const InnerSide& side = space_.inner.at(inner);
    const auto text = fmt::format("{} {} {}", side.ranks, side.lent, parameters_text(*made));
    return first_alike_.try_emplace(text, inner).first->second;
  });
  return found == nullptr ? -1 : *found;
}

const DataTerms* SearchTerms::data(int inner, int data, DataWays split) {
  inner = alike(inner);
  if (inner < 0) return nullptr;
  return once(data_, std::tuple(inner, data, split.ways, split.groups),
              [&] { return made_data(inner, data, split); });
}

// Read off the plan of more layers alone: a bucket's parameters say to which layers it belongs.
std::optional<DataTerms> SearchTerms::made_data(int inner, int data, DataWays split) {
  const Asked alone = plain(inner);
  Asked asked = alone;
  asked.data = data;
  asked.ways = split.ways;
  asked.groups = split.groups;
  // What the inner side's plan does by itself is in the terms of its microbatches.
  const DataTerms* less = once(alone_, inner, [&]() -> std::optional<DataTerms> {
    const auto own = plan(alone);
    return own ? std::optional(data_terms(*own, machine_)) : std::nullopt;
  });
  if (less == nullptr) return std::nullopt;
  DataTerms terms = *less;
  if (asked != alone) {
    const auto found = made(asked);
    if (!found) return std::nullopt;
    terms = data_terms(*found, machine_);
  }
  terms.own_forward = terms.own_forward.less(less->own_forward);
  terms.own_backward = terms.own_backward.less(less->own_backward);
  terms.held = terms.held.less(less->held);
  terms.in_works = std::max(0.0, terms.in_works - less->in_works);
  return terms;
}

const WorkTerms* SearchTerms::work(int inner, int policy, std::int64_t microbatch) {
  return once(work_, std::tuple(inner, policy, microbatch), [&] {
    Asked asked = plain(inner);
    asked.policy = policy;
    if (!space_.policies.at(policy).same_for_all_sizes()) asked.microbatch = microbatch;
    return made_work(asked, microbatch);
  });
}

namespace {

// What is read off one plan of few layers.
struct Microbatch {
  double forward = 0, backward = 0;
  double held = 0, waiting = 0, host = 0;
  double in_layer = 0, in_loss = 0;
  WorkTimes nominal;
};

// Times the first microbatch.
void time_works(const RankView& rank, const Machine& machine, int ranks, Microbatch& found) {
  Pricer pricer(rank, machine, ranks, 1);
  for (const SegmentRun& run : rank.program().timeline) {
    if (run.microbatch > 0) break;
    const double before = pricer.clock();
    pricer.play(run);
    if (run.microbatch < 0) continue;
    const bool forward = rank.program().segments[run.segment].kind == SegmentKind::forward;
    (forward ? found.forward : found.backward) += pricer.clock() - before;
  }
}

// Bytes that wait for the weight gradients of a backward, where a schedule delays those: operands,
// saved values and output gradients. A weight gradient beside which a collective runs is never
// delayed, and does not count. Each output gradient counts once for each reader, because a delayed
// reader needs a storage of its own, even where this backward adds to one storage in place for many
// layers.
double waiting_bytes(const RankView& rank, const Segment& backward) {
  const Program& program = rank.program();
  double bytes = 0;
  std::set<int> read, underway;
  for (const Instruction& i : backward.code) {
    if (i.pending >= 0 && !between_lasting(program, i)) {
      if (i.begins_transfer()) underway.insert(i.pending);
      if (i.awaits_transfer()) underway.erase(i.pending);
    }
    if (!i.runs_op() || i.piece != Piece::wgrad || !underway.empty()) continue;
    for (const int slot : i.grad_outputs)
      if (slot >= 0) bytes += static_cast<double>(rank.bytes(slot));
    for (const auto* list : {&i.inputs, &i.saved}) {
      for (const int slot : *list) {
        if (slot < 0 || program.slots[program.root(slot)].persistent) continue;
        if (read.insert(program.root(slot)).second)
          bytes += static_cast<double>(rank.bytes(program.root(slot)));
      }
    }
  }
  return bytes;
}

// Finds what a microbatch holds. Its backward is walked in three parts: that of the loss, that of
// the layers behind the first, and that of the first layer.
void weigh_works(const RankView& rank, const Segment& forward, const Segment& backward,
                 Microbatch& found) {
  LiveSet live;
  const Effect made = walk(rank, live, forward);
  found.held = static_cast<double>(made.after.activations + made.after.buffers);
  found.host = static_cast<double>(made.after.host);
  found.waiting = waiting_bytes(rank, backward);
  const auto& graph = *rank.program().graph;
  auto from = backward.code.begin();
  const auto walk_to = [&](const auto& takes) {
    const auto to = std::find_if(from, backward.code.end(), [&](const Instruction& i) {
      return i.runs_op() && takes(graph.ops()[i.op].layer);
    });
    Segment part;
    part.kind = backward.kind;
    part.code.assign(from, to);
    from = to;
    return static_cast<double>(walk(rank, live, part).highest_sum);
  };
  found.in_loss = walk_to([&](int layer) { return layer >= 0 && layer < graph.layers; });
  found.in_loss = std::max(found.in_loss, static_cast<double>(made.highest_sum) - found.held);
  walk_to([](int layer) { return layer == 0; });
  found.in_layer = walk_to([](int) { return false; });
}

}  // namespace

std::optional<WorkTerms> SearchTerms::made_work(Asked asked, std::int64_t microbatch) {
  std::array<Microbatch, 2> of;
  for (std::size_t n = 0; n < of.size(); ++n) {
    asked.layers = layers_[n];
    const auto few = plan(asked);
    if (!few) return std::nullopt;
    throw_if_stopped();
    const Program& program = few->programs.front();
    const RankView rank(program, few->mesh.coordinates(0), microbatch * asked.ways,
                        machine_.scratch());
    const Segment& forward = program.segments.at(program.segment(SegmentKind::forward, 0));
    const Segment& backward = program.segments.at(program.segment(SegmentKind::backward, 0));
    time_works(rank, machine_, few->ranks(), of[n]);
    weigh_works(rank, forward, backward, of[n]);
    of[n].nominal = work_times(RankView(program, program.first()), forward, backward);
  }
  const auto per_layer = [&](double fewer, double more) {
    const auto few = static_cast<double>(layers_[0]), many = static_cast<double>(layers_[1]);
    if (few == many) return PerLayer{0, more / many};
    const double layer = std::max(0.0, (more - fewer) / (many - few));
    return PerLayer{std::max(0.0, fewer - layer * few), layer};
  };
  const auto terms_of = [&](double Microbatch::*what) {
    return per_layer(of[0].*what, of[1].*what);
  };
  WorkTerms terms;
  terms.forward = terms_of(&Microbatch::forward);
  terms.backward = terms_of(&Microbatch::backward);
  terms.held = terms_of(&Microbatch::held);
  terms.waiting = terms_of(&Microbatch::waiting);
  terms.host = terms_of(&Microbatch::host);
  terms.in_layer = of[1].in_layer;
  terms.in_loss = of[1].in_loss;
  for (const auto work : {&WorkTimes::forward, &WorkTimes::dgrad, &WorkTimes::wgrad}) {
    const PerLayer nominal = per_layer(of[0].nominal.*work, of[1].nominal.*work);
    terms.nominal.layer.*work = nominal.layer;
    terms.nominal.ends.*work = nominal.ends;
  }
  return terms;
}

const SentTerms* SearchTerms::sent(int inner) {
  inner = space_.inner.at(inner).plain;  // experts do not change what is sent
  return once(sent_, inner, [&] { return made_sent(inner); });
}

std::optional<SentTerms> SearchTerms::made_sent(int inner) {
  const InnerSide& side = space_.inner.at(inner);
  const StagesSide& stages = space_.stages.front();
  PlanRequest few = request_.base->request;
  few.model = model_with(layers_[1]);
  few.batch = 2 * stages.chunks;
  few.microbatch = 1;
  const auto plan = made(few, entries_of(&stages, 2, nullptr, {}, side));
  if (!plan || plan->stages() != 2) return std::nullopt;
  const Program& program = plan->programs.front();
  const RankView rank(program, plan->mesh.coordinates(0), 0, machine_.scratch());
  SentTerms sent;
  std::vector<int> atoms;
  for (const Axis& axis : plan->mesh.axes()) {
    if (axis.role == Role::model && !axis.borrowed)
      atoms.insert(atoms.end(), axis.atoms.begin(), axis.atoms.end());
  }
  sent.ranks = plan->mesh.ways(atoms);
  for (const Segment& segment : program.segments) {
    for (const Instruction& i : segment.code) {
      if (!i.begins_transfer() || i.move.kind != Move::Kind::send) continue;
      for (const Transfer& transfer : footprint(rank, i, FootprintParts::work).transfers) {
        sent.bytes = std::max(sent.bytes, static_cast<double>(transfer.payload));
        sent.whole = std::ranges::all_of(atoms, [&](int atom) {
          return program.slots[i.inputs[0]].layout[atom].kind == Placement::Kind::replicate;
        });
      }
    }
  }
  return sent;
}

}  // namespace mw
