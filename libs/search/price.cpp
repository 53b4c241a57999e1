// Prices a candidate of a search by the closed form.
#include "search/price.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "predict/network.h"

namespace mw {
namespace {

// The share of a layer's last backward beside which its reductions run: a guess, as each bucket
// waits for its last gradient, and buckets are small against a layer's parameters.
constexpr double beside_backward = 0.9;

// The part of the model that a stage has: its layers, and the model's ends.
struct StagePart {
  double layers = 0;
  bool first = false, last = false;  // has the model's first end, its last end
};

// Seconds of transfers that works of layers, which take `layer` each, do not hide: in each of
// `runs` runs all of the first transfer, and of the others what is longer than the work. Transfers
// of an end of the model are half before its work and half behind it.
double exposed(const PerLayer& moves, double layer, const StagePart& part, double runs) {
  const double longer = std::max(0.0, moves.layer - layer);
  const double end = std::max(0.0, moves.ends / 2 - layer);
  return part.layers * longer + runs * (moves.layer - longer) + (part.first ? moves.ends / 2 : 0) +
         (part.last ? end : 0);
}

// Seconds of a microbatch on a stage.
struct StageSeconds {
  double forward = 0, backward = 0;
  double sum() const { return forward + backward; }
};

class StepTimes {
 public:
  StepTimes(const SearchRequest& request, const Cluster& cluster, const CandidateTerms& of,
            const SearchCandidate& candidate)
      : request_(request),
        cluster_(cluster),
        of_(of),
        work_(*of.work),
        data_(*of.data),
        candidate_(candidate),
        layers_(request.base->graph->layers),
        stages_(candidate.stages),
        microbatches_(candidate.microbatches(request.base->request.batch)) {}

  // Seconds of the step, and those of them that are the bubble.
  std::pair<double, double> run() const {
    if (of_.order == nullptr) {
      const StageSeconds all = stage({layers_, true, true});
      return {microbatches_ * all.sum() + end(all.sum()), 0};
    }
    const double behind = last_layers(), others = stages_ - 1;
    const StageSeconds most = stage({std::ceil((layers_ - behind) / others), true, false});
    const StageSeconds last = stage({behind, false, true});
    const StageSeconds usual = stage({(layers_ - behind) / others, false, false});
    const double weights = usual.backward * work_.weights();
    const WorkCounts seconds = {usual.forward, usual.backward, usual.backward - weights, weights};
    double bubble = 0;
    for (const WorkCounts& way : of_.order->ways)
      bubble = std::max(bubble, std::inner_product(way.begin(), way.end(), seconds.begin(), 0.0));
    // A last stage that is slower makes the bubble longer.
    bubble *= 1 + std::max(0.0, last.sum() - most.sum()) / (stages_ * usual.sum());
    const double slowest = std::max(most.sum(), last.sum());
    double sends = 2 * (stages_ * of_.chunks - 1);
    if (request_.machine->stages_wait()) sends += 2 * microbatches_ * of_.chunks;
    return {microbatches_ * slowest + bubble + end(most.sum()) + sends * send(), bubble};
  }

 private:
  StageSeconds stage(const StagePart& part) const {
    const auto seconds = [&](const PerLayer& work, const PerLayer& own) {
      return work.layer * part.layers + (part.last ? work.ends : 0) + own.at(part.layers);
    };
    return {seconds(work_.forward, data_.own_forward) +
                exposed(data_.moved_forward, work_.forward.layer, part, of_.chunks),
            seconds(work_.backward, data_.own_backward) +
                exposed(data_.moved_backward, work_.backward.layer, part, of_.chunks)};
  }

  // Layers of the last stage: as many as an even one has, or as many fewer as make the slowest
  // stage fastest.
  double last_layers() const {
    const double layer = work_.forward.layer + work_.backward.layer,
                 ends = work_.forward.ends + work_.backward.ends;
    const auto slowest = [&](double last) {
      return std::max(std::ceil((layers_ - last) / (stages_ - 1)) * layer, last * layer + ends);
    };
    double last = std::floor(layers_ / stages_);
    while (last >= of_.chunks && slowest(last - 1) < slowest(last)) --last;
    return last;
  }

  // Seconds that follow the microbatches; `busy`: seconds of one microbatch on the busiest stage.
  double end(double busy) const {
    const StagePart part{std::ceil(layers_ / stages_), true, stages_ == 1};
    const double updates = data_.updates.at(part.layers);
    const double hides =
        (data_.updates_beside_backward ? work_.backward : work_.forward).layer * part.layers;
    // Nothing hides the updates of the layer that is used first.
    const double seconds = data_.after.at(part.layers) +
                           exposed(data_.gather_next, work_.forward.layer, part, 1) +
                           std::max(std::min(updates, data_.updates.at(1)), updates - hides);
    const double last = exposed(data_.reduce, beside_backward * work_.backward.layer, part, 1);
    const double own = data_.own_last.at(part.layers);
    if (!data_.by_chunk || of_.order == nullptr) return seconds + last + own;
    // Gradients are reduced whenever a stage turns to another chunk. The last reductions are waited
    // for; of each earlier one, what the works of a turn do not hide.
    const bool again = of_.order->turns > of_.chunks;  // more microbatches make more turns
    const double turns = of_.order->turns * (again ? microbatches_ / of_.order->microbatches : 1);
    const double late =
        data_.reduce.layer * part.layers / of_.chunks - microbatches_ * busy / turns;
    return seconds + last / of_.chunks + (turns - 1) * std::max(0.0, late) +
           turns * own / of_.chunks;
  }

  double send() const {
    const SentTerms& sent = *of_.sent;
    const double bytes = sent.bytes * static_cast<double>(candidate_.microbatch);
    const int next = request_.ranks / candidate_.stages;
    if (!request_.machine->stack().scattered_sends || !sent.whole || sent.ranks < 2)
      return send_seconds(cluster_, bytes, 0, next);
    std::vector<int> ranks;
    for (int r = 0; r < sent.ranks; ++r) ranks.push_back(r);
    return send_seconds(cluster_, bytes / sent.ranks, 0, next) +
           collective_seconds(cluster_, Collective::all_gather, bytes, place(cluster_, ranks), {});
  }

  const SearchRequest& request_;
  const Cluster& cluster_;
  const CandidateTerms& of_;
  const WorkTerms& work_;
  const DataTerms& data_;
  const SearchCandidate& candidate_;
  const double layers_, stages_, microbatches_;
};

}  // namespace

double price_time(const SearchRequest& request, const Cluster& cluster, const CandidateTerms& of,
                  SearchCandidate& candidate) {
  const auto [step, bubble] = StepTimes(request, cluster, of, candidate).run();
  const double stragglers = request.machine->stragglers(request.ranks);
  candidate.seconds = step * stragglers;
  return bubble * stragglers;
}

// Two stages are weighed: one that has most layers and holds as many microbatches as any does, and
// the last one.
void price_memory(const SearchRequest& request, const CandidateTerms& of,
                  SearchCandidate& candidate) {
  const WorkTerms& work = *of.work;
  const DataTerms& data = *of.data;
  const double layers = request.base->graph->layers, mean = layers / candidate.stages;
  const bool staged = of.order != nullptr, folded = !staged || of.order->folded;
  static const std::vector<OrderTerms::Held> one = {{1, 0}};
  const double more =
      staged && of.order->holds_all
          ? candidate.microbatches(request.base->request.batch) / of.order->microbatches
          : 1;
  const double sent = staged ? of.sent->bytes * static_cast<double>(candidate.microbatch) : 0;
  // Where gradients are reduced by chunk, those of one chunk and of the one before are held.
  const PerLayer held_data =
      data.by_chunk ? data.pending * std::min(1.0, 2.0 / of.chunks) : data.held;
  const auto weigh = [&](const std::vector<OrderTerms::Held>& held, const StagePart& part) {
    // A stage with both ends of the model has one copy of the parameters that the ends share.
    const double ends =
        std::min(1.0, (part.first ? data.on_first : 0) + (part.last ? data.on_last : 0));
    double acts = 0, hosts = 0, loss = 0;
    for (const OrderTerms::Held& moment : staged ? of.order->loss : one)
      loss = std::max(loss, moment.kept * work.held.ends + moment.waiting * work.waiting.ends);
    for (const OrderTerms::Held& moment : held) {
      acts = std::max(
          acts, moment.kept * work.held.layer * mean + moment.waiting * work.waiting.layer * mean);
      hosts = std::max(hosts,
                       moment.kept * (work.host.layer * mean + (part.first ? work.host.ends : 0)));
    }
    if (part.last) acts += loss;
    const double lasting = (data.lasting.layer + held_data.layer) * part.layers +
                           (data.lasting.ends + held_data.ends) * ends;
    const double beside = std::max(work.in_layer, part.last ? work.in_loss : 0) + data.in_works;
    candidate.bytes =
        std::max(candidate.bytes, lasting + std::max(data.in_end, more * acts + beside + 2 * sent));
    return data.host.layer * part.layers + more * hosts;
  };
  candidate.bytes = 0;
  const double first = weigh(staged ? of.order->most : one, {std::ceil(mean), true, folded});
  const double last = staged ? weigh(of.order->last, {std::floor(mean), folded, true}) : first;
  candidate.bytes += static_cast<double>(request.machine->kept_by_libraries());
  // Adjacent ranks share a node: those of one stage, or of several. The first stage holds most and
  // the last least for its layers; what stages between them hold is taken to lie on a line.
  const double on_node = std::min(request.machine->host().ranks, request.ranks);
  const double stages = std::clamp(on_node * candidate.stages / request.ranks, 1.0,
                                   static_cast<double>(candidate.stages));
  const double beyond = (stages - 1) / 2 / std::max(1, candidate.stages - 1);
  const double ends = folded                      ? 1
                      : stages < candidate.stages ? std::max(data.on_first, data.on_last)
                                                  : data.on_first + data.on_last;
  candidate.host = on_node * (std::max(first, last) - beyond * std::abs(first - last) +
                              data.host.ends * ends / stages);
}

}  // namespace mw
