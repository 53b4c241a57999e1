// Makes the terms of a search's closed form of what plans of few layers tell.
#include "search/terms.h"

#include <algorithm>
#include <array>

#include "meshwright/engine/host.h"

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

SearchTerms::SearchTerms(const SearchRequest& request, const SearchSpace& space,
                         const Cluster& cluster)
    : request_(request), space_(space), probes_(request, space, cluster), orders_(request, space) {}

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
    // Nothing hides what a chunk's first layer fetches; here the model's end does.
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
  const auto& plain = probes_.step(inner);
  if (!plain) return std::nullopt;
  const auto probe = data < 0 ? plain : probes_.step(inner, data, split);
  if (!probe) return std::nullopt;
  DataTerms terms;
  terms.lasting = probe->lasting;
  terms.host = probe->host;
  terms.on_first = probe->on_first;
  terms.on_last = probe->on_last;
  // What the plain plan does is in the seconds and bytes of its microbatches.
  const PerLayer held = probe->held.less(plain->held);
  terms.held_layer = held.layer;
  terms.held_ends = held.ends;
  terms.pending = probe->pending;
  terms.by_chunk = probe->by_chunk;
  if (probe->by_chunk) terms.arriving = probe->arriving;
  terms.in_forward = std::max(0.0, probe->in_forward - plain->in_forward);
  terms.in_backward = std::max(0.0, probe->in_backward - plain->in_backward);
  double there = held.at(probe->layers);
  if (probe->by_chunk) there += (probe->pending + probe->arriving).at(probe->layers);
  terms.in_end = std::max(0.0, probe->in_end - there);
  terms.gather_next = probe->gather_next;
  terms.gather_forward = probe->gather_forward;
  terms.gather_backward = probe->gather_backward;
  terms.scatter = probe->scatter;
  for (std::size_t link = 0; link < terms.reduce.size(); ++link) {
    terms.reduce[link] =
        probe->last_moves[link].less(terms.gather_backward[link]).less(terms.scatter[link]);
  }
  terms.slows = probe->slows;
  terms.own_forward = probe->forward.less(plain->forward);
  terms.own_backward = probe->backward.less(plain->backward);
  terms.own_last = probe->last.less(probe->backward);
  terms.copy_forward = probe->copies_forward;
  terms.copy_backward = probe->copies_backward;
  const PerLayer moved = probe->end_moves[0] + probe->end_moves[1];
  // Copies go beside the transfers.
  terms.after = probe->update + moved + probe->copies_end.less(moved);
  terms.beside = probe->beside;
  terms.beside_backward = probe->beside_backward;
  return terms;
}

}  // namespace mw
