// Reads off a plan of few layers what a microbatch takes and holds: its works, what of them may
// wait, and where in a layer its transfers begin.
#include <algorithm>
#include <limits>
#include <set>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/rank_view.h"
#include "predict/price.h"
#include "search/probe.h"

namespace mw {
namespace {

// What the pricer kept of one run of a segment.
class Run {
 public:
  Run(const Program& program, const Segment& segment, const std::vector<Pricer::Kept>& kept,
      std::size_t from)
      : program_(program), segment_(segment), kept_(kept), from_(from) {}

  // Seconds of all that `takes` takes; where the rank itself works or waits.
  template <class Takes>
  double seconds(InstructionTime::Kind kind, const Takes& takes) const {
    double sum = 0;
    each([&](const Pricer::Kept& one, const Instruction& i) {
      if (one.time.kind == kind && takes(i)) sum += one.time.end - one.time.start;
    });
    return sum;
  }

  // In the second layer that it comes to, as the first is not like the others.
  ByLink free() const {
    std::vector<std::pair<int, double>> layers;  // and when they begin
    each([&](const Pricer::Kept& one, const Instruction& i) {
      if (one.time.kind != InstructionTime::Kind::own || i.code != Code::compute || i.op < 0)
        return;
      const int layer = program_.graph->ops()[i.op].layer;
      const auto same = [&](const auto& known) { return known.first == layer; };
      if (layer >= 0 && layer < program_.graph->layers &&
          std::none_of(layers.begin(), layers.end(), same))
        layers.emplace_back(layer, one.time.start);
    });
    constexpr double none = std::numeric_limits<double>::infinity();
    ByLink free = {none, none};
    if (layers.empty()) return free;
    const std::size_t n = std::min<std::size_t>(1, layers.size() - 1);
    const double begin = layers[n].second;
    const double end = n + 1 < layers.size() ? layers[n + 1].second : none;
    each([&](const Pricer::Kept& one, const Instruction& i) {
      if (one.time.kind != InstructionTime::Kind::transfer || between_lasting(program_, i)) return;
      if (one.link < 0 || one.link > 1 || one.time.start < begin || one.time.start >= end) return;
      free[one.link] = std::min(free[one.link], one.time.start - begin);
    });
    return free;
  }

 private:
  template <class Visit>
  void each(const Visit& visit) const {
    for (std::size_t k = from_; k < kept_.size(); ++k) {
      if (kept_[k].time.index >= 0) visit(kept_[k], segment_.code[kept_[k].time.index]);
    }
  }

  const Program& program_;
  const Segment& segment_;
  const std::vector<Pricer::Kept>& kept_;
  const std::size_t from_;
};

bool is_wgrad(const Instruction& i) {
  return i.code == Code::compute && i.op >= 0 && i.piece == Piece::wgrad;
}

// The gradients of weights that a collective goes on beside: where a backward is parted they are
// among I's works, and the others among W's.
std::set<const Instruction*> beside_collectives(const Program& program, const Segment& backward) {
  std::set<const Instruction*> beside;
  std::set<int> underway;
  for (const Instruction& i : backward.code) {
    if (is_wgrad(i) && !underway.empty()) beside.insert(&i);
    if (i.pending < 0 || between_lasting(program, i) || i.move.peer >= 0) continue;
    if (i.code == Code::start) underway.insert(i.pending);
    if (i.code == Code::wait) underway.erase(i.pending);
  }
  return beside;
}

// Bytes of what gradients of weights are made of: on the device, and in host memory. The gradients
// that they read lie in storages of their own where they wait, though one that is added to in place
// serves many layers here. What goes to host memory waits there alone.
struct Waiting {
  double device = 0, host = 0;
  double dgrad = 0;  // in host memory, that the others read
};
Waiting waiting(const RankView& rank, const Segment& backward) {
  const Program& program = rank.program();
  Waiting found;
  double& bytes = found.device;
  std::set<int> read, others;
  const auto beside = beside_collectives(program, backward);
  for (const Instruction& i : backward.code) {
    if (i.code == Code::copy) continue;
    if (!is_wgrad(i) || beside.contains(&i)) {
      for_each_slot(i, [&](int slot) { others.insert(program.root(slot)); });
      continue;
    }
    for (const int slot : i.grad_outputs)
      if (slot >= 0) bytes += static_cast<double>(rank.bytes(slot));
    for (const auto* list : {&i.inputs, &i.saved}) {
      for (const int slot : *list) {
        if (slot < 0) continue;
        const int root = program.root(slot);
        if (!program.slots[root].persistent && read.insert(root).second)
          bytes += static_cast<double>(rank.bytes(root));
      }
    }
  }
  Footprint made;
  for (const Instruction& i : backward.code) {
    if (i.code != Code::copy || between_lasting(program, i)) continue;
    footprint(rank, i, Asks::work, made);
    const HostCopy& copy = made.host_copy;
    if (copy.bytes <= 0 || copy.device < 0) continue;
    const int root = program.root(copy.device);
    if (others.contains(root)) found.dgrad += static_cast<double>(copy.bytes);
    if (!read.contains(root)) continue;
    found.host += static_cast<double>(copy.bytes);
    found.device -= static_cast<double>(rank.bytes(root));
  }
  return found;
}

void measure_time(const RankView& rank, const Machine& machine, int ranks, MicrobatchProbe& found) {
  using Kind = InstructionTime::Kind;
  const Program& program = rank.program();
  Pricer pricer(rank, machine, ranks, 1);
  pricer.keep_times();
  for (const SegmentRun& what : program.timeline) {
    if (what.microbatch > 0) break;
    const Segment& segment = program.segments[what.segment];
    const double before = pricer.clock();
    const std::size_t from = pricer.kept().size();
    pricer.play(what);
    if (what.microbatch != 0) continue;
    const Run run(program, segment, pricer.kept(), from);
    const double copies = run.seconds(Kind::copy_wait, [](const Instruction&) { return true; });
    const double seconds = pricer.clock() - before - copies;
    if (segment.kind == SegmentKind::forward) {
      found.forward += seconds;
      found.forward_copies += copies;
      found.forward_free = run.free();
      continue;
    }
    found.backward += seconds;
    found.backward_copies += copies;
    const auto own = [&](const Instruction& i) { return !between_lasting(program, i); };
    found.fetched += run.seconds(Kind::copy, own);
    found.backward_free = run.free();
    const auto beside_them = beside_collectives(program, segment);
    found.weights += run.seconds(
        Kind::own, [&](const Instruction& i) { return is_wgrad(i) && !beside_them.contains(&i); });
    if (!beside_them.empty()) continue;  // they hide as much where the backward is parted
    const double beside = run.seconds(Kind::transfer, own) - run.seconds(Kind::wait, own);
    const double slowed =
        run.seconds(Kind::own, [](const Instruction& i) { return i.code == Code::wait; });
    found.hidden += std::max(0.0, beside - slowed);
  }
}

// The first instruction that computes in a layer that `takes` takes; behind all: none does.
template <class Takes>
std::size_t first_in(const Program& program, const Segment& segment, const Takes& takes) {
  const auto found =
      std::find_if(segment.code.begin(), segment.code.end(), [&](const Instruction& i) {
        return i.code == Code::compute && i.op >= 0 && takes(program.graph->ops()[i.op].layer);
      });
  return static_cast<std::size_t>(found - segment.code.begin());
}

Segment part_of(const Segment& segment, std::size_t begin, std::size_t end) {
  Segment part;
  part.kind = segment.kind;
  const auto at = [&](std::size_t place) {
    return segment.code.begin() + static_cast<std::ptrdiff_t>(place);
  };
  part.code.assign(at(begin), at(end));
  return part;
}

// What the first microbatch holds.
MicrobatchProbe memory_of(const RankView& rank) {
  const Program& program = rank.program();
  MicrobatchProbe found;
  LiveSet live;
  double level = 0, host = 0;
  const int layers = program.graph->layers;
  // The highest of a segment, and then what it leaves.
  const auto play = [&](const Segment& segment) {
    const Effect effect = walk(rank, live, segment);
    const double highest = level + static_cast<double>(effect.highest_sum);
    level += static_cast<double>(effect.after.activations + effect.after.buffers);
    host += static_cast<double>(effect.after.host);
    return highest;
  };
  for (const SegmentRun& run : program.timeline) {
    const Segment& segment = program.segments[run.segment];
    if (run.microbatch != 0) {
      continue;
    } else if (segment.kind == SegmentKind::forward) {
      const std::size_t loss = first_in(program, segment, [&](int l) { return l >= layers; });
      const double highest = play(part_of(segment, 0, loss));
      found.before_loss = level;
      found.in_forward = highest - level;
      const double in_loss = play(part_of(segment, loss, segment.code.size()));
      found.in_loss = in_loss - level;
      found.held = level;
      found.host = host;
    } else {
      const auto inside = [&](int l) { return l >= 0 && l < layers; };
      const std::size_t any = first_in(program, segment, inside);
      const std::size_t last = first_in(program, segment, [](int l) { return l == 0; });
      found.in_loss_back = play(part_of(segment, 0, any)) - found.held;
      play(part_of(segment, any, last));
      found.layer = play(part_of(segment, last, segment.code.size()));
      const Waiting waits = waiting(rank, segment);
      found.waiting = waits.device;
      found.host_waiting = waits.host;
      found.host_dgrad = waits.dgrad;
    }
  }
  return found;
}

constexpr double MicrobatchProbe::*byte_counts[] = {
    &MicrobatchProbe::in_forward, &MicrobatchProbe::in_loss,     &MicrobatchProbe::in_loss_back,
    &MicrobatchProbe::layer,      &MicrobatchProbe::before_loss, &MicrobatchProbe::held,
    &MicrobatchProbe::waiting,    &MicrobatchProbe::host,        &MicrobatchProbe::host_waiting,
    &MicrobatchProbe::host_dgrad};

}  // namespace

MicrobatchProbe SearchProbes::measure_microbatch(const Asked& asked, const Plan& plan,
                                                 std::int64_t sequences) {
  throw_if_stopped();
  const auto of = [&](std::int64_t size) {
    return RankView(plan.programs.front(), plan.mesh.coordinates(0), size * asked.ways,
                    machine_.scratch());
  };
  const RankView rank = of(sequences);
  MicrobatchProbe found;
  measure_time(rank, machine_, plan.ranks(), found);
  // Bytes lie on a line between one sequence and many.
  const auto memory = [&](std::int64_t size) -> const MicrobatchProbe& {
    const auto [known, missing] = memory_.try_emplace({asked, size});
    if (missing) known->second = memory_of(size == sequences ? rank : of(size));
    return known->second;
  };
  constexpr std::int64_t many = 64;
  if (asked.microbatch > 1 || sequences == 1 || sequences > many) {
    const MicrobatchProbe& own = memory(sequences);
    for (const auto what : byte_counts) found.*what = own.*what;
    return found;
  }
  const MicrobatchProbe &one = memory(1), &most = memory(many);
  const double share = static_cast<double>(sequences - 1) / static_cast<double>(many - 1);
  for (const auto what : byte_counts) found.*what = one.*what + share * (most.*what - one.*what);
  return found;
}

}  // namespace mw
