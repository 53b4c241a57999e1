// The closed form that a search prices candidates by.
#include "predict/search_price.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "predict/network.h"

namespace mw {
namespace {

// Of a layer's last backward, the share beside which its reductions run: a guess, as each bucket
// waits for its last gradient, and buckets are small against a layer's parameters.
constexpr double beside_backward = 0.9;
// A stage that has so many of all microbatches under way has all of them: stages have a layer more
// or less than others.
constexpr double mostly = 0.8;

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
// one link go one after the other; or the layer waits for them. A gather may wait itself for what
// it sends to come from host memory. A layer's sums are begun before the next gather is, and go
// while its copy comes; with more layers gathered ahead they would wait behind it.
struct Beside {
  double own = 0, each = 0;  // seconds of all layers in one run less `each`, and of each run

  // `layer`: seconds of a layer's work; `free`: ... before its first transfer on each link; `copy`:
  // ... from host memory, of what it gathers, and `fetched`: ... of activations.
  void add(const PerLink& moves, const PerLink* more, double layer, const ByLink& free,
           double layers, double slows, double copy = 0, double fetched = 0) {
    const double there = copy > 0 ? copy + fetched : 0;  // one after the other
    double late = 0, longest = there, all = 0;
    for (std::size_t link = 0; link < free.size(); ++link) {
      const double gather = moves[link].layer;
      const double seconds = gather + (more == nullptr ? 0 : (*more)[link].layer);
      if (seconds <= 0) continue;
      late = std::max(late, std::min(seconds, there + seconds - free[link]));
      longest = std::max({longest, there + gather, seconds});  // sums go while copies come
      all += seconds;
    }
    const double longer = std::max(late + slows * std::min(all, layer), longest - layer);
    own += layers * longer;
    each += copy + all - longer;
  }
  // Of an end of the model, half of what both have: waited for, or beside a layer's work.
  void add_end(const PerLink& moves, double beside, double copy = 0) {
    for (const PerLayer& link : moves) {
      if (link.ends > 0) own += std::max(0.0, (copy + link.ends) / 2 - beside);
    }
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
  const auto copies = [&](Runs& of, const PerLayer& waits, double share) {
    of.own += share * (waits.layer * layers - (ends.last ? waits.ends : 0));
    of.each += share * waits.ends;
  };
  const double own_forward = data.own_forward.at(layers),
               own_backward = data.own_backward.at(layers);
  Beside forward;
  forward.add(data.gather_forward, nullptr, work.forward.layer + work.forward_copies.layer,
              work.forward_free, layers, data.slows, data.copy_forward.layer);
  if (ends.first) forward.add_end(data.gather_forward, 0, data.copy_forward.ends);
  if (ends.last) forward.add_end(data.gather_forward, work.forward.layer, data.copy_forward.ends);
  found.forward = runs(seconds(work.forward) + own_forward, forward);
  copies(found.forward, work.forward_copies, 1);
  Beside backward;
  const double waits = work.backward_copies.layer;
  backward.add(data.gather_backward, &data.scatter, work.backward.layer + waits, work.backward_free,
               layers, data.slows, data.copy_backward.layer, work.fetched);
  if (ends.first) backward.add_end(data.scatter, 0);
  if (ends.last) backward.add_end(data.scatter, work.backward.layer);
  found.backward = runs(seconds(work.backward) + own_backward, backward);
  copies(found.backward, work.backward_copies, 1);
  // What ran beside the gradients of weights has nothing beside it where these wait.
  const double weights = seconds(work.weights), hidden = seconds(work.hidden);
  const double layer = work.backward.layer - work.weights.layer + work.hidden.layer;
  Beside dgrad, wgrad;
  dgrad.add(data.gather_backward, nullptr, layer + work.dgrad_copies * waits, work.backward_free,
            layers, data.slows, data.copy_backward.layer, work.dgrad_copies * work.fetched);
  found.dgrad = runs(seconds(work.backward) - weights + hidden + own_backward, dgrad);
  wgrad.add(data.scatter, nullptr, work.weights.layer + work.wgrad_copies * waits, no_transfers,
            layers, data.slows);
  if (ends.first) wgrad.add_end(data.scatter, 0);
  if (ends.last) wgrad.add_end(data.scatter, work.weights.layer);
  found.wgrad = runs(weights, wgrad);
  copies(found.dgrad, work.backward_copies, work.dgrad_copies);
  copies(found.wgrad, work.backward_copies, work.wgrad_copies);
  return found;
}

ClosedForm::Bytes ClosedForm::bytes(const WorkTerms& work, const DataTerms& data, double sent,
                                    double stages, double layers, Ends ends) const {
  const double share = (ends.first ? 0.5 : 0) + (ends.last ? 0.5 : 0);
  Bytes found;
  found.lasting = kept_ + data.lasting.layer * layers +
                  (data.lasting.ends + data.held_ends) * share + data.working.at(layers) +
                  (ends.last ? std::max(0.0, work.working.ends - work.held.ends) : work.beside) +
                  std::max(0.0, work.working.layer - work.held.layer) * layers;
  found.pending = data.pending.layer * layers + data.pending.ends * share;
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
                             double more, double all, int stages, int chunks) const {
  double most = 0, highest = 0;
  for (const OrderTerms::Held& one : held) {
    const double microbatches = one.kept * more;
    highest = std::max(highest, microbatches);
    const double sends = chunks == 1 ? microbatches : std::min(microbatches * chunks, stages + 1.0);
    most = std::max(most, microbatches * kept + sends * sent + one.waiting * waiting);
  }
  // Gradients of a chunk are reduced while those of the next are added up. Where all microbatches
  // are under way before the first backward, some are done by then.
  const double one = pending / chunks;
  const double done = highest > mostly * all ? 1.0 / chunks : 0;
  const double first = most * (1 - done / all) + one;  // after the first backward of a chunk
  const double second = chunks > 1 ? most * (1 - done) + 2 * one : 0;
  most = std::max({most, first, second});
  return lasting + most + order.loss.kept * more * loss_kept + order.loss.waiting * loss_waiting;
}

// Adjacent ranks share a node: those of one stage, or of several, of which the first holds most and
// the last least of layers and microbatches, and what lies between them on a line. The model's ends
// are on the first and the last stage alone, which may be one.
double ClosedForm::host(const OrderTerms* order, const SearchCandidate& c) const {
  if (!host_.any()) return 0;
  const double on_node = std::min(request_.machine->host().ranks, request_.ranks);
  if (order == nullptr) return on_node * (host_.first + host_.ends + host_.kept + host_.made);
  const double more = order->holds_all ? microbatches_ / order->microbatches : 1;
  const auto kept = [&](const std::vector<OrderTerms::Held>& held) {
    double most = 0;
    for (const OrderTerms::Held& one : held)
      most = std::max(most, one.kept * host_.kept + one.waiting * host_.waiting);
    return most * more;
  };
  const double first = host_.first + kept(order->most), last = host_.last + kept(order->last);
  const double stages =
      std::clamp(on_node * c.stages / request_.ranks, 1.0, static_cast<double>(c.stages));
  const double beyond = (stages - 1) / 2 / (c.stages - 1);  // of the way, their mean
  const double ends = host_.ends * (stages < c.stages && !order->folded ? 0.5 : 1) / stages +
                      order->first.kept * more * host_.made / stages;
  return on_node * (std::max(first, last) - beyond * std::abs(first - last) + ends);
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
  end_ = data.after.layer * most + data.after.ends;
  slows_ = data.slows;
  turns_ = {};
  if (data.by_chunk && staged) {
    turns_ = {true, 0, reduce.own + reduce.each, data.own_last.at(most)};
    for (const PerLayer& link : data.reduce) turns_.all += link.layer * most;
  } else {
    end_ += reduce.own + reduce.each + data.own_last.at(most);
  }
  host_ = {data.host.layer * most,
           data.host.layer * least,
           data.host.ends,
           work.host.layer * layers_ / c.stages,
           work.host_waiting.layer * layers_ / c.stages,
           work.host.ends};
  if (!staged) {
    whole_bytes_ = kept_ + data.lasting.at(layers_) + work.working.at(layers_) +
                   data.working.at(layers_) + data.held_ends + data.pending.at(layers_);
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

// Those of the last chunk are waited for; of each one before, what the works of a turn do not hide,
// and what it slows them.
double ClosedForm::turning(const OrderTerms& order, int chunks, double busy) const {
  const bool again = order.turns > chunks;  // the more the more microbatches there are
  const double turns = order.turns * (again ? microbatches_ / order.microbatches : 1);
  const double one = turns_.all / chunks, hides = microbatches_ * busy / turns;
  const double longer = std::max(slows_ * std::min(one, hides), one - hides);
  return turns_.late / chunks + (turns - 1) * longer + turns_.own * turns / chunks;
}

void ClosedForm::price(const OrderTerms* order, int chunks, SearchCandidate& c) const {
  c.host = host(order, c);
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
  if (turns_.any) step += turning(*order, chunks, most);
  if (request_.machine->stages_wait()) step += 2 * microbatches_ * chunks * sent_;
  c.seconds = step * stragglers_;
  const double more = order->holds_all ? microbatches_ / order->microbatches : 1;
  const auto bytes = [&](const Bytes& of, const std::vector<OrderTerms::Held>& held) {
    return of.at(*order, held, more, microbatches_, c.stages, chunks);
  };
  c.bytes = order->folded
                ? bytes(folded_bytes_, order->most)
                : std::max(bytes(most_bytes_, order->most), bytes(last_bytes_, order->last));
}

}  // namespace mw
