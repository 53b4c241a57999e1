// Enumerates the candidates of a search, and prices each by the closed form.
#include "search/price.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "predict/network.h"
#include "search/software.h"
#include "search/uneven.h"

namespace mw {
namespace {

// The share of a layer's last backward beside which its reductions run: a guess, as each bucket
// waits for its last gradient, and buckets are small against a layer's parameters.
constexpr double beside_backward = 0.9;

}  // namespace

ClosedForm::ClosedForm(const SearchRequest& request, const Cluster& cluster)
    : request_(request),
      cluster_(cluster),
      layers_(static_cast<double>(request.base.plan->graph->layers)),
      stragglers_(request.machine->stragglers(request.ranks)),
      kept_(static_cast<double>(request.machine->kept_by_libraries())),
      batch_(request.base.plan->request.batch),
      one_stage_{moments_of_one(request.base.plan->graph->layers, 1),
                 moments_of_one(request.base.plan->graph->layers, 2)} {}

double ClosedForm::send(const SentProbe& sent, const SearchCandidate& candidate) const {
  const double bytes = sent.bytes * static_cast<double>(candidate.microbatch);
  const int next = request_.ranks / candidate.stages;
  if (!request_.machine->stack().scattered_sends || !sent.whole || sent.ranks < 2)
    return send_seconds(cluster_, bytes, 0, next);
  std::vector<int> ranks;
  for (int r = 0; r < sent.ranks; ++r) ranks.push_back(r);
  return send_seconds(cluster_, bytes / sent.ranks, 0, next) +
         collective_seconds(cluster_, Collective::all_gather, bytes, place(cluster_, ranks), {});
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
  // seconds of copies from host memory of what it gathers, and `fetched`: of activations.
  void add(const PerLink& moves, const PerLink* more, double layer, const ByLink& free,
           double layers, const ByLink& slows, double copy = 0, double fetched = 0) {
    const double there = copy > 0 ? copy + fetched : 0;  // one after the other
    double late = 0, longest = there, all = 0, slowed = 0;
    for (std::size_t link = 0; link < free.size(); ++link) {
      const double gather = moves[link].layer;
      const double seconds = gather + (more == nullptr ? 0 : (*more)[link].layer);
      if (seconds <= 0) continue;
      late = std::max(late, std::min(seconds, there + seconds - free[link]));
      longest = std::max({longest, there + gather, seconds});  // sums go while copies come
      all += seconds;
      slowed += slows[link] * seconds;
    }
    if (all > layer) slowed *= layer / all;
    const double longer = std::max(late + slowed, longest - layer);
    own += layers * longer;
    each += copy + all - longer;
  }
  // Adds, for an end of the model, half of what both have: waited for, or beside a layer's work.
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
                                    bool staged) const {
  // One stage has what both ends share (a tied embedding) once.
  const double on_last = staged ? data.on_last : 1 - data.on_first;
  Bytes found;
  found.set(Counted::layers, data.lasting.layer + data.held_layer);
  found.set(Counted::first_end, (data.lasting.ends + data.held_ends) * data.on_first);
  found.set(Counted::last_end, (data.lasting.ends + data.held_ends) * data.on_last);
  found.set(Counted::both_ends, data.lasting.ends + data.held_ends);
  found.set(Counted::arriving, data.arriving.layer);
  found.set(Counted::arriving_first, data.arriving.ends * data.on_first);
  found.set(Counted::arriving_last, data.arriving.ends * on_last);
  // What the loss reads is what a chunk without it sends.
  const double first = std::max(0.0, work.before_loss - sent);
  found.set(Counted::kept, work.held.layer);
  found.set(Counted::kept_first, first);
  found.set(Counted::kept_last, std::max(0.0, work.held.ends - first));
  found.set(Counted::waiting, work.waiting.layer);
  found.set(Counted::waiting_last, work.waiting.ends);
  found.set(Counted::sent, sent);
  found.set(Counted::pending, data.pending.layer);
  found.set(Counted::pending_first, data.pending.ends * data.on_first);
  found.set(Counted::pending_last, data.pending.ends * on_last);
  const auto turns = [&](Work one, double comes, double arrives, double goes) {
    for (const bool last : {false, true}) {
      found.turning[kind_of(one, last)] = std::max(0.0, comes - goes);
      found.reducing[kind_of(one, last)] = std::max(0.0, arrives - goes);
    }
  };
  turns(Work::backward, data.pending.layer, data.arriving.layer, work.held.layer);
  turns(Work::dgrad, work.waiting.layer, 0, work.held.layer);
  turns(Work::wgrad, data.pending.layer, data.arriving.layer, work.waiting.layer);
  // The gradient that it received is among what a stage holds, and among what the probe found.
  const double back = std::max(0.0, work.in_backward - first - sent);
  const double loss = found[Counted::kept_last];
  const double loss_back = std::max(work.in_loss_back, work.in_backward - first - loss);
  found.works[kind_of(Work::forward, false)] = work.in_forward + data.in_forward;
  found.works[kind_of(Work::forward, true)] =
      std::max(work.in_loss, work.in_forward + work.before_loss - work.held.ends) + data.in_forward;
  for (const Work one : {Work::backward, Work::dgrad}) {
    found.works[kind_of(one, false)] = back + data.in_backward;
    found.works[kind_of(one, true)] = std::max(0.0, loss_back) + data.in_backward;
  }
  for (const bool last : {false, true}) found.works[kind_of(Work::wgrad, last)] = data.in_backward;
  found.works[work_of_end] = data.in_end;
  return found;
}

// `more`: times the microbatches that the order was timed with, where it holds all of them.
void ClosedForm::fill(const Moments& moments, bool all_held, double more, bool sends_all,
                      bool assumed, SearchCandidate& c) const {
  Bytes of = bytes_;
  const auto level_of = [&](const Moment& moment) {
    std::array<float, 4> sums{};  // side by side
    for (std::size_t k = 0; k < counted_padded; k += sums.size()) {
      for (std::size_t lane = 0; lane < sums.size(); ++lane)
        sums[lane] += moment.counts[k + lane] * of.each[k + lane];
    }
    return sums[0] + sums[1] + (sums[2] + sums[3]);
  };
  float most = 0, least = 0, sure = 0;
  if (assumed) {
    for (const Moment& moment : moments.sure) sure = std::max(sure, level_of(moment));
  }
  if (all_held) {
    for (const Counted what : {Counted::kept, Counted::kept_first, Counted::kept_last,
                               Counted::waiting, Counted::waiting_last})
      of.set(what, of[what] * more);
    if (sends_all) of.set(Counted::sent, of[Counted::sent] * more);
  }
  for (const Moment& moment : by_chunk_ ? moments.by_chunk : moments.usual) {
    const float level = level_of(moment);
    const std::size_t w = moment.work;
    least = std::max(least, level);
    most = std::max(most, level + of.works[w] + moment[Counted::turning] * of.turning[w] +
                              moment[Counted::reducing] * of.reducing[w]);
  }
  c.bytes = kept_ + most;
  // Shards are rounded, and so are these sums.
  c.least = (kept_ + (assumed ? sure : least)) * (1 - 1e-5);
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
  const double beyond =
      (stages - 1) / 2 /
      (c.stages - 1);  // how far ranks lie from the first stage to the last, on average
  const double some = order->folded       ? 1
                      : stages < c.stages ? std::max(on_first_, on_last_)
                                          : on_first_ + on_last_;
  const double ends = host_.ends * some / stages + order->first.kept * more * host_.made / stages;
  return on_node * (std::max(first, last) - beyond * std::abs(first - last) + ends);
}

void ClosedForm::take(const WorkTerms& work, const DataTerms& data, const SentProbe* sent,
                      const SearchCandidate& c) {
  const std::int64_t microbatches = batch_ / c.split.ways / c.microbatch;
  microbatches_ = static_cast<double>(microbatches);
  const bool staged = c.stages > 1;
  const double mean = layers_ / c.stages, most = std::ceil(mean), least = std::floor(mean);
  work_ = &work;
  data_ = &data;
  stages_count_ = c.stages;
  stages_.clear();
  if (!staged) whole_ = works(work, data, most, {true, true});
  Beside reduce;
  reduce.add(data.reduce, nullptr, beside_backward * work.backward.layer, work.backward_free, most,
             data.slows);
  reduce.add_end(data.reduce, work.backward.layer);
  constexpr double none = std::numeric_limits<double>::infinity();
  Beside gather;
  gather.add(data.gather_next, nullptr, work.forward.layer, {none, none}, most, data.slows);
  gather.add_end(data.gather_next, 0);
  end_ = data.after.layer * most + data.after.ends + gather.own + gather.each;
  const double updates = data.beside.at(most);
  const PerLayer& hides = data.beside_backward ? work.backward : work.forward;
  // Nothing hides the updates of the layer that is used first.
  end_ += std::max(std::min(updates, data.beside.at(1)), updates - hides.layer * most);
  slows_ = 0;
  turns_ = {};
  if (data.by_chunk && staged) {
    turns_ = {true, 0, reduce.own + reduce.each, data.own_last.at(most)};
    for (std::size_t link = 0; link < data.reduce.size(); ++link) {
      turns_.all += data.reduce[link].layer * most;
      slows_ += data.slows[link] * data.reduce[link].layer * most;
    }
    if (turns_.all > 0) slows_ /= turns_.all;
  } else {
    end_ += reduce.own + reduce.each + data.own_last.at(most);
  }
  on_first_ = data.on_first;
  on_last_ = data.on_last;
  host_ = {data.host.layer * most,
           data.host.layer * least,
           data.host.ends,
           work.host.layer * layers_ / c.stages,
           work.host_waiting.layer * layers_ / c.stages,
           work.host.ends};
  by_chunk_ = data.by_chunk;
  bytes_ = bytes(work, data, staged ? sent->bytes * static_cast<double>(c.microbatch) : 0, staged);
  if (!staged) return;
  sent_ = send(*sent, c);
}

// The last stage has as many layers as an even one, or as many fewer as make the slowest stage
// fastest.
const ClosedForm::Stages& ClosedForm::stages(int chunks) const {
  const double layer = work_->forward.layer + work_->backward.layer,
               ends = work_->forward.ends + work_->backward.ends;
  const double others = stages_count_ - 1;
  const auto slowest = [&](int last) {
    return std::max(std::ceil((layers_ - last) / others) * layer, last * layer + ends);
  };
  int last = static_cast<int>(layers_) / stages_count_;
  while (last >= chunks && slowest(last - 1) < slowest(last)) --last;
  const auto [found, is_new] = stages_.try_emplace(last);
  if (is_new) {
    const double mean = (layers_ - last) / others;
    found->second = {works(*work_, *data_, std::ceil(mean), {true, false}),
                     works(*work_, *data_, last, {false, true}), works(*work_, *data_, mean, {})};
  }
  return found->second;
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

double ClosedForm::price(const OrderTerms* order, int chunks, SearchCandidate& c) const {
  c.host = host(order, c);
  if (order == nullptr) {
    const double one = whole_.forward.at(1) + whole_.backward.at(1);
    c.seconds = (microbatches_ * one + end_) * stragglers_;
    fill(one_stage_[microbatches_ > 1 ? 1 : 0], false, 1, false, false, c);
    return 0;
  }
  const double parted = order->parted;
  const auto busy = [&](const Works& works) {
    double seconds = works.forward.at(chunks);
    if (parted < 1) seconds += (1 - parted) * works.backward.at(chunks);
    if (parted > 0) seconds += parted * (works.dgrad.at(chunks) + works.wgrad.at(chunks));
    return seconds;
  };
  const Stages& of = stages(chunks);
  const double most = busy(of.most), last = busy(of.last), usual = busy(of.usual);
  double bubble = 0;
  for (const OrderTerms::Way& way : order->ways) {
    bubble = std::max(bubble, way.forward * of.usual.forward.at(chunks) +
                                  way.backward * of.usual.backward.at(chunks) +
                                  way.dgrad * of.usual.dgrad.at(chunks) +
                                  way.wgrad * of.usual.wgrad.at(chunks));
  }
  // The last stage, which is slower, is part of it.
  bubble *= 1 + std::max(0.0, last - most) / (c.stages * usual);
  double step =
      microbatches_ * std::max(most, last) + bubble + end_ + 2 * (c.stages * chunks - 1) * sent_;
  if (turns_.any) step += turning(*order, chunks, most);
  if (request_.machine->stages_wait()) step += 2 * microbatches_ * chunks * sent_;
  c.seconds = step * stragglers_;
  fill(order->moments, order->holds_all, microbatches_ / order->microbatches, chunks == 1,
       order->assumed, c);
  return bubble * stragglers_;
}

namespace {

// Stages beyond which no search goes: orders of more take seconds to make.
constexpr int most_stages = 128;
// The largest power of two that is tried where none is said. A choice: larger ones leave few to
// fill a pipeline with, and products are whole long before.
constexpr std::int64_t most_microbatch = 64;

class Enumeration {
 public:
  // `one`: it ends with the first that is possible.
  Enumeration(const SearchRequest& request, const SearchSpace& space, PartTerms& terms,
              bool one = false)
      : one_(one),
        request_(request),
        space_(space),
        terms_(terms),
        stages_(request),
        together_(request, space),
        batch_(request.base.plan->request.batch),
        layers_(request.base.plan->graph->layers) {
    const ClusterParts& parts = request.machine->parts();
    for (const int part : stages_.parts())
      forms_.emplace_back(request, parts.all()[static_cast<std::size_t>(part)].cluster);
  }

  PricedCandidates run() {
    try {
      for (std::size_t i = 0; i < space_.inner.size(); ++i) {
        inner(static_cast<int>(i));
        if (enough()) break;
        report(i + 1);
      }
    } catch (const Stopped&) {
      found_.interrupted = true;
    }
    return std::move(found_);
  }

 private:
  bool enough() const { return one_ && !found_.all.empty(); }

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
      if (stages > 1 && space_.stages.empty()) break;
      if (stages > most_stages || stages > layers_) {
        found_.passed.insert(stages > layers_
                                 ? fmt::format("{} layers make {} stages at most", layers_, layers_)
                                 : fmt::format("more than {} stages are not tried", most_stages));
        break;
      }
      const int ways = request_.ranks / side.ranks / stages;
      if (ways % side.lent != 0 || (ways > 1 && space_.data.empty())) continue;
      found_.formed = true;
      if (batch_ % ways != 0) continue;
      found_.divides = true;
      SearchCandidate candidate;
      candidate.inner = i;
      candidate.stages = stages;
      candidate.split.ways = ways;
      if (enough()) return;
      if (ways == 1) {
        split(candidate);
        continue;
      }
      for (std::size_t d = 0; d < space_.data.size(); ++d) {
        candidate.data = static_cast<std::int16_t>(d);
        for (const int groups : groups_of(space_.data[d], ways / side.lent)) {
          candidate.split.groups = groups;
          split(candidate);
          if (enough()) return;
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
    const std::vector<std::int64_t> sizes = sizes_of(own);
    if (sizes.empty()) {
      found_.unsized.insert(own);
      return;
    }
    found_.sized = true;
    data_.clear();
    for (std::size_t part = 0; part < terms_.size(); ++part)
      data_.push_back(terms_.of(part).data(candidate.inner, candidate.data, candidate.split));
    const SearchProbes& probes = terms_.first().probes();
    for (const std::int64_t size : sizes) {
      candidate.microbatch = size;
      if (data_.front() == nullptr) {
        found_.refused += probes.policies();
        continue;
      }
      bool possible = false;
      for (int policy = 0; policy < probes.policies(); ++policy) {
        if (probes.fits_later(policy)) continue;
        candidate.policy = static_cast<std::int16_t>(policy);
        orders_of(candidate, own / size);
        possible = price(candidate) || possible;
      }
      if (enough()) return;
      if (!possible) break;  // a model that refuses these refuses larger ones
    }
  }

  std::vector<std::int64_t> sizes_of(std::int64_t own) const {
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
      orders_.push_back(enough ? terms_.first().order(static_cast<int>(s), of.stages, microbatches,
                                                      of.inner, of.policy)
                               : nullptr);
    }
  }

  bool price(SearchCandidate& candidate) {
    if (candidate.stages == 1) {
      candidate.stages_side = -1;
      if (!together_(candidate)) return true;  // left out, as the software cannot run it
    }
    const SentProbe* sent = candidate.stages > 1 ? terms_.first().sent(candidate.inner) : nullptr;
    for (std::size_t part = 0; part < forms_.size(); ++part) {
      const WorkTerms* work =
          terms_.of(part).work(candidate.inner, candidate.microbatch, candidate.policy);
      if (work == nullptr || (candidate.stages > 1 && sent == nullptr)) {
        ++found_.refused;
        return false;
      }
      forms_[part].take(*work, *data_[part], sent, candidate);
    }
    if (candidate.stages == 1) {
      price_on_parts(nullptr, 1, candidate);
      found_.all.push_back(candidate);
      return true;
    }
    for (std::size_t s = 0; s < orders_.size(); ++s) {
      const int chunks = space_.stages[s].chunks;
      if (chunks * candidate.stages > layers_) {
        pass_over(chunks * candidate.stages);
        continue;
      }
      if (orders_[s] == nullptr) {
        ++found_.refused;
        continue;
      }
      candidate.stages_side = static_cast<std::int16_t>(s);
      if (!together_(candidate)) continue;
      price_on_parts(orders_[s], chunks, candidate);
      found_.all.push_back(candidate);
    }
    return true;
  }

  void price_on_parts(const OrderTerms* order, int chunks, SearchCandidate& candidate) {
    times_.clear();
    for (const ClosedForm& form : forms_) {
      const double bubble = form.price(order, chunks, candidate);
      times_.push_back({candidate.seconds - bubble, bubble});
    }
    if (forms_.size() > 1) candidate.seconds = stages_.seconds(candidate.stages, chunks, times_);
  }

  // A schedule of more chunks than there are layers.
  void pass_over(std::int64_t layers) {
    if (found_.shallow++ == 0 || layers < found_.least_layers) found_.least_layers = layers;
  }

  const bool one_;
  const SearchRequest& request_;
  const SearchSpace& space_;
  PartTerms& terms_;
  UnevenStages stages_;
  std::vector<ClosedForm> forms_;          // of each part of the cluster
  std::vector<const DataTerms*> data_;     // likewise, of the candidate
  std::vector<UnevenStages::Time> times_;  // likewise
  const GoesTogether together_;
  const std::int64_t batch_;
  const int layers_;
  std::vector<const OrderTerms*> orders_;  // of each side of stages; null: none
  PricedCandidates found_;
  double told_ = seconds_now();
};

}  // namespace

PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  PartTerms& terms) {
  const double begun = cpu_seconds_now(), before = terms.spent();
  PricedCandidates found = Enumeration(request, space, terms).run();
  found.pricing_seconds = cpu_seconds_now() - begun - (terms.spent() - before);
  return found;
}

bool any_candidate(const SearchRequest& request) {
  const SearchSpace space = search_space(request);
  PartTerms terms(request, space);
  const PricedCandidates found = Enumeration(request, space, terms, /*one=*/true).run();
  if (found.interrupted) throw Stopped("interrupted");
  return !found.all.empty();
}

}  // namespace mw
