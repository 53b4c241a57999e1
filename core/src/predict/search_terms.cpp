// Makes the terms of a search's closed form of what plans of few layers tell.
#include "predict/search_terms.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
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

int SearchTerms::keeping(int policy) const {
  for (int other = 0; other < probes_.policies(); ++other) {
    if (probes_.recompute_of(other).policy.kind == RecomputePolicy::Kind::none &&
        &probes_.offload_of(other) == &probes_.offload_of(policy))
      return other;
  }
  return -1;
}

const WorkTerms* SearchTerms::work(int inner, std::int64_t microbatch, int policy) {
  const auto [found, missing] = work_.try_emplace({inner, microbatch, policy});
  if (!missing) return found->second ? &*found->second : nullptr;
  const Clock clock(*this);
  if (const auto& both = probes_.microbatch(inner, policy, microbatch)) {
    const auto& [few, many] = *both;
    WorkTerms terms;
    terms.forward = per_layer(few.forward, many.forward);
    terms.backward = per_layer(few.backward, many.backward);
    terms.held = per_layer(few.working, many.working);
    const int all = keeping(policy);
    if (const auto& kept = probes_.microbatch(inner, all < 0 ? policy : all, microbatch)) {
      const PerLayer whole = per_layer((*kept)[0].working, (*kept)[1].working);
      terms.again = std::max(0.0, whole.layer - terms.held.layer);
    }
    found->second = terms;
  }
  return found->second ? &*found->second : nullptr;
}

const OrderTerms* SearchTerms::order(int stages_side, int ways, std::int64_t microbatches) {
  if (orders_.knows(stages_side, ways, microbatches))
    return orders_.find(stages_side, ways, microbatches);
  const Clock clock(*this);
  return orders_.find(stages_side, ways, microbatches);
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

  double amount(const InParts& parts) const {
    double sum = 0;
    for (const auto& [atoms, value] : parts) sum += value * share(atoms);
    return sum;
  }

  double seconds(const CarriedCounts& moves, double& slows) {
    double sum = 0;
    for (const auto& [one, count] : moves) {
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
      slows = std::max(slows, slow);
      if (one.backward_gather) seconds *= stack_.backward_gathers;
      if (one.hidden) seconds *= slow;
      sum += count * seconds;
    }
    return sum;
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

// The ways of the mesh's atoms where the data's ranks, which are outermost, are split otherwise.
// None: the plan's mesh is not made like that.
std::vector<int> scaled_ways(const StepProbe& probe, DataWays split, int lent, bool alone) {
  std::vector<int> ways = probe.ways;
  if (alone) return ways;
  const std::size_t own = split.groups > 1 ? 2 : 1;
  if (ways.size() < own || ways[0] != 2 || ways[own - 1] != 2) return {};
  ways[0] = split.groups > 1 ? split.groups : split.ways / lent;
  if (own == 2) ways[1] = split.ways / split.groups / lent;
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
  const auto& plain = probes_.step(inner, -1, false);
  const auto& both = data < 0 ? plain : probes_.step(inner, data, split.groups > 1);
  if (!plain || !both) return std::nullopt;
  DataTerms terms;
  std::array<std::array<double, 9>, 2> of{};
  for (std::size_t l = 0; l < 2; ++l) {
    const StepProbe &one = (*both)[l], &usual = (*plain)[l];
    const auto ways = scaled_ways(one, split, space_.inner.at(inner).lent, data < 0);
    if (ways.empty()) return std::nullopt;
    Scaled scaled(one, ways, *request_.machine);
    const auto moved = [&](const CarriedCounts& moves) {
      return scaled.seconds(moves, terms.slows);
    };
    // The plain plan's is in the seconds of its microbatches.
    const auto more = [&](const InParts& own, const InParts& there) {
      double before = 0;
      for (const auto& [atoms, value] : there) before += value;
      return std::max(0.0, scaled.amount(own) - before);
    };
    const double backward = moved(one.backward_moves);
    const double own_backward = more(one.backward, usual.backward);
    of[l] = {scaled.amount(one.lasting),
             std::max(0.0, one.working - usual.working),
             moved(one.forward_moves),
             backward,
             more(one.forward, usual.forward),
             own_backward,
             std::max(0.0, moved(one.last_moves) - backward),
             std::max(0.0, scaled.amount(one.last) - scaled.amount(one.backward)),
             scaled.amount(one.update) + moved(one.end_moves)};
  }
  PerLayer* const all[] = {&terms.lasting,         &terms.working,     &terms.gather_forward,
                           &terms.gather_backward, &terms.own_forward, &terms.own_backward,
                           &terms.reduce,          &terms.own_last,    &terms.after};
  for (std::size_t k = 0; k < std::size(all); ++k) *all[k] = per_layer(of[0][k], of[1][k]);
  return terms;
}

}  // namespace mw
