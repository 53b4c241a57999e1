// Reads off a plan of few layers what its buckets cost: what lasts, the update, and what is sent,
// each by the ranks over which it is in parts.
#include <algorithm>
#include <string_view>

#include "predict/search_probe.h"
#include "program/footprint.h"
#include "program/memory_timeline.h"
#include "program/rank_view.h"

namespace mw {
namespace {

std::uint32_t bits_of(const std::vector<int>& atoms) {
  std::uint32_t bits = 0;
  for (const int atom : atoms) bits |= 1u << atom;
  return bits;
}

// The atoms over which a flat slot is in parts.
std::uint32_t parts_of(const Slot& slot) {
  std::uint32_t bits = 0;
  for (std::size_t a = 0; a < slot.layout.size(); ++a) {
    if (slot.layout[a].is_shard()) bits |= 1u << a;
  }
  return bits;
}

bool ends_step(SegmentKind kind) {
  return kind == SegmentKind::finish || kind == SegmentKind::gather;
}

class Reader {
 public:
  Reader(const Plan& plan, const ClusterMachine& machine)
      : program_(plan.programs.front()),
        rank_(program_, plan.mesh.coordinates(0), 0, machine.scratch()),
        device_(machine.of_rank(rank_, plan.ranks(), 1)),
        gathers_hidden_(machine.stack().update_gathers_hidden) {
    for (const Atom& atom : plan.mesh.atoms()) found_.ways.push_back(atom.ways);
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
    return std::move(found_);
  }

 private:
  // By elements of parameters: of layers, and of the ends.
  void share_buckets() {
    const Graph& graph = *program_.graph;
    std::vector<int> layer(graph.values().size(), -1);  // of a value's last use
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs) layer[use.value] = op.layer;
    }
    const auto layers = static_cast<double>(std::max(1, graph.layers));
    PerLayer whole;
    const auto share = [](const PerLayer& elements) {
      const double sum = elements.ends + elements.layer;
      return sum > 0 ? elements * (1 / sum) : PerLayer{1, 0};
    };
    const auto each = [&](PerLayer one) { return PerLayer{one.ends, one.layer / layers}; };
    for (const Bucket& bucket : program_.buckets) {
      found_.by_chunk = found_.by_chunk || bucket.by_chunk;
      PerLayer elements;
      for (const int p : bucket.parameters) {
        const int value = program_.parameters[p].value;
        const bool inside = layer[value] >= 0 && layer[value] < graph.layers;
        (inside ? elements.layer : elements.ends) += static_cast<double>(graph.count(value));
      }
      whole += elements;
      shares_.push_back(each(share(elements)));
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
      InParts& bytes = slot.memory == Memory::host ? found_.host : found_.lasting;
      bytes[parts_of(slot)] +=
          shares_[slot.bucket] * static_cast<double>(rank_.bytes(static_cast<int>(k)));
    }
    const MemoryTimeline line = memory_timeline(rank_);
    for (std::size_t k = 0; k < line.moments.size(); ++k) {
      const MemoryOfRun& moment = line.moments[k];
      found_.working = std::max(found_.working, static_cast<double>(moment.sum));
      const SegmentRun& run = program_.timeline[k];
      if (run.microbatch == 0 && program_.segments[run.segment].kind == SegmentKind::forward)
        found_.held = all_ * static_cast<double>(moment.activations_after + moment.buffers_after);
      // What microbatches leave to the next one, in which forward comes first.
      if (run.microbatch == 0 && program_.segments[run.segment].kind == SegmentKind::backward &&
          found_.by_chunk)
        found_.pending =
            all_ * static_cast<double>(moment.activations_after + moment.buffers_after);
    }
  }

  void of_end(const Instruction& i) {
    Footprint made = footprint(rank_, i, Asks::work);
    const double seconds = device_->work(rank_, i, made).seconds;
    copy(i, made, found_.copies_end);
    if (i.bucket >= 0) {
      found_.update[bits_of(program_.buckets[i.bucket].shard_atoms)] += share_of(i) * seconds;
    } else {
      // What all buckets have a part in; the rest is there whatever they hold.
      std::uint32_t parts = 0;
      for (const Bucket& bucket : program_.buckets) parts |= bits_of(bucket.shard_atoms);
      const Footprint nothing;
      const double fixed =
          i.code == Code::totals ? device_->work(rank_, i, nothing).seconds : seconds;
      found_.update[0] += PerLayer{fixed, 0};
      found_.update[parts] += all_ * (seconds - fixed);
    }
    carry(i, made, found_.end_moves, true, false);
  }

  void of_microbatch(const Instruction& i, bool forward, bool last) {
    const Footprint made = footprint(rank_, i, Asks::work);
    InParts& work = forward ? found_.forward : last ? found_.last : found_.backward;
    work[bits_of(program_.buckets[i.bucket].shard_atoms)] +=
        share_of(i) * device_->work(rank_, i, made).seconds;
    if (!last) copy(i, made, forward ? found_.copies_forward : found_.copies_backward);
    carry(i, made,
          forward ? found_.forward_moves
          : last  ? found_.last_moves
                  : found_.backward_moves,
          false, !forward);
  }

  void copy(const Instruction& i, const Footprint& made, InParts& copies) {
    if (i.bucket < 0 || made.host_copy.bytes <= 0) return;
    copies[bits_of(program_.buckets[i.bucket].shard_atoms)] +=
        share_of(i) * device_->host_copy(static_cast<double>(made.host_copy.bytes));
  }

  void carry(const Instruction& i, const Footprint& made, CarriedCounts& moves, bool end,
             bool backward) {
    for (const Transfer& transfer : made.transfers) {
      if (transfer.ways < 2) continue;
      Carried carried{transfer.op, static_cast<double>(transfer.payload),
                      bits_of(transfer.set.atoms)};
      // A shard that goes to other copies of it; what goes among those that have the shards is
      // whole on one side.
      if (i.bucket >= 0 && !i.inputs.empty()) {
        const std::uint32_t parts = parts_of(program_.slots[i.inputs[0]]);
        if ((parts & carried.ranks) == 0) carried.parts = parts;
      }
      const bool parameters = std::string_view(transfer.phase) == "parameters";
      carried.gather = parameters;
      carried.backward_gather = backward && parameters;
      carried.hidden = i.bucket >= 0 && end && parameters && gathers_hidden_ &&
                       program_.buckets[i.bucket].sharded_state != ShardedState::parameters;
      moves[carried] += share_of(i);
    }
  }

  const Program& program_;
  const RankView rank_;
  const std::unique_ptr<RankMachine> device_;
  const bool gathers_hidden_;
  std::vector<PerLayer> shares_;  // of each bucket: what of it is of the ends, and of each layer
  PerLayer all_;                  // ... of all buckets together
  StepProbe found_;
};

}  // namespace

StepProbe SearchProbes::measure_step(const Plan& plan) const {
  throw_if_stopped();
  return Reader(plan, machine_).run();
}

}  // namespace mw
