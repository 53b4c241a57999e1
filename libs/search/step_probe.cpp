// Reads off a plan of few layers what its buckets cost: what lasts, the update, and what is sent.
#include <algorithm>
#include <string_view>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/memory_timeline.h"
#include "meshwright/engine/rank_view.h"
#include "search/probe.h"

namespace mw {
namespace {

bool ends_step(SegmentKind kind) {
  return kind == SegmentKind::finish || kind == SegmentKind::gather;
}

class Reader {
 public:
  Reader(const Plan& plan, const ClusterMachine& machine)
      : program_(plan.programs.front()),
        rank_(program_, plan.mesh.coordinates(0), 0, machine.scratch()),
        device_(machine.of_rank(rank_, plan.ranks(), 1)) {
    found_.layers = program_.graph->layers;
    share_buckets();
  }

  StepProbe run() {
    for (const SegmentRun& run : program_.timeline) {
      const Segment& segment = program_.segments[run.segment];
      const bool end = ends_step(segment.kind), forward = segment.kind == SegmentKind::forward;
      if (forward && run.microbatch > 0) continue;
      for (const Instruction& i : segment.code) {
        if (end) {
          of_end(i);
        } else if (i.bucket >= 0) {
          of_microbatch(i, forward, run.microbatch > 0);
        }
      }
    }
    lasting();
    for (std::size_t link = 0; link < beside_.size(); ++link)
      found_.slows[link] = beside_[link] > 0 ? slowed_[link] / beside_[link] : 0;
    return found_;
  }

 private:
  // By bytes of a rank's parameters: of layers, and of the ends.
  void share_buckets() {
    const Graph& graph = *program_.graph;
    std::vector<int> layer(graph.values().size(), -1);  // of a value's last use
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs) layer[use.value] = op.layer;
    }
    const auto layers = static_cast<double>(std::max(1, graph.layers));
    PerLayer whole;
    const auto share = [](const PerLayer& bytes) {
      const double sum = bytes.ends + bytes.layer;
      return sum > 0 ? bytes * (1 / sum) : PerLayer{1, 0};
    };
    const auto each = [&](PerLayer one) { return PerLayer{one.ends, one.layer / layers}; };
    for (const Bucket& bucket : program_.buckets) {
      found_.by_chunk = found_.by_chunk || bucket.reduce_per_chunk;
      PerLayer bytes;
      for (const int p : bucket.parameters) {
        const ProgramParameter& parameter = program_.parameters[p];
        const int value = parameter.value;
        const bool inside = layer[value] >= 0 && layer[value] < graph.layers;
        (inside ? bytes.layer : bytes.ends) +=
            static_cast<double>(program_.local_bytes(program_.slots[parameter.slot], rank_.at()));
      }
      whole += bytes;
      shares_.push_back(each(share(bytes)));
    }
    all_ = each(share(whole));
  }
  const PerLayer& share_of(const Instruction& i) const {
    static constexpr PerLayer ends = {1, 0};
    return i.bucket >= 0 ? shares_[i.bucket] : ends;
  }

  void lasting() {
    for (std::size_t k = 0; k < program_.slots.size(); ++k) {
      const Slot& slot = program_.slots[k];
      if (!slot.persistent || slot.transient || slot.alias_of >= 0 || slot.bucket < 0) continue;
      (slot.memory == Memory::host ? found_.host : found_.lasting) +=
          shares_[slot.bucket] * static_cast<double>(rank_.bytes(static_cast<int>(k)));
    }
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int slot = program_.buckets[b].flat.arriving;
      if (slot >= 0) found_.arriving += shares_[b] * static_cast<double>(rank_.bytes(slot));
    }
    const MemoryTimeline line = memory_timeline(rank_);
    double before = 0;
    for (std::size_t k = 0; k < line.moments.size(); ++k) {
      const MemoryOfRun& moment = line.moments[k];
      const SegmentRun& run = program_.timeline[k];
      const SegmentKind kind = program_.segments[run.segment].kind;
      const auto highest = static_cast<double>(moment.sum);
      const auto after = static_cast<double>(moment.activations_after + moment.buffers_after);
      if (kind == SegmentKind::forward) {
        found_.in_forward = std::max(found_.in_forward, highest - after);
        if (run.microbatch == 0) found_.held = all_ * after;
      } else if (kind == SegmentKind::backward) {
        // What microbatches leave to the next one, in which forward comes first.
        // What it leaves, whole gradients or shards of sums, is counted apart.
        if (found_.by_chunk && run.microbatch == 0) found_.pending = all_ * after;
        const double left = found_.by_chunk ? std::max(0.0, after - before) : 0;
        found_.in_backward = std::max(found_.in_backward, highest - before - left);
      } else {
        found_.in_end = std::max(found_.in_end, highest);
      }
      before = after;
    }
    share_ends();
  }

  // By bytes of the ends' parameters on a rank.
  void share_ends() {
    const Graph& graph = *program_.graph;
    enum : unsigned { before = 1, inside = 2, behind = 4 };
    std::vector<unsigned> used(graph.values().size(), 0);
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs)
        used[use.value] |= op.layer < 0 ? before : op.layer < graph.layers ? inside : behind;
    }
    double first = 0, last = 0, all = 0;
    for (const ProgramParameter& parameter : program_.parameters) {
      const unsigned where = used[parameter.value];
      if ((where & inside) != 0) continue;
      const auto bytes =
          static_cast<double>(program_.local_bytes(program_.slots[parameter.slot], rank_.at()));
      all += bytes;
      first += (where & before) != 0 ? bytes : 0;
      last += (where & behind) != 0 ? bytes : 0;
    }
    if (all <= 0) return;
    found_.on_first = first / all;
    found_.on_last = last / all;
  }

  void of_end(const Instruction& i) {
    const Footprint made = footprint(rank_, i, Asks::work);
    const double seconds = device_->work(rank_, i, made).seconds;
    copy(i, made, found_.copies_end);
    if (i.bucket >= 0) {
      found_.update += share_of(i) * seconds;
    } else {
      // What all buckets have a part in; the rest is there whatever they hold.
      const double fixed =
          i.code == Code::totals ? device_->work(rank_, i, Footprint()).seconds : seconds;
      found_.update += PerLayer{fixed, 0};
      found_.update += all_ * (seconds - fixed);
    }
    for (const Transfer& transfer : made.transfers) {
      const TransferCost cost = device_->transfer(rank_, i, transfer);
      found_.end_moves[cost.link] += share_of(i) * cost.seconds;
    }
  }

  void of_microbatch(const Instruction& i, bool forward, bool last) {
    const Footprint made = footprint(rank_, i, Asks::work);
    (forward ? found_.forward
     : last  ? found_.last
             : found_.backward) += share_of(i) * device_->work(rank_, i, made).seconds;
    if (!last) copy(i, made, forward ? found_.copies_forward : found_.copies_backward);
    for (const Transfer& transfer : made.transfers) {
      const TransferCost cost = device_->transfer(rank_, i, transfer);
      const PerLayer seconds = share_of(i) * cost.seconds;
      PerLink& moves = forward                                            ? found_.gather_forward
                       : last                                             ? found_.last_moves
                       : std::string_view(transfer.phase) == "parameters" ? found_.gather_backward
                                                                          : found_.scatter;
      moves[cost.link] += seconds;
      beside_[cost.link] += seconds.layer;
      slowed_[cost.link] += cost.slows * seconds.layer;
    }
  }

  void copy(const Instruction& i, const Footprint& made, PerLayer& copies) {
    if (i.bucket < 0 || made.host_copy.bytes <= 0) return;
    copies += share_of(i) * device_->host_copy(static_cast<double>(made.host_copy.bytes));
  }

  const Program& program_;
  const RankView rank_;
  const std::unique_ptr<RankMachine> device_;
  std::vector<PerLayer> shares_;  // of each bucket: what of it is of the ends, and of each layer
  PerLayer all_;                  // ... of all buckets together
  ByLink beside_{}, slowed_{};    // seconds of transfers of layers, and what compute loses of them
  StepProbe found_;
};

}  // namespace

StepProbe SearchProbes::measure_step(const Plan& plan) const {
  throw_if_stopped();
  return Reader(plan, machine_).run();
}

}  // namespace mw
