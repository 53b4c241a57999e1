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

// What transfers of `seconds` add to work of `work` beside which they run; one layer's part waits.
double added(const PerLayer& transfers, double layers, double work, double slows) {
  const double seconds = transfers.at(layers);
  if (seconds <= 0) return 0;
  const double beside = std::min(seconds, work);
  return std::max(transfers.layer > 0 ? transfers.layer : 0.0, seconds - work) + slows * beside;
}

}  // namespace

ClosedForm::ClosedForm(const SearchRequest& request)
    : request_(request),
      layers_(static_cast<double>(request.base.plan->graph->layers)),
      stragglers_(request.machine->stragglers(request.ranks)),
      batch_(request.base.plan->request.batch) {}

double ClosedForm::send(const SearchTerms::Sent& sent, const SearchCandidate& candidate) const {
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

void ClosedForm::price(const CandidateTerms& terms, SearchCandidate& c) const {
  const WorkTerms& work = *terms.work;
  const DataTerms& data = *terms.data;
  const double microbatches =
      std::ceil(static_cast<double>(batch_) / c.data_ways / static_cast<double>(c.microbatch));
  const bool staged = c.stages > 1;
  const double most = std::ceil(layers_ / c.stages), mean = layers_ / c.stages;
  // Of a stage of so many layers, with the model's ends or without.
  const auto microbatch = [&](double layers, bool ends, double& backward) {
    const double forward = work.forward.layer * layers + (ends ? work.forward.ends : 0);
    backward = work.backward.layer * layers + (ends ? work.backward.ends : 0);
    return forward + backward + added(data.gather_forward, layers, forward, data.slows) +
           added(data.gather_backward, layers, backward, data.slows);
  };
  double backward = 0, last_backward = 0;
  const double middle = microbatch(most, !staged, backward);
  const double last = staged ? microbatch(std::floor(mean), true, last_backward) : middle;
  const double slowest = std::max(middle, last);
  double step = microbatches * slowest;
  if (staged) {
    const double usual = work.forward.layer * mean + work.backward.layer * mean;
    step += terms.order->bubble * (usual + (last - middle) / c.stages);
    const double one = send(*terms.sent, c);
    step += 2 * (c.stages * terms.chunks - 1) * one;
    if (request_.machine->stages_wait()) step += 2 * microbatches * terms.chunks * one;
  }
  step += added(data.reduce, most, beside_backward * backward, data.slows);
  step += data.after.layer * most + data.after.ends;
  c.seconds = step * stragglers_;

  const PerLayer& lasting = data.lasting;
  if (!staged) {
    c.bytes = lasting.at(layers_) + work.held.at(layers_) + data.working.at(layers_);
    return;
  }
  // Each end lies on a stage of its own, about half of what both have.
  const auto stage = [&](double layers, double under_way) {
    return lasting.layer * layers + lasting.ends / 2 + work.held.layer * layers * under_way +
           work.held.ends + data.working.at(layers);
  };
  c.bytes = std::max(stage(most, terms.order->first), stage(std::floor(mean), terms.order->last));
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
      if (ways == 1) {
        split({i, -1, 1, -1, stages});
      } else {
        for (int d = 0; d < static_cast<int>(space_.data.size()); ++d)
          split({i, d, ways, -1, stages});
      }
    }
  }

  void split(SearchCandidate candidate) {
    throw_if_stopped();
    const std::int64_t own = batch_ / candidate.data_ways;
    for (const std::int64_t size : sizes(own)) {
      candidate.microbatch = size;
      bool possible = false;
      for (candidate.policy = 0; candidate.policy < terms_.policies(); ++candidate.policy)
        possible = price(candidate, own / size) || possible;
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

  bool price(SearchCandidate candidate, std::int64_t microbatches) {
    CandidateTerms terms;
    terms.data = terms_.data(candidate.inner, candidate.data, candidate.data_ways);
    terms.work = terms.data == nullptr
                     ? nullptr
                     : terms_.work(candidate.inner, candidate.microbatch, candidate.policy);
    if (terms.work == nullptr) {
      ++found_.refused;
      return false;
    }
    const int sides = candidate.stages > 1 ? static_cast<int>(space_.stages.size()) : 1;
    for (int s = 0; s < sides; ++s) {
      if (candidate.stages > 1) {
        const StagesSide& side = space_.stages[s];
        if (side.chunks * candidate.stages > layers_) continue;
        candidate.stages_side = s;
        terms.chunks = side.chunks;
        terms.order = terms_.schedule(s, candidate.stages, microbatches);
        terms.sent = terms.order == nullptr ? nullptr : terms_.sent(candidate.inner, 0);
        if (terms.sent == nullptr) {
          ++found_.refused;
          continue;
        }
      }
      form_.price(terms, candidate);
      found_.all.push_back(candidate);
    }
    return true;
  }

  const SearchRequest& request_;
  const SearchSpace& space_;
  SearchTerms& terms_;
  const ClosedForm form_;
  const std::int64_t batch_;
  const int layers_;
  PricedCandidates found_;
  double told_ = seconds_now();
};

}  // namespace

PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  SearchTerms& terms) {
  const double begun = seconds_now(), before = terms.spent();
  PricedCandidates found = Enumeration(request, space, terms).run();
  found.pricing_seconds = seconds_now() - begun - (terms.spent() - before);
  return found;
}

}  // namespace mw
