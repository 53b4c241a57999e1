// Prices every candidate of a search by the closed form.
#include "predict/search_price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/interrupt.h"
#include "predict/network.h"

namespace mw {
namespace {

// Of a last backward, the share before whose end its reductions begin.
constexpr double beside_backward = 0.9;
// Stages beyond which no search goes: orders of more take seconds to make.
constexpr int most_stages = 128;
constexpr std::int64_t most_microbatch = 64;

}  // namespace

ClosedForm::ClosedForm(const SearchRequest& request)
    : request_(request),
      layers_(static_cast<double>(request.base.plan->graph->layers)),
      stragglers_(request.machine->stragglers(request.ranks)),
      kept_(static_cast<double>(request.machine->kept_by_libraries())),
      batch_(request.base.plan->request.batch) {}

double ClosedForm::send(const SentProbe& sent, const SearchCandidate& candidate) const {
  const Cluster& cluster = request_.machine->cluster();
  const double bytes = sent.bytes * static_cast<double>(candidate.microbatch);
  const int next = request_.ranks / candidate.stages;
  if (!request_.machine->stack().scattered_sends || !sent.whole || sent.ranks < 2)
    return send_seconds(cluster, bytes, 0, next);
  std::vector<int> ranks;
  for (int r = 0; r < sent.ranks; ++r) ranks.push_back(r);
  return send_seconds(cluster, bytes / sent.ranks, 0, next) +
         collective_seconds(cluster, Collective::all_gather, bytes, place(cluster, ranks), {});
}

ClosedForm::Microbatch ClosedForm::microbatch(const WorkTerms& work, const DataTerms& data,
                                              double layers, bool ends) const {
  const double forward = work.forward.layer * layers + (ends ? work.forward.ends : 0);
  const double backward = work.backward.layer * layers + (ends ? work.backward.ends : 0);
  Microbatch found;
  found.backward = backward;
  found.own = forward + backward + data.own_forward.at(layers) + data.own_backward.at(layers);
  const auto beside = [&](const PerLayer& transfers, double work_seconds) {
    const double seconds = transfers.at(layers);
    found.own += data.slows * std::min(seconds, work_seconds);
    return Beside{transfers.layer, std::max(0.0, seconds - work_seconds)};
  };
  found.forward_moves = beside(data.gather_forward, forward);
  found.backward_moves = beside(data.gather_backward, backward);
  return found;
}

void ClosedForm::take(const WorkTerms& work, const DataTerms& data, const SentProbe* sent,
                      const SearchCandidate& c) {
  const std::int64_t microbatches = batch_ / c.split.ways / c.microbatch;
  microbatches_ = static_cast<double>(microbatches);
  const bool staged = c.stages > 1;
  const double most = std::ceil(layers_ / c.stages), mean = layers_ / c.stages;
  middle_ = microbatch(work, data, most, !staged);
  const double reduce = data.reduce.at(most), hiding = beside_backward * middle_.backward;
  end_ = Beside{data.reduce.layer, reduce - hiding}.waits(1) +
         data.slows * std::min(reduce, hiding) + data.own_last.at(most) + data.after.layer * most +
         data.after.ends;
  const PerLayer& lasting = data.lasting;
  if (!staged) {
    first_bytes_ = kept_ + lasting.at(layers_) + work.held.at(layers_) + data.working.at(layers_);
    return;
  }
  last_ = microbatch(work, data, std::floor(mean), true);
  usual_ = work.forward.layer * mean + work.backward.layer * mean;
  sent_ = send(*sent, c);
  // Each end lies on a stage of its own, about half of what both have.
  const auto lasts = [&](double layers) {
    return kept_ + lasting.layer * layers + lasting.ends / 2 + work.held.ends +
           data.working.at(layers);
  };
  first_bytes_ = lasts(most);
  first_held_ = work.held.layer * most;
  last_bytes_ = lasts(std::floor(mean));
  last_held_ = work.held.layer * std::floor(mean);
  again_ = work.again * most;
}

void ClosedForm::price(const OrderTerms* order, int chunks, SearchCandidate& c) const {
  const double middle = middle_.at(chunks);
  if (order == nullptr) {
    c.seconds = (microbatches_ * middle + end_) * stragglers_;
    c.bytes = first_bytes_;
    return;
  }
  const double last = last_.at(chunks);
  double step = microbatches_ * std::max(middle, last) +
                order->bubble * (usual_ + (last - middle) / c.stages) + end_ +
                2 * (c.stages * chunks - 1) * sent_;
  if (request_.machine->stages_wait()) step += 2 * microbatches_ * chunks * sent_;
  c.seconds = step * stragglers_;
  const double more = order->holds_all ? microbatches_ / order->microbatches : 1;
  c.bytes = std::max(first_bytes_ + first_held_ * order->first * more + again_ * order->waiting,
                     last_bytes_ + last_held_ * order->last * more);
}

namespace {

class Enumeration {
 public:
  Enumeration(const SearchRequest& request, const SearchSpace& space, SearchTerms& terms)
      : request_(request),
        space_(space),
        terms_(terms),
        form_(request),
        batch_(request.base.plan->request.batch),
        layers_(request.base.plan->graph->layers) {}

  PricedCandidates run() {
    try {
      for (std::size_t i = 0; i < space_.inner.size(); ++i) {
        inner(static_cast<int>(i));
        report(i + 1);
      }
    } catch (const Stopped&) {
      found_.interrupted = true;
    }
    return std::move(found_);
  }

 private:
  void report(std::size_t done) {
    if (!request_.progress || seconds_now() - told_ < 1) return;
    told_ = seconds_now();
    request_.progress(fmt::format("search: {} candidates priced, {} of {} ways to split a layer",
                                  found_.all.size(), done, space_.inner.size()));
  }

  void inner(int i) {
    const InnerSide& side = space_.inner[i];
    if (request_.ranks % side.ranks != 0) return;
    for (const int stages : divisors(request_.ranks / side.ranks)) {
      if (stages > most_stages || stages > layers_ || (stages > 1 && space_.stages.empty())) break;
      const int ways = request_.ranks / side.ranks / stages;
      if (ways % side.lent != 0 || (ways > 1 && space_.data.empty())) continue;
      if (batch_ % ways != 0) continue;
      found_.divides = true;
      SearchCandidate candidate;
      candidate.inner = i;
      candidate.stages = stages;
      candidate.split.ways = ways;
      if (ways == 1) {
        split(candidate);
        continue;
      }
      for (std::size_t d = 0; d < space_.data.size(); ++d) {
        candidate.data = static_cast<std::int16_t>(d);
        for (const int groups : groups_of(space_.data[d], ways / side.lent)) {
          candidate.split.groups = groups;
          split(candidate);
        }
      }
    }
  }

  // Numbers of groups of the data's ranks, each of several times those that are lent.
  static std::vector<int> groups_of(const DataSide& side, int times) {
    std::vector<int> list = {1};
    if (side.groups.empty()) return list;
    for (const int groups : divisors(times)) {
      if (groups > 1 && groups < times) list.push_back(groups);
    }
    return list;
  }

  void split(SearchCandidate candidate) {
    throw_if_stopped();
    const std::int64_t own = batch_ / candidate.split.ways;
    const DataTerms* data = terms_.data(candidate.inner, candidate.data, candidate.split);
    for (const std::int64_t size : sizes(own)) {
      candidate.microbatch = size;
      if (data == nullptr) {
        found_.refused += terms_.probes().policies();
        continue;
      }
      orders_of(candidate.stages, own / size);
      bool possible = false;
      for (int policy = 0; policy < terms_.probes().policies(); ++policy) {
        candidate.policy = static_cast<std::int16_t>(policy);
        possible = price(candidate, *data) || possible;
      }
      if (!possible) break;  // a model that refuses these refuses larger ones
    }
  }

  std::vector<std::int64_t> sizes(std::int64_t own) const {
    std::vector<std::int64_t> list;
    if (request_.microbatches.empty()) {
      for (std::int64_t size = 1; size <= std::min(own, most_microbatch); size *= 2)
        if (own % size == 0) list.push_back(size);
    } else {
      for (const std::int64_t size : request_.microbatches)
        if (own % size == 0) list.push_back(size);
    }
    return list;
  }

  void orders_of(int stages, std::int64_t microbatches) {
    orders_.clear();
    if (stages == 1) return;
    for (std::size_t s = 0; s < space_.stages.size(); ++s) {
      const bool enough = space_.stages[s].chunks * stages <= layers_;
      orders_.push_back(enough ? terms_.order(static_cast<int>(s), stages, microbatches) : nullptr);
    }
  }

  bool price(SearchCandidate& candidate, const DataTerms& data) {
    const WorkTerms* work = terms_.work(candidate.inner, candidate.microbatch, candidate.policy);
    const SentProbe* sent = candidate.stages > 1 ? terms_.sent(candidate.inner) : nullptr;
    if (work == nullptr || (candidate.stages > 1 && sent == nullptr)) {
      ++found_.refused;
      return false;
    }
    form_.take(*work, data, sent, candidate);
    if (candidate.stages == 1) {
      candidate.stages_side = -1;
      form_.price(nullptr, 1, candidate);
      found_.all.push_back(candidate);
      return true;
    }
    for (std::size_t s = 0; s < orders_.size(); ++s) {
      const int chunks = space_.stages[s].chunks;
      if (chunks * candidate.stages > layers_) continue;
      if (orders_[s] == nullptr) {
        ++found_.refused;
        continue;
      }
      candidate.stages_side = static_cast<std::int16_t>(s);
      form_.price(orders_[s], chunks, candidate);
      found_.all.push_back(candidate);
    }
    return true;
  }

  const SearchRequest& request_;
  const SearchSpace& space_;
  SearchTerms& terms_;
  ClosedForm form_;
  const std::int64_t batch_;
  const int layers_;
  std::vector<const OrderTerms*> orders_;  // of each side of stages; null: none
  PricedCandidates found_;
  double told_ = seconds_now();
};

}  // namespace

PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  SearchTerms& terms) {
  const double begun = cpu_seconds_now(), before = terms.spent();
  PricedCandidates found = Enumeration(request, space, terms).run();
  found.pricing_seconds = cpu_seconds_now() - begun - (terms.spent() - before);
  return found;
}

}  // namespace mw
