// Measures the terms of a search's closed form on plans of few layers.
#include "predict/search_terms.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/clock.h"
#include "base/interrupt.h"
#include "predict/network.h"
#include "predict/price.h"
#include "program/footprint.h"
#include "program/memory.h"
#include "program/rank_view.h"

namespace mw {
namespace {

constexpr std::int64_t probe_microbatches = 2;  // gradients are added up, and the last one differs

bool ends_step(SegmentKind kind) {
  return kind == SegmentKind::finish || kind == SegmentKind::gather;
}

}  // namespace

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

class SearchTerms::Clock {
 public:
  explicit Clock(SearchTerms& terms) : terms_(terms), begun_(seconds_now()), own_(!terms.counts_) {
    terms_.counts_ = true;
  }
  ~Clock() {
    if (!own_) return;
    terms_.counts_ = false;
    terms_.spent_ += seconds_now() - begun_;
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  SearchTerms& terms_;
  const double begun_;
  const bool own_;
};

SearchTerms::SearchTerms(const SearchRequest& request, const SearchSpace& space)
    : request_(request), space_(space) {
  choose_layers();
}

std::shared_ptr<const Model> SearchTerms::model_with(std::int64_t layers) {
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
void SearchTerms::choose_layers() {
  const std::int64_t all = request_.base.plan->graph->layers;
  std::int64_t fewest = 1;
  while (fewest + 3 < all && fewest <= 8 && !model_with(fewest)) ++fewest;
  if (fewest + 3 < all && model_with(fewest) && model_with(fewest + 1) && model_with(fewest + 3)) {
    layers_ = {fewest + 1, fewest + 3};
  } else {
    layers_ = {all};
  }
}

int SearchTerms::policies() const {
  return static_cast<int>(request_.recompute.size() * request_.offload.size());
}
const RecomputeChoice& SearchTerms::recompute_of(int policy) const {
  return request_.recompute.at(static_cast<std::size_t>(policy) / request_.offload.size());
}
const OffloadChoice& SearchTerms::offload_of(int policy) const {
  return request_.offload.at(static_cast<std::size_t>(policy) % request_.offload.size());
}

std::shared_ptr<const Plan> SearchTerms::plan_of(const PlanRequest& request) {
  throw_if_stopped();
  ++probes_;
  Problems problems;
  try {
    auto plan = make_plan(request, problems);
    if (!plan) return nullptr;
    check_placed(*plan, *request_.machine, problems);
    return problems.empty() ? plan : nullptr;
  } catch (const Stopped&) {
    throw;
  } catch (const Error&) {  // of a strategy's own
    return nullptr;
  }
}

std::optional<SearchTerms::Measured> SearchTerms::measure(const Asked& asked, std::int64_t layers) {
  PlanRequest probe = request_.base.plan->request;
  probe.model = model_with(layers);
  const DataSide* side = asked.data >= 0 ? &space_.data.at(asked.data) : nullptr;
  try {
    probe.strategies = choices_of(
        request_, entries_of(nullptr, 1, side, asked.ways, space_.inner.at(asked.inner)), choices_);
  } catch (const Error&) {  // these ways are none of its
    return std::nullopt;
  }
  probe.batch = probe_microbatches * asked.microbatch * asked.ways;
  probe.microbatch = asked.microbatch;
  probe.recompute = recompute_of(asked.policy).policy;
  probe.offload = offload_of(asked.policy).policy;
  const auto plan = plan_of(probe);
  if (!plan || plan->stages() != 1) return std::nullopt;

  const Program& program = plan->programs.front();
  const RankView rank(program, plan->mesh.coordinates(0));
  const auto machine = request_.machine->of_rank(rank, plan->ranks(), 1);
  Pricer pricer(rank, *request_.machine, plan->ranks(), 1);
  Measured found;
  for (const SegmentRun& run : program.timeline) {
    const Segment& segment = program.segments[run.segment];
    const double before = pricer.clock();
    pricer.play(run);
    const double spent = pricer.clock() - before;
    const bool forward = segment.kind == SegmentKind::forward, end = ends_step(segment.kind);
    if (!end && run.microbatch == 0) (forward ? found.forward : found.backward) += spent;
    for (const Instruction& i : segment.code) {
      const bool bucket = i.bucket >= 0 && i.code == Code::start;
      if (!end && !bucket) continue;
      const Footprint made = footprint(rank, i, Asks::work);
      if (end) found.update += machine->work(rank, i, made).seconds;
      if (!bucket && i.code != Code::totals) continue;
      auto& moves = end                   ? found.end_moves
                    : forward             ? found.forward_moves
                    : run.microbatch == 0 ? found.backward_moves
                                          : found.last_moves;
      if (forward && run.microbatch > 0) continue;
      for (const Transfer& transfer : made.transfers) {
        const std::string_view phase = transfer.phase;
        Carried carried{transfer.op, static_cast<double>(transfer.payload),
                        program.ranks_of(transfer.set, 0)};
        carried.backward_gather = !forward && !end && phase == "parameters";
        carried.hidden = bucket && end && phase == "parameters" &&
                         program.buckets[i.bucket].sharded_state != ShardedState::parameters &&
                         request_.machine->stack().update_gathers_hidden;
        moves.push_back(std::move(carried));
      }
    }
  }
  const MemoryForecast memory = forecast_memory(rank);
  found.lasting = static_cast<double>(memory[Category::parameters] + memory[Category::gradients] +
                                      memory[Category::optimizer]);
  found.working = static_cast<double>(memory.peak) - found.lasting;
  return found;
}

const SearchTerms::Pair& SearchTerms::measured(const Asked& asked) {
  const auto [found, missing] = measured_.try_emplace(asked);
  if (!missing) return found->second;
  try {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      found->second[i] = measure(asked, layers_[i]);
      if (!found->second[i]) break;
    }
    if (layers_.size() == 1) found->second[1] = found->second[0];
  } catch (...) {
    measured_.erase(found);
    throw;
  }
  return found->second;
}

PerLayer SearchTerms::split(double fewer, double more) const {
  if (layers_.size() == 1) return {0, more / static_cast<double>(layers_.front())};
  PerLayer terms;
  terms.layer = std::max(0.0, (more - fewer) / static_cast<double>(layers_[1] - layers_[0]));
  terms.ends = std::max(0.0, fewer - terms.layer * static_cast<double>(layers_[0]));
  return terms;
}

const WorkTerms* SearchTerms::work(int inner, std::int64_t microbatch, int policy) {
  const auto [found, missing] = work_.try_emplace({inner, microbatch, policy});
  if (missing) {
    const Clock clock(*this);
    const int lent = space_.inner.at(inner).lent;
    const int data = lent > 1 && !space_.data.empty() ? 0 : -1;
    const Pair& pair = measured({inner, data, lent, policy, microbatch});
    if (pair[0] && pair[1]) {
      WorkTerms terms;
      terms.forward = split(pair[0]->forward, pair[1]->forward);
      terms.backward = split(pair[0]->backward, pair[1]->backward);
      terms.held = split(pair[0]->working, pair[1]->working);
      found->second = terms;
    }
  }
  return found->second ? &*found->second : nullptr;
}

double SearchTerms::seconds(const std::vector<Carried>& moves, int probe_ways, int ways, int inner,
                            double& slows) const {
  const Cluster& cluster = request_.machine->cluster();
  const Stack& stack = request_.machine->stack();
  // The data's ranks are outermost: more of them are the same ones, further on.
  const int block = probe_ways * space_.inner.at(inner).ranks;
  double sum = 0;
  for (const Carried& one : moves) {
    std::vector<int> ranks;
    const bool over = one.ranks.back() >= block / 2 && probe_ways > 1;
    if (!over) {
      ranks = one.ranks;
    } else if (ways < probe_ways) {
      for (const int rank : one.ranks)
        if (rank < block / 2) ranks.push_back(rank);
    } else {
      for (int k = 0; k < ways / probe_ways; ++k)
        for (const int rank : one.ranks) ranks.push_back(rank + k * block);
    }
    if (ranks.size() < 2) continue;
    const Placed placed = place(cluster, ranks);
    Library library;
    library.hierarchical = stack.hierarchical;
    library.nics = stack.data_share;
    double seconds = collective_seconds(cluster, one.op, one.bytes, placed, library);
    const double slow = stack.data_slowed >= 0
                            ? stack.data_slowed
                            : cluster.device.slowed * traffic_share(cluster, placed, library);
    slows = std::max(slows, slow);
    if (one.backward_gather) seconds *= stack.backward_gathers;
    if (one.hidden) seconds *= slow;
    sum += seconds;
  }
  return sum;
}

const DataTerms* SearchTerms::data(int inner, int data, int ways) {
  const auto [found, missing] = data_.try_emplace({inner, data, ways});
  if (!missing) return found->second ? &*found->second : nullptr;
  const Clock clock(*this);
  const int lent = space_.inner.at(inner).lent;
  const bool alone = data < 0;
  const int few = alone ? 1 : lent, many = alone ? 1 : 2 * lent;
  const Pair& one = measured({inner, alone || few == 1 ? -1 : data, few, 0, 1});
  const Pair& two = measured({inner, data, many, 0, 1});
  const Pair& plain = measured({inner, lent > 1 && !space_.data.empty() ? 0 : -1, lent, 0, 1});
  if (!one[0] || !one[1] || !two[0] || !two[1] || !plain[0] || !plain[1]) return nullptr;
  DataTerms terms;
  const double share = static_cast<double>(few) / ways;
  std::array<double, 2> lasting{}, working{}, forward{}, backward{}, reduce{}, after{};
  for (std::size_t l = 0; l < 2; ++l) {
    // What is kept in parts halves where the ranks double.
    const auto of_ways = [&](double at_few, double at_many) {
      if (alone) return at_few;
      const double parts = 2 * (at_few - at_many);
      return at_few - parts + parts * share;
    };
    lasting[l] = of_ways(one[l]->lasting, two[l]->lasting);
    working[l] = std::max(0.0, two[l]->working - plain[l]->working);
    const auto carried = [&](const std::vector<Carried>& moves) {
      return seconds(moves, many, ways, inner, terms.slows);
    };
    forward[l] = carried(two[l]->forward_moves);
    backward[l] = carried(two[l]->backward_moves);
    reduce[l] = std::max(0.0, carried(two[l]->last_moves) - backward[l]);
    after[l] = of_ways(one[l]->update, two[l]->update) + carried(two[l]->end_moves);
  }
  terms.lasting = split(lasting[0], lasting[1]);
  terms.working = split(working[0], working[1]);
  terms.gather_forward = split(forward[0], forward[1]);
  terms.gather_backward = split(backward[0], backward[1]);
  terms.reduce = split(reduce[0], reduce[1]);
  terms.after = split(after[0], after[1]);
  found->second = terms;
  return &*found->second;
}

const ScheduleTerms* SearchTerms::schedule(int stages_side, int ways, std::int64_t microbatches) {
  // Beyond two rounds of the stages an order repeats itself: what fills and empties stays.
  std::int64_t few = microbatches;
  if (few > 2 * ways) few = 2 * ways + microbatches % ways;
  const auto [found, missing] = schedules_.try_emplace({stages_side, ways, few});
  if (!missing) return found->second ? &*found->second : nullptr;
  const Clock clock(*this);
  throw_if_stopped();
  const StagesSide& side = space_.stages.at(stages_side);
  ScheduleRequest order;
  order.stages = ways;
  order.chunks = side.chunks;
  order.microbatches = static_cast<int>(few);
  const double share = 1.0 / side.chunks;
  order.times = {{share, share, share, 0}};
  order.bytes = {{share, share}};
  if (side.schedule.empty()) {  // the strategy has an order of its own
    found->second =
        ScheduleTerms{ways - 1.0, static_cast<double>(std::min<std::int64_t>(few, ways)), 1};
    return &*found->second;
  }
  try {
    const Schedule schedule = request_.schedule(side.schedule, order);
    Problems problems;
    check(schedule, order, problems);
    if (!problems.empty()) return nullptr;
    const ScheduleTimeline timeline = simulate(schedule, order);
    ScheduleTerms terms;
    terms.bubble = timeline.makespan / 3 - static_cast<double>(few);
    terms.first = *std::max_element(timeline.bytes_peak.begin(), timeline.bytes_peak.end());
    const int end = schedule.stage_of.back();
    terms.last = timeline.bytes_peak.at(end);
    found->second = terms;
  } catch (const Stopped&) {
    schedules_.erase(found);
    throw;
  } catch (const Error&) {  // this many microbatches or chunks are none of its
  }
  return found->second ? &*found->second : nullptr;
}

const SearchTerms::Sent* SearchTerms::sent(int inner, int stages_side) {
  const auto [found, missing] = sent_.try_emplace({inner, stages_side});
  if (!missing) return found->second ? &*found->second : nullptr;
  const Clock clock(*this);
  const InnerSide& side = space_.inner.at(inner);
  PlanRequest probe = request_.base.plan->request;
  StagesSide stages = space_.stages.at(stages_side);
  probe.model = model_with(layers_.back());
  probe.batch = static_cast<std::int64_t>(2 * stages.chunks) * side.lent;
  probe.microbatch = 1;
  const DataSide* data = side.lent > 1 && !space_.data.empty() ? &space_.data.front() : nullptr;
  try {
    probe.strategies =
        choices_of(request_, entries_of(&stages, 2, data, side.lent, side), choices_);
  } catch (const Error&) {
    return nullptr;
  }
  const auto plan = plan_of(probe);
  if (!plan || plan->stages() != 2) return nullptr;
  const Program& program = plan->programs.front();
  const RankView rank(program, plan->mesh.coordinates(0));
  Sent sent;
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
  return &*found->second;
}

}  // namespace mw
