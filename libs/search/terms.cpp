// Makes the terms of a search's closed form of what plans of few layers tell.
#include "search/terms.h"

#include <algorithm>
#include <array>

#include "meshwright/engine/host.h"
#include "predict/network.h"

namespace mw {

class SearchTerms::Clock {
 public:
  explicit Clock(SearchTerms& terms)
      : terms_(terms), begun_(cpu_seconds_now()), outermost_(!terms.counts_) {
    terms_.counts_ = true;
  }
  ~Clock() {
    if (!outermost_) return;
    terms_.counts_ = false;
    terms_.spent_ += cpu_seconds_now() - begun_;
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

 private:
  SearchTerms& terms_;
  const double begun_;
  const bool outermost_;
};

SearchTerms::SearchTerms(const SearchRequest& request, const SearchSpace& space)
    : request_(request), space_(space), probes_(request, space), orders_(request, space) {}

PerLayer SearchTerms::per_layer(double fewer, double more) const {
  const auto [few, many] = probes_.layers();
  if (few == many) return {0, more / static_cast<double>(many)};
  PerLayer terms;
  terms.layer = std::max(0.0, (more - fewer) / static_cast<double>(many - few));
  terms.ends = std::max(0.0, fewer - terms.layer * static_cast<double>(few));
  return terms;
}

const WorkTerms* SearchTerms::work(int inner, std::int64_t microbatch, int policy) {
  const auto [found, missing] = work_.try_emplace({inner, microbatch, policy});
  if (!missing) return found->second ? &*found->second : nullptr;
  const Clock clock(*this);
  if (const auto& both = probes_.microbatch(inner, policy, microbatch)) {
    const MicrobatchProbe& few = both->front();
    const MicrobatchProbe& many = both->back();
    const auto of = [&](double MicrobatchProbe::*what) { return per_layer(few.*what, many.*what); };
    WorkTerms terms;
    terms.forward = of(&MicrobatchProbe::forward);
    terms.backward = of(&MicrobatchProbe::backward);
    terms.forward_copies = of(&MicrobatchProbe::forward_copies);
    terms.backward_copies = of(&MicrobatchProbe::backward_copies);
    // Of a chunk's first layer nothing hides what it fetches; here the model's end does.
    terms.fetched = of(&MicrobatchProbe::fetched).layer;
    terms.backward_copies.ends = std::max(0.0, terms.fetched - terms.backward_copies.layer);
    if (many.host > 0) {  // both parts fetch what both read
      terms.dgrad_copies = many.host_dgrad / many.host;
      terms.wgrad_copies = many.host_waiting / many.host;
    }
    terms.weights = of(&MicrobatchProbe::weights);
    terms.hidden = of(&MicrobatchProbe::hidden);
    terms.forward_free = many.forward_free;
    terms.backward_free = many.backward_free;
    terms.held = of(&MicrobatchProbe::held);
    terms.before_loss = of(&MicrobatchProbe::before_loss).ends;
    terms.in_forward = many.in_forward;
    terms.in_loss = many.in_loss;
    terms.in_loss_back = many.in_loss_back;
    terms.in_backward = std::max(0.0, many.layer - terms.held.layer);
    terms.waiting = of(&MicrobatchProbe::waiting);
    terms.host = of(&MicrobatchProbe::host);
    terms.host_waiting = of(&MicrobatchProbe::host_waiting);
    found->second = terms;
  }
  return found->second ? &*found->second : nullptr;
}

const OrderTerms* SearchTerms::order(int stages_side, int ways, std::int64_t microbatches,
                                     int inner, int policy) {
  const auto times = [&] {
    constexpr WorkTimes alike = {1, 1, 1, 0}, none = {0, 0, 0, 0};
    const auto& both = probes_.times(inner, policy);
    if (!both) return LayerTimes{alike, none};
    LayerTimes found{none, none};
    for (const auto work : {&WorkTimes::forward, &WorkTimes::dgrad, &WorkTimes::wgrad}) {
      const PerLayer terms = per_layer((*both)[0].*work, (*both)[1].*work);
      found.layer.*work = terms.layer;
      found.ends.*work = terms.ends;
    }
    return found.layer.forward > 0 ? found : LayerTimes{alike, none};
  };
  if (orders_.knows(stages_side, ways, microbatches, policy))
    return orders_.find(stages_side, ways, microbatches, policy, times);
  const Clock clock(*this);
  return orders_.find(stages_side, ways, microbatches, policy, times);
}

const SentProbe* SearchTerms::sent(int inner) {
  if (const auto known = sent_.find(inner); known != sent_.end()) return known->second;
  const Clock clock(*this);
  const auto& sent = probes_.sent(space_.inner.at(inner).plain);  // experts leave it as it is
  return sent_[inner] = sent ? &*sent : nullptr;
}

namespace {

// A plan of few layers, with other numbers of the data's ranks.
class Scaled {
 public:
  Scaled(const StepProbe& probe, std::vector<int> ways, const ClusterMachine& machine)
      : probe_(probe),
        ways_(std::move(ways)),
        cluster_(machine.cluster()),
        stack_(machine.stack()) {}

  PerLayer amount(const InParts& parts) const {
    PerLayer sum;
    for (const auto& [atoms, value] : parts) sum += value * share(atoms);
    return sum;
  }

  // Of those that `takes` takes, by link; `slowed`: what compute loses beside those of layers.
  template <class Takes>
  PerLink seconds(const CarriedCounts& moves, ByLink& slowed, const Takes& takes) {
    PerLink sums;
    for (const auto& [one, count] : moves) {
      if (!takes(one)) continue;
      const Placed& placed = where(one.ranks);
      if (placed.ranks < 2) continue;
      Library library;
      library.hierarchical = stack_.hierarchical;
      library.nics = stack_.data_share;
      double seconds =
          collective_seconds(cluster_, one.op, one.bytes * share(one.parts), placed, library);
      const double slow = stack_.data_slowed >= 0
                              ? stack_.data_slowed
                              : cluster_.device.slowed * traffic_share(cluster_, placed, library);
      if (one.backward_gather) seconds *= stack_.backward_gathers;
      if (one.hidden) seconds *= slow;
      const std::size_t link = placed.nodes > 1 ? 1 : 0;
      sums[link] += count * seconds;
      slowed[link] += slow * seconds * count.layer;
    }
    return sums;
  }

 private:
  // Of what is in parts over these atoms, against the plan's.
  double share(std::uint32_t atoms) const {
    double share = 1;
    for (std::size_t a = 0; a < ways_.size(); ++a) {
      if ((atoms >> a & 1) != 0) share *= static_cast<double>(probe_.ways[a]) / ways_[a];
    }
    return share;
  }

  const Placed& where(std::uint32_t atoms) {
    const auto [found, missing] = placed_.try_emplace(atoms);
    if (!missing) return found->second;
    std::vector<int> ranks = {0};
    int stride = 1;
    for (std::size_t a = ways_.size(); a-- > 0;) {
      if ((atoms >> a & 1) != 0) {
        const std::size_t inside = ranks.size();
        for (int k = 1; k < ways_[a]; ++k) {
          for (std::size_t r = 0; r < inside; ++r) ranks.push_back(ranks[r] + k * stride);
        }
      }
      stride *= ways_[a];
    }
    return found->second = place(cluster_, ranks);
  }

  const StepProbe& probe_;
  const std::vector<int> ways_;
  const Cluster& cluster_;
  const Stack& stack_;
  std::map<std::uint32_t, Placed> placed_;
};

// Bytes that the data side has come and go, beside those of a plan without it.
template <class Amount>
void comes_and_goes(const StepProbe& probe, const StepProbe& plain, const Amount& amount,
                    DataTerms& terms) {
  const PerLayer held = probe.held.less(plain.held);
  terms.held_layer = held.layer;
  terms.held_ends = held.ends;
  terms.pending = probe.pending;
  terms.by_chunk = probe.by_chunk;
  // Shards of sums: of one layer, unless they are reduced by chunk.
  const PerLayer arriving = amount(probe.arriving);
  double less = -arriving.layer;
  for (const auto& [atoms, shard] : probe.arriving) less += shard.layer;
  if (probe.by_chunk) {
    terms.arriving = arriving;
    less = 0;
  }
  terms.in_forward = std::max(0.0, probe.in_forward - plain.in_forward);
  terms.in_backward = std::max(0.0, probe.in_backward - plain.in_backward - less);
  double there = held.at(probe.layers);
  if (probe.by_chunk) {
    there += probe.pending.at(probe.layers);
    for (const auto& [atoms, shard] : probe.arriving) there += shard.at(probe.layers);
  }
  terms.in_end = std::max(0.0, probe.in_end - there);
  terms.on_first = probe.on_first;
  terms.on_last = probe.on_last;
}

// The ways of the mesh's atoms where the data's ranks, which are outermost, are split otherwise.
// None: the plan's mesh is not made like that.
std::vector<int> scaled_ways(const StepProbe& probe, DataWays split, int lent, bool grouped) {
  std::vector<int> ways = probe.ways;
  const std::size_t own = grouped ? 2 : 1;
  if (ways.size() < own || ways[0] != 2 || ways[own - 1] != 2) return {};
  ways[0] = split.groups;
  ways[own - 1] = split.ways / split.groups / lent;
  return ways;
}

}  // namespace

const DataTerms* SearchTerms::data(int inner, int data, DataWays split) {
  const auto known = data_.find({inner, data, split.ways, split.groups});
  if (known != data_.end()) return known->second ? &*known->second : nullptr;
  const Clock clock(*this);
  const auto terms = made(inner, data, split);
  const auto& kept = data_[{inner, data, split.ways, split.groups}] = terms;
  return kept ? &*kept : nullptr;
}

std::optional<DataTerms> SearchTerms::made(int inner, int data, DataWays split) {
  const int like = probes_.alike(inner);
  if (like < 0) return std::nullopt;
  if (like != inner) {
    const DataTerms* same = this->data(like, data, split);
    return same == nullptr ? std::nullopt : std::optional(*same);
  }
  using Copies = SearchProbes::Copies;
  const auto& plain = probes_.step(inner, -1, Copies::two);
  if (!plain) return std::nullopt;
  // One whose ranks may be in groups is one group too.
  const bool grouped = data >= 0 && !space_.data.at(data).groups.empty() &&
                       probes_.step(inner, data, Copies::groups).has_value();
  const auto& probe =
      data < 0 ? plain : probes_.step(inner, data, grouped ? Copies::groups : Copies::two);
  if (!probe || (split.groups > 1 && !grouped)) return std::nullopt;
  const auto ways =
      data < 0 ? probe->ways : scaled_ways(*probe, split, space_.inner.at(inner).lent, grouped);
  if (data >= 0 && ways.empty()) return std::nullopt;
  DataTerms terms;
  Scaled scaled(*probe, ways, *request_.machine);
  // The plain plan's is in the seconds of its microbatches.
  const auto more = [&](const InParts& parts, const InParts& there) {
    PerLayer before;
    for (const auto& [atoms, value] : there) before += value;
    return scaled.amount(parts).less(before);
  };
  const auto all = [](const Carried&) { return true; };
  const auto gather = [](const Carried& move) { return move.gather; };
  const auto sum = [](const Carried& move) { return !move.gather; };
  ByLink slowed{}, beside{};
  const auto seconds = [&](const CarriedCounts& moves, const auto& takes) {
    const PerLink found = scaled.seconds(moves, slowed, takes);
    for (std::size_t link = 0; link < found.size(); ++link) beside[link] += found[link].layer;
    return found;
  };
  terms.gather_forward = seconds(probe->forward_moves, all);
  terms.gather_backward = seconds(probe->backward_moves, gather);
  terms.scatter = seconds(probe->backward_moves, sum);
  terms.reduce = seconds(probe->last_moves, all);
  // A link's transfers slow compute by what they share of a node's, each as long as it goes.
  for (std::size_t link = 0; link < slowed.size(); ++link)
    terms.slows[link] = beside[link] > 0 ? slowed[link] / beside[link] : 0;
  for (std::size_t link = 0; link < terms.reduce.size(); ++link) {
    terms.reduce[link] =
        terms.reduce[link].less(terms.gather_backward[link]).less(terms.scatter[link]);
  }
  terms.lasting = scaled.amount(probe->lasting);
  terms.host = scaled.amount(probe->host);
  terms.own_forward = more(probe->forward, plain->forward);
  terms.own_backward = more(probe->backward, plain->backward);
  terms.own_last = scaled.amount(probe->last).less(scaled.amount(probe->backward));
  terms.after = scaled.amount(probe->update);
  terms.copy_forward = scaled.amount(probe->copies_forward);
  terms.copy_backward = scaled.amount(probe->copies_backward);
  PerLayer moved;
  for (const PerLayer& link : seconds(probe->end_moves, all)) moved += link;
  terms.after += moved;
  terms.after += scaled.amount(probe->copies_end).less(moved);  // one beside the other
  // Where experts have no copies, nothing of them comes and goes: then as it is without any.
  const int lent = space_.inner.at(inner).lent;
  if (data >= 0 && lent > 1 && split.ways == lent) {
    if (const auto& one = probes_.step(inner, data, Copies::one)) {
      Scaled as_it_is(*one, one->ways, *request_.machine);
      comes_and_goes(
          *one, *plain, [&](const InParts& parts) { return as_it_is.amount(parts); }, terms);
      return terms;
    }
  }
  comes_and_goes(
      *probe, *plain, [&](const InParts& parts) { return scaled.amount(parts); }, terms);
  return terms;
}

}  // namespace mw
