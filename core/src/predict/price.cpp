// Prices one rank's instructions in seconds and plays them on a clock on which transfers run
// beside compute or not.
#include "predict/price.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "program/footprint.h"
#include "program/ring.h"

namespace mw {
namespace pricing {

struct Timed {
  TransferCost cost;
  int lane = -1;  // index of the collective's key
};
struct Priced {
  int awaits = -1, begins = -1;
  double before = 0;             // compute seconds, between what it awaits and what it begins
  std::vector<Timed> transfers;  // that the instruction begins
  bool between_stages = false;
  double executed = 0;
  double host = 0;  // seconds of the host that launches it
};
// All steps of a ring, which are the same wherever ops are alike.
struct PricedRing {
  std::vector<Priced> code;
  double host = 0;
};
struct PricedSegment {
  std::vector<Priced> code;
  std::vector<std::pair<std::size_t, int>> rings;  // which of `code`, and the ring's number
  WorkTime beside;                                 // what a run does beside its instructions
  double host = 0;                                 // seconds of the host that launches them
};

}  // namespace pricing
using pricing::Priced, pricing::PricedRing, pricing::PricedSegment, pricing::Timed;

// One rank's clock. Transfers are begun and awaited; those between stages are timed by who waits.
class Pricer::State {
 public:
  State(const RankView& rank, const Machine& machine, int ranks, int threads)
      : ranks_(rank),
        rank_(&ranks_.of_kind(0)),
        program_(rank.program()),
        keys_(program_),
        overlaps_(machine.overlaps()),
        machine_(machine.of_rank(rank, ranks, threads)) {}

  void play(const SegmentRun& what) {
    rank_ = &ranks_.of(what.microbatch);
    const std::pair segment(what.segment, ranks_.kind(what.microbatch));
    ++runs_;
    const bool quiet = !keeps_ && settled();
    const auto found = known_.find(segment);
    if (quiet && found != known_.end()) {
      repeat(found->second);
      return;
    }
    auto [code, missing] = priced_.try_emplace(segment);
    if (missing) code->second = price(program_.segments[what.segment], segment.second);
    const PricedSegment& priced = code->second;
    const Run before = run_;
    now_ = {InstructionTime::Kind::own, what.segment, -1, what.microbatch, 0, 0};
    auto ring = priced.rings.begin();
    for (const Priced& p : priced.code) {
      ++now_.index;
      if (ring != priced.rings.end() && ring->first == static_cast<std::size_t>(now_.index)) {
        play_ring((ring++)->second);
      } else {
        play(p);
      }
    }
    work(priced.beside.seconds);
    const double own = run_.clock - before.clock;
    work(machine_->run_seconds(own, priced.host + priced.beside.host) - own);
    if (quiet && settled()) known_[segment] = difference(run_, before);
  }

  double clock() const { return run_.clock; }
  void keep_times() { keeps_ = true; }
  const std::vector<Pricer::Kept>& kept() const { return kept_; }
  void idle_until(double time) { run_.clock = std::max(run_.clock, time); }
  void transferred(const Instruction& i, double seconds) {
    const auto [found, missing] = stage_lanes_.try_emplace(&i);
    if (missing) found->second = lane_of(footprint(*rank_, i, Asks::work).transfers.at(0));
    const int lane = found->second;
    run_.clock += seconds;
    run_.exposed += seconds;
    run_.lanes[lane].exposed += seconds;
  }
  double transfer_seconds(const Instruction& i, int microbatch) const {
    const auto [found, missing] = stage_seconds_.try_emplace({&i, ranks_.kind(microbatch)});
    if (missing) {
      const RankView& rank = ranks_.of(microbatch);
      const Footprint made = footprint(rank, i, Asks::work);
      found->second = machine_->transfer(rank, i, made.transfers.at(0)).seconds;
    }
    return found->second;
  }

  StepTime times() const {
    StepTime time;
    time.step = run_.clock;
    time.compute = run_.compute;
    time.exposed = run_.exposed;
    const double idle = run_.clock - run_.compute - run_.exposed;
    time.idle = idle > 1e-9 * run_.clock ? idle : 0;  // less is rounding
    time.executed = run_.executed;
    for (std::size_t k = 0; k < keys_.size(); ++k) time.transfers[keys_.key(k)] = run_.lanes[k];
    return time;
  }

 private:
  // The pending of transfers that are awaited as soon as they are begun.
  static constexpr int at_once = -1;

  struct Run {
    double clock = 0, compute = 0, exposed = 0, executed = 0;
    std::vector<TransferTime> lanes;  // by key
  };
  struct Underway {
    double end = 0;
    TransferCost cost;
    int lane = -1, kept = -1;
  };

  bool settled() const {
    return flights_.empty() && std::all_of(links_.begin(), links_.end(), [&](const auto& link) {
             return link.second <= run_.clock;
           });
  }
  static Run difference(const Run& after, const Run& before) {
    Run d{after.clock - before.clock, after.compute - before.compute,
          after.exposed - before.exposed, after.executed - before.executed, after.lanes};
    for (std::size_t k = 0; k < before.lanes.size(); ++k) {
      d.lanes[k].seconds -= before.lanes[k].seconds;
      d.lanes[k].exposed -= before.lanes[k].exposed;
    }
    return d;
  }
  void repeat(const Run& run) {
    run_.clock += run.clock;
    run_.compute += run.compute;
    run_.exposed += run.exposed;
    run_.executed += run.executed;
    for (std::size_t k = 0; k < run.lanes.size(); ++k) {
      run_.lanes[k].seconds += run.lanes[k].seconds;
      run_.lanes[k].exposed += run.lanes[k].exposed;
    }
  }

  // A number for `kept_`, or -1 if times are not kept.
  int keep(InstructionTime::Kind kind, double start, double end) {
    if (!keeps_) return -1;
    Pricer::Kept kept{now_, runs_, runs_};
    kept.time.kind = kind;
    kept.time.start = start;
    kept.time.end = end;
    kept_.push_back(kept);
    return static_cast<int>(kept_.size()) - 1;
  }

  void work(double seconds) {
    if (seconds <= 0) return;
    keep(InstructionTime::Kind::own, run_.clock, run_.clock + seconds);
    run_.clock += seconds;
    run_.compute += seconds;
  }

  void play(const Priced& p) {
    run_.executed += p.executed;
    if (p.awaits >= 0) await(p.awaits);
    work(p.before);
    for (const Timed& transfer : p.transfers) {
      if (p.between_stages) {
        run_.lanes[transfer.lane].seconds += transfer.cost.seconds;
      } else {
        begin(transfer, p.begins);
        if (p.begins == at_once) await(at_once);
      }
    }
  }

  void play_ring(int number) {
    const bool quiet = !keeps_ && settled();
    std::optional<Run>& known = known_rings_[number];
    if (quiet && known) {
      repeat(*known);
      return;
    }
    const Run before = run_;
    for (const Priced& p : rings_[number].code) {
      ++now_.inner;
      play(p);
    }
    now_.inner = -1;
    if (quiet && settled()) known = difference(run_, before);
  }

  void begin(const Timed& transfer, int pending) {
    double& free = links_[transfer.cost.link];  // a link's transfers go one after the other
    const double seconds = transfer.cost.seconds;
    Underway underway{0, transfer.cost, transfer.lane};
    underway.end = std::max(run_.clock, free) + seconds;
    underway.kept = keep(InstructionTime::Kind::transfer,
                         overlaps_ ? underway.end - seconds : run_.clock, underway.end);
    if (underway.kept >= 0) kept_[underway.kept].link = transfer.cost.link;
    run_.lanes[transfer.lane].seconds += seconds;
    // Threads copy their own messages, so a transfer takes its time from the rank when it is waited
    // for and none before.
    if (overlaps_) free = underway.end;
    flights_[pending].push_back(underway);
  }

  void await(int pending) {
    const auto found = flights_.find(pending);
    if (found == flights_.end()) return;
    for (const Underway& underway : found->second) {
      const double seconds = underway.cost.seconds;
      const double waited = overlaps_ ? std::max(0.0, underway.end - run_.clock) : seconds;
      if (waited > 0) keep(InstructionTime::Kind::wait, run_.clock, run_.clock + waited);
      run_.clock += waited;
      run_.exposed += waited;
      run_.lanes[underway.lane].exposed += waited;
      if (!overlaps_ && underway.kept >= 0) {
        kept_[underway.kept].time.end = run_.clock;
        kept_[underway.kept].ended_in = runs_;
      }
      work(underway.cost.slows * std::max(0.0, seconds - waited));
    }
    flights_.erase(found);
  }

  // What a segment with reductions in it is a copy of, where that is priced: they are alike but for
  // these.
  const PricedSegment* priced_original(const Segment& segment, int kind) const {
    if (segment.copy_of < 0) return nullptr;
    const auto found = priced_.find({segment.copy_of, kind});
    return found == priced_.end() ? nullptr : &found->second;
  }

  PricedSegment price(const Segment& segment, int kind) {
    PricedSegment priced;
    priced.code.reserve(segment.code.size());
    const PricedSegment* original = priced_original(segment, kind);
    const auto* from = original == nullptr ? nullptr : &program_.segments[segment.copy_of].code;
    std::size_t next = 0;  // of the original's
    for (const Instruction& i : segment.code) {
      const bool same = from != nullptr && next < from->size() && (*from)[next].code == i.code &&
                        (*from)[next].op == i.op && (*from)[next].piece == i.piece &&
                        (*from)[next].bucket == i.bucket && (*from)[next].pending == i.pending;
      if (i.ring) {
        const int number = ring_of(i);
        priced.host += rings_[number].host;
        priced.rings.emplace_back(priced.code.size(), number);
        priced.code.emplace_back();
      } else {
        priced.code.push_back(same ? original->code[next] : price(i));
        priced.host += priced.code.back().host;
      }
      if (same) ++next;
    }
    priced.beside = machine_->beside(*rank_, segment);
    return priced;
  }

  Priced price(const Instruction& i) {
    Footprint& made = made_;
    footprint(*rank_, i, Asks::work, made);
    Priced p{made.awaits, made.begins, 0, {}, made.between_stages, made.executed()};
    const WorkTime work = machine_->work(*rank_, i, made);
    p.before = work.seconds;
    p.host = work.host;
    p.transfers.reserve(made.transfers.size());
    for (const Transfer& transfer : made.transfers)
      p.transfers.push_back({machine_->transfer(*rank_, i, transfer), lane_of(transfer)});
    return p;
  }

  // The number of a ring that is priced like this one.
  int ring_of(const Instruction& ring) {
    std::vector<int> key{rank_->like(ring.op), static_cast<int>(ring.piece)};
    for (const Rotating& r : *ring.ring) {
      key.push_back((r.shards.empty() ? 0 : 1) + (r.shares.empty() ? 0 : 2));
      if (!r.shares.empty()) key.push_back(ring.accumulate[r.input] ? 1 : 0);
    }
    const auto [known, missing] = ring_numbers_.try_emplace({rank_, ring.phase, std::move(key)}, 0);
    if (!missing) return known->second;
    known->second = static_cast<int>(rings_.size());
    rings_.push_back(price_ring(ring));
    known_rings_.emplace_back();
    return known->second;
  }

  PricedRing price_ring(const Instruction& ring) {
    PricedRing priced;
    std::vector<Instruction> code = ring_kinds(program_, ring);
    for (std::size_t begin = 0, end = 0; begin < code.size(); begin = end) {
      const int first = code[begin].ring_step, alike = code[begin].ring_alike;
      while (end < code.size() && code[end].ring_step == first) ++end;
      std::vector<Priced> step;
      for (std::size_t n = begin; n < end; ++n) {
        code[n].ring_alike = 0;
        step.push_back(price(code[n]));
      }
      for (int k = 0; k <= alike; ++k) {
        for (std::size_t n = begin; n < end; ++n) {
          Instruction& i = code[n];
          if (k > 0 && i.code == Code::compute) {
            i.ring_step = first + k;
            priced.code.push_back(price(i));
          } else {
            priced.code.push_back(step[n - begin]);
          }
          priced.host += priced.code.back().host;
        }
      }
    }
    return priced;
  }

  int lane_of(const Transfer& transfer) {
    const std::size_t lane = keys_.number(transfer);
    if (lane == run_.lanes.size()) run_.lanes.emplace_back();
    return static_cast<int>(lane);
  }

  const RankViews ranks_;
  const RankView* rank_;  // of the microbatch that is played
  const Program& program_;
  TransferKeys keys_;
  const bool overlaps_;
  const std::unique_ptr<RankMachine> machine_;
  Run run_;
  // By segment and kind of microbatch; known: begun with nothing under way.
  std::map<std::pair<int, int>, Run> known_;
  std::map<std::pair<int, int>, PricedSegment> priced_;
  // Of sends and receives between stages: by kind of microbatch, and what they are booked under.
  mutable std::map<std::pair<const Instruction*, int>, double> stage_seconds_;
  std::map<const Instruction*, int> stage_lanes_;
  std::map<std::tuple<const RankView*, std::string, std::vector<int>>, int> ring_numbers_;
  std::vector<PricedRing> rings_;
  std::vector<std::optional<Run>> known_rings_;   // begun with nothing under way
  std::map<int, double> links_;                   // when each is free
  std::map<int, std::vector<Underway>> flights_;  // by pending
  Footprint made_;                                // of the instruction that is priced
  bool keeps_ = false;
  std::size_t runs_ = 0;
  InstructionTime now_;  // which instruction is played
  std::vector<Pricer::Kept> kept_;
};

Pricer::Pricer(const RankView& rank, const Machine& machine, int ranks, int threads)
    : state_(std::make_unique<State>(rank, machine, ranks, threads)) {}
Pricer::Pricer(Pricer&&) noexcept = default;
Pricer::~Pricer() = default;

void Pricer::play(const SegmentRun& run) {
  state_->play(run);
}
double Pricer::clock() const {
  return state_->clock();
}
void Pricer::idle_until(double time) {
  state_->idle_until(time);
}
void Pricer::transferred(const Instruction& wait, double seconds) {
  state_->transferred(wait, seconds);
}
double Pricer::transfer_seconds(const Instruction& start, int microbatch) const {
  return state_->transfer_seconds(start, microbatch);
}
void Pricer::keep_times() {
  state_->keep_times();
}
const std::vector<Pricer::Kept>& Pricer::kept() const {
  return state_->kept();
}
StepTime Pricer::times() const {
  return state_->times();
}

StepTime price_step(const RankView& rank, const Machine& machine, int threads) {
  Pricer pricer(rank, machine, rank.program().mesh.size(), threads);
  for (const SegmentRun& run : rank.program().timeline) {
    throw_if_stopped();
    pricer.play(run);
  }
  return pricer.times();
}

}  // namespace mw
