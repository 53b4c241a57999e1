// Reads off a plan of few layers what its buckets cost: what lasts, the update, and what is sent,
// each by the ranks over which it is in parts.
#include <algorithm>
#include <string_view>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/memory_timeline.h"
#include "meshwright/engine/rank_view.h"
#include "search/probe.h"

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
    return std::move(found_);
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
    found_.by_chunk = by_chunk();
  }
  // Whether gradients are kept as shards and yet no segment reduces them each time that it runs: only
  // copies for some runs do.
  bool by_chunk() const {
    const auto shards = [](const Bucket& b) { return b.sharded_state >= ShardedState::gradients; };
    const auto reduces = [&](const Instruction& i) {
      return i.code == Code::start && i.bucket >= 0 && shards(program_.buckets[i.bucket]) &&
             i.pending == program_.buckets[i.bucket].flat.reduction;
    };
    const auto& buckets = program_.buckets;
    return std::any_of(buckets.begin(), buckets.end(), shards) &&
           std::none_of(program_.segments.begin(), program_.segments.end(), [&](const Segment& s) {
             return s.copy_of < 0 && std::any_of(s.code.begin(), s.code.end(), reduces);
           });
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
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const int slot = program_.buckets[b].flat.arriving;
      if (slot < 0) continue;
      found_.arriving[parts_of(program_.slots[slot])] +=
          shares_[b] * static_cast<double>(rank_.bytes(slot));
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
