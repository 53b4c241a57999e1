// Prices every candidate of a search by the closed form.
#include "predict/search_price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

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

namespace {

// Transfers beside the works of layers, of which a run of a segment has so many: gathers that begin
// a layer ahead, sums that are awaited a layer later. The first gather and the last sum of a run
// are waited for. The others slow the layer's work, and keep its own transfers waiting, as those of
// one link go one after the other; or the layer waits for them.
struct Beside {
  double own = 0, each = 0;  // seconds of all layers in one run less `each`, and of each run

  // `layer`: seconds of a layer's work; `free`: ... before its first transfer on each link.
  void add(const PerLink& moves, const PerLink* more, double layer, const ByLink& free,
           double layers, double slows) {
    double late = 0, longest = 0, all = 0;
    for (std::size_t link = 0; link < free.size(); ++link) {
      const double seconds = moves[link].layer + (more == nullptr ? 0 : (*more)[link].layer);
      late = std::max(late, seconds - free[link]);
      longest = std::max(longest, seconds);
      all += seconds;
    }
    const double longer = std::max(late + slows * std::min(all, layer), longest - layer);
    own += layers * longer;
    each += all - longer;
  }
  // Of an end of the model, half of what both have: waited for, or beside a layer's work.
  void add_end(const PerLink& moves, double beside) {
    for (const PerLayer& link : moves) own += std::max(0.0, link.ends / 2 - beside);
  }
};

}  // namespace

ClosedForm::Works ClosedForm::works(const WorkTerms& work, const DataTerms& data, double layers,
                                    Ends ends) const {
  const auto seconds = [&](const PerLayer& terms) {
    return terms.layer * layers + (ends.last ? terms.ends : 0);
  };
  constexpr double none = std::numeric_limits<double>::infinity();
  const ByLink no_transfers = {none, none};
  const auto runs = [](double own, const Beside& beside) {
    return Runs{own + beside.own, beside.each};
  };
  Works found;
  const double own_forward = data.own_forward.at(layers),
               own_backward = data.own_backward.at(layers);
  Beside forward;
  forward.add(data.gather_forward, nullptr, work.forward.layer, work.forward_free, layers,
              data.slows);
  if (ends.first) forward.add_end(data.gather_forward, 0);
  if (ends.last) forward.add_end(data.gather_forward, work.forward.layer);
  found.forward = runs(seconds(work.forward) + own_forward, forward);
  Beside backward;
  backward.add(data.gather_backward, &data.scatter, work.backward.layer, work.backward_free, layers,
               data.slows);
  if (ends.first) backward.add_end(data.scatter, 0);
  if (ends.last) backward.add_end(data.scatter, work.backward.layer);
  found.backward = runs(seconds(work.backward) + own_backward, backward);
  // What ran beside the gradients of weights has nothing beside it where these wait.
  const double weights = seconds(work.weights), hidden = seconds(work.hidden);
  const double layer = work.backward.layer - work.weights.layer + work.hidden.layer;
  Beside dgrad, wgrad;
  dgrad.add(data.gather_backward, nullptr, layer, work.backward_free, layers, data.slows);
  found.dgrad = runs(seconds(work.backward) - weights + hidden + own_backward, dgrad);
  wgrad.add(data.scatter, nullptr, work.weights.layer, no_transfers, layers, data.slows);
  if (ends.first) wgrad.add_end(data.scatter, 0);
  if (ends.last) wgrad.add_end(data.scatter, work.weights.layer);
  found.wgrad = runs(weights, wgrad);
  return found;
}

ClosedForm::Bytes ClosedForm::bytes(const WorkTerms& work, const DataTerms& data, double sent,
                                    double stages, double layers, Ends ends) const {
  const double share = (ends.first ? 0.5 : 0) + (ends.last ? 0.5 : 0);
  Bytes found;
  found.lasting = kept_ + data.lasting.layer * layers + data.lasting.ends * share +
                  data.working.at(layers) +
                  (ends.last ? std::max(0.0, work.working.ends - work.held.ends) : work.beside) +
                  std::max(0.0, work.working.layer - work.held.layer) * layers;
  found.kept = work.held.layer * layers_ / stages;
  found.waiting = work.waiting.layer * layers_ / stages;
  found.sent = sent;
  if (ends.last) {
    found.loss_kept = work.held.ends;
    found.loss_waiting = work.waiting.ends;
  }
  return found;
}

// A chunk sends what it made, and keeps that until the stage that takes it is known to have it:
// with one chunk until its gradient comes, else until word of it comes round the stages.
double ClosedForm::Bytes::at(const OrderTerms& order, const std::vector<OrderTerms::Held>& held,
                             double more, int stages, int chunks) const {
  double most = 0;
  for (const OrderTerms::Held& one : held) {
    const double microbatches = one.kept * more;
    const double sends = chunks == 1 ? microbatches : std::min(microbatches * chunks, stages + 1.0);
    most = std::max(most, microbatches * kept + sends * sent + one.waiting * waiting);
  }
  return lasting + most + order.loss.kept * more * loss_kept + order.loss.waiting * loss_waiting;
}

void ClosedForm::take(const WorkTerms& work, const DataTerms& data, const SentProbe* sent,
                      const SearchCandidate& c) {
  const std::int64_t microbatches = batch_ / c.split.ways / c.microbatch;
  microbatches_ = static_cast<double>(microbatches);
  const bool staged = c.stages > 1;
  const double mean = layers_ / c.stages, most = std::ceil(mean), least = std::floor(mean);
  most_ = works(work, data, most, {true, !staged});
  Beside reduce;
  reduce.add(data.reduce, nullptr, beside_backward * work.backward.layer, work.backward_free, most,
             data.slows);
  reduce.add_end(data.reduce, work.backward.layer);
  end_ =
      reduce.own + reduce.each + data.own_last.at(most) + data.after.layer * most + data.after.ends;
  if (!staged) {
    whole_bytes_ =
        kept_ + data.lasting.at(layers_) + work.working.at(layers_) + data.working.at(layers_);
    return;
  }
  last_ = works(work, data, least, {false, true});
  usual_ = works(work, data, mean, {});
  sent_ = send(*sent, c);
  const double bytes_sent = sent->bytes * static_cast<double>(c.microbatch);
  most_bytes_ = bytes(work, data, bytes_sent, c.stages, most, {true, false});
  last_bytes_ = bytes(work, data, 0, c.stages, least, {false, true});
  folded_bytes_ = bytes(work, data, bytes_sent, c.stages, most, {true, true});
}

void ClosedForm::price(const OrderTerms* order, int chunks, SearchCandidate& c) const {
  if (order == nullptr) {
    const double one = most_.forward.at(1) + most_.backward.at(1);
    c.seconds = (microbatches_ * one + end_) * stragglers_;
    c.bytes = whole_bytes_;
    return;
  }
  const double parted = order->parted;
  const auto busy = [&](const Works& works) {
    double seconds = works.forward.at(chunks);
    if (parted < 1) seconds += (1 - parted) * works.backward.at(chunks);
    if (parted > 0) seconds += parted * (works.dgrad.at(chunks) + works.wgrad.at(chunks));
    return seconds;
  };
  const double most = busy(most_), last = busy(last_), usual = busy(usual_);
  double bubble = 0;
  for (const OrderTerms::Way& way : order->ways) {
    bubble = std::max(bubble, way.forward * usual_.forward.at(chunks) +
                                  way.backward * usual_.backward.at(chunks) +
                                  way.dgrad * usual_.dgrad.at(chunks) +
                                  way.wgrad * usual_.wgrad.at(chunks));
  }
  // The last stage, which is slower, is part of it.
  bubble *= 1 + std::max(0.0, last - most) / (c.stages * usual);
  double step =
      microbatches_ * std::max(most, last) + bubble + end_ + 2 * (c.stages * chunks - 1) * sent_;
  if (request_.machine->stages_wait()) step += 2 * microbatches_ * chunks * sent_;
  c.seconds = step * stragglers_;
  const double more = order->holds_all ? microbatches_ / order->microbatches : 1;
  const auto bytes = [&](const Bytes& of, const std::vector<OrderTerms::Held>& held) {
    return of.at(*order, held, more, c.stages, chunks);
  };
  c.bytes = order->folded
                ? bytes(folded_bytes_, order->most)
                : std::max(bytes(most_bytes_, order->most), bytes(last_bytes_, order->last));
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
      bool possible = false;
      for (int policy = 0; policy < terms_.probes().policies(); ++policy) {
        candidate.policy = static_cast<std::int16_t>(policy);
        orders_of(candidate, own / size);
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

  void orders_of(const SearchCandidate& of, std::int64_t microbatches) {
    orders_.clear();
    if (of.stages == 1) return;
    for (std::size_t s = 0; s < space_.stages.size(); ++s) {
      const bool enough = space_.stages[s].chunks * of.stages <= layers_;
      orders_.push_back(
          enough ? terms_.order(static_cast<int>(s), of.stages, microbatches, of.inner, of.policy)
                 : nullptr);
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
