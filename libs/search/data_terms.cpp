// Reads off a plan of few layers what its step costs apart from the work of its microbatches: what
// its buckets hold, send and compute.
#include <algorithm>

#include "meshwright/engine/footprint.h"
#include "meshwright/engine/forecast.h"
#include "search/terms.h"

namespace mw {
namespace {

class Reader {
 public:
  Reader(const Plan& plan, const ClusterMachine& machine)
      : program_(plan.programs.front()),
        rank_(program_, plan.mesh.coordinates(0), 0, machine.scratch()),
        device_(machine.of_rank(rank_, plan.ranks(), 1)) {}

  DataTerms run() {
    share_buckets();
    for (const SegmentRun& run : program_.timeline) {
      const Segment& segment = program_.segments[run.segment];
      const bool end = segment.kind == SegmentKind::finish || segment.kind == SegmentKind::gather;
      const bool forward = segment.kind == SegmentKind::forward;
      if (forward && run.microbatch > 0) continue;
      for (const Instruction& i : segment.code) {
        if (end || completes_update(program_, i)) {  // a late update belongs to the step before
          of_end(i);
        } else if (i.has_bucket()) {
          of_microbatch(i, forward, run.microbatch > 0);
        }
      }
    }
    terms_.reduce = terms_.reduce.less(terms_.moved_backward);
    // A gather waits for its copy from the host, but gradients are sent while copies come.
    terms_.moved_backward += (copied_backward_ + terms_.moved_forward).less(terms_.moved_backward);
    terms_.moved_forward += copied_forward_;
    terms_.own_last = terms_.own_last.less(terms_.own_backward);
    // Copies go beside the transfers, so only what is longer counts.
    terms_.after += moved_at_end_ + copied_at_end_.less(moved_at_end_);
    // Where gradients are kept as shards and yet no microbatch reduces any, they are reduced when a
    // stage turns to another chunk.
    terms_.by_chunk = !reduces_ && std::ranges::any_of(program_.buckets, [](const Bucket& b) {
      return b.sharded_state >= ShardedState::gradients;
    });
    weigh();
    return terms_;
  }

 private:
  // Shares each bucket's costs out by bytes of a rank's parameters: to the layers, and to the ends.
  void share_buckets() {
    const Graph& graph = *program_.graph;
    enum : unsigned { before = 1, inside = 2, behind = 4 };
    std::vector<unsigned> used(graph.values().size(), 0);
    for (const Op& op : graph.ops()) {
      for (const Use& use : op.inputs)
        used[use.value] |= op.layer < 0 ? before : op.layer < graph.layers ? inside : behind;
    }
    const auto share = [&](const PerLayer& bytes) {
      const double sum = bytes.ends + bytes.layer;
      return sum > 0 ? PerLayer{bytes.ends / sum, bytes.layer / sum / std::max(1, graph.layers)}
                     : PerLayer{1, 0};
    };
    PerLayer whole;
    double first = 0, last = 0;
    for (const Bucket& bucket : program_.buckets) {
      PerLayer own;
      for (const int p : bucket.parameters) {
        const ProgramParameter& parameter = program_.parameters[p];
        const unsigned where = used[parameter.value];
        const auto bytes =
            static_cast<double>(program_.local_bytes(program_.slots[parameter.slot], rank_.at()));
        ((where & inside) != 0 ? own.layer : own.ends) += bytes;
        if ((where & inside) != 0) continue;
        first += (where & before) != 0 ? bytes : 0;
        last += (where & behind) != 0 ? bytes : 0;
      }
      whole += own;
      shares_.push_back(share(own));
    }
    all_ = share(whole);
    if (whole.ends <= 0) return;
    terms_.on_first = first / whole.ends;
    terms_.on_last = last / whole.ends;
  }

  void weigh() {
    for (std::size_t k = 0; k < program_.slots.size(); ++k) {
      const Slot& slot = program_.slots[k];
      if (!slot.persistent || slot.transient || slot.alias_of >= 0 || !slot.is_flat()) continue;
      (slot.memory == Memory::host ? terms_.host : terms_.lasting) +=
          shares_[slot.bucket] * static_cast<double>(rank_.bytes(static_cast<int>(k)));
    }
    const MemoryTimeline line = memory_timeline(rank_);
    double before = 0;
    for (std::size_t k = 0; k < line.moments.size(); ++k) {
      const MemoryOfRun& one = line.moments[k];
      const SegmentRun& run = program_.timeline[k];
      const SegmentKind kind = program_.segments[run.segment].kind;
      const auto most = static_cast<double>(one.sum);
      const auto after = static_cast<double>(one.activations_after + one.buffers_after);
      if (kind == SegmentKind::forward) {
        terms_.in_works = std::max(terms_.in_works, most - after);
        if (run.microbatch == 0) terms_.held = all_ * after;
      } else if (kind == SegmentKind::backward) {
        terms_.in_works = std::max(terms_.in_works, most - std::max(before, after));
        if (run.microbatch == 0) terms_.pending = all_ * after;
      } else {
        terms_.in_end = std::max(terms_.in_end, most);
      }
      before = after;
    }
  }

  void of_end(const Instruction& i) {
    const Footprint made = footprint(rank_, i, FootprintParts::work);
    const double seconds = device_->work(rank_, i, made).seconds;
    if (made.on_host >= 0 && i.has_bucket() && hides_update(program_.buckets[i.bucket])) {
      terms_.updates += shares_[i.bucket] * seconds;
      terms_.updates_beside_backward = !program_.update_needs_totals;
    } else {  // work that serves no bucket is shared by all buckets
      terms_.after += (i.has_bucket() ? shares_[i.bucket] : all_) * seconds;
    }
    if (i.has_bucket() && !completes_update(program_, i)) copied_at_end_ += copied(i, made);
    PerLayer& moves = outlasts_step(program_, i) ? terms_.gather_next : moved_at_end_;
    for (const Transfer& transfer : made.transfers)
      moves += share_of(i) * device_->transfer(rank_, i, transfer).seconds;
  }

  // Whether the bucket's update in host memory is made beside what the device computes.
  bool hides_update(const Bucket& bucket) const {
    return bucket.update_overlaps_forward ||
           (bucket.update_overlaps && !program_.update_needs_totals);
  }

  void of_microbatch(const Instruction& i, bool forward, bool last) {
    const Footprint made = footprint(rank_, i, FootprintParts::work);
    PerLayer& own = forward ? terms_.own_forward : last ? terms_.own_last : terms_.own_backward;
    own += share_of(i) * device_->work(rank_, i, made).seconds;
    PerLayer& moved = forward ? terms_.moved_forward : last ? terms_.reduce : terms_.moved_backward;
    if (!last) (forward ? copied_forward_ : copied_backward_) += copied(i, made);
    for (const Transfer& transfer : made.transfers) {
      const TransferCost cost = device_->transfer(rank_, i, transfer);
      moved += share_of(i) * cost.seconds;
      own += share_of(i) * (cost.slows * cost.seconds);
      reduces_ = reduces_ || (!forward && !last && transfer.op != Collective::all_gather);
    }
  }

  PerLayer copied(const Instruction& i, const Footprint& made) const {
    if (made.host_copy.bytes <= 0) return {};
    return share_of(i) * device_->host_copy(static_cast<double>(made.host_copy.bytes));
  }

  const PerLayer& share_of(const Instruction& i) const {
    static constexpr PerLayer ends = {1, 0};
    return i.has_bucket() ? shares_[i.bucket] : ends;
  }

  const Program& program_;
  const RankView rank_;
  const std::unique_ptr<RankMachine> device_;
  std::vector<PerLayer> shares_;  // by bucket: shares of its bytes of the ends, and of each layer
  PerLayer all_;                  // these shares for all buckets together
  // Seconds of transfers and of copies to and from host memory, at the step's end and in a
  // microbatch.
  PerLayer moved_at_end_, copied_at_end_, copied_forward_, copied_backward_;
  bool reduces_ = false;  // each microbatch reduces gradients
  DataTerms terms_;
};

}  // namespace

DataTerms data_terms(const Plan& plan, const ClusterMachine& machine) {
  return Reader(plan, machine).run();
}

}  // namespace mw
