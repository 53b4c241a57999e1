// Prices one rank's instructions in seconds and plays them on a clock on which transfers run
// beside compute or not.
#include "predict/price.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "predict/speed.h"
#include "program/footprint.h"

namespace mw {
namespace pricing {

struct Timed {
  double seconds = 0;
  int lane = -1;   // index of the collective's key
  int group = -1;  // index of its group
};
struct Priced {
  int awaits = -1, begins = -1;
  double before = 0;             // compute seconds, between what it awaits and what it begins
  std::vector<Timed> transfers;  // that the instruction begins
  bool between_stages = false;
  double executed = 0;
};

}  // namespace pricing
using pricing::Priced, pricing::Timed;

// One rank's clock. Transfers are begun and awaited; those between stages are timed by who waits.
class Pricer::State {
 public:
  State(const RankView& rank, const Device& device, int threads, int sharing)
      : ranks_(rank),
        rank_(&ranks_.of_kind(0)),
        program_(rank.program()),
        device_(device),
        speed_(speed_of(device, sharing, bytes_of(program_.dtype), threads)) {}

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
    if (missing) code->second = price(program_.segments[what.segment]);
    const Run before = run_;
    now_ = {InstructionTime::Kind::own, what.segment, -1, what.microbatch, 0, 0};
    for (const Priced& p : code->second) {
      ++now_.index;
      play(p);
    }
    if (quiet && settled()) known_[segment] = difference(run_, before);
  }

  double clock() const { return run_.clock; }
  void keep_times() { keeps_ = true; }
  const std::vector<Pricer::Kept>& kept() const { return kept_; }
  void idle_until(double time) { run_.clock = std::max(run_.clock, time); }
  void transferred(const Instruction& i, double seconds) {
    const int lane = lane_of(footprint(*rank_, i, Asks::work).transfers.at(0));
    run_.clock += seconds;
    run_.exposed += seconds;
    run_.lanes[lane].exposed += seconds;
  }
  double transfer_seconds(const Instruction& i, int microbatch) const {
    return seconds_of(footprint(ranks_.of(microbatch), i, Asks::work).transfers.at(0));
  }

  StepTime times() const {
    StepTime time;
    time.step = run_.clock;
    time.compute = run_.compute;
    time.exposed = run_.exposed;
    const double idle = run_.clock - run_.compute - run_.exposed;
    time.idle = idle > 1e-9 * run_.clock ? idle : 0;  // less is rounding
    time.executed = run_.executed;
    for (std::size_t k = 0; k < keys_.size(); ++k) time.transfers[keys_[k]] = run_.lanes[k];
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
    double end = 0, seconds = 0;
    int lane = -1, kept = -1;
  };

  bool settled() const {
    return flights_.empty() && std::all_of(groups_.begin(), groups_.end(),
                                           [&](const auto& g) { return g.second <= run_.clock; });
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
    if (seconds > 0) keep(InstructionTime::Kind::own, run_.clock, run_.clock + seconds);
    run_.clock += seconds;
    run_.compute += seconds;
  }

  void play(const Priced& p) {
    run_.executed += p.executed;
    if (p.awaits >= 0) await(p.awaits);
    work(p.before);
    for (const Timed& transfer : p.transfers) {
      if (p.between_stages) {
        run_.lanes[transfer.lane].seconds += transfer.seconds;
      } else {
        begin(transfer, p.begins);
        if (p.begins == at_once) await(at_once);
      }
    }
  }

  void begin(const Timed& transfer, int pending) {
    double& free = groups_[transfer.group];  // a group's transfers go one after the other
    Underway underway{0, transfer.seconds, transfer.lane};
    underway.end = std::max(run_.clock, free) + transfer.seconds;
    underway.kept =
        keep(InstructionTime::Kind::transfer,
             device_.shared() ? run_.clock : underway.end - transfer.seconds, underway.end);
    run_.lanes[transfer.lane].seconds += transfer.seconds;
    // Threads copy their own messages, so a transfer takes its time from the rank when it is waited
    // for and none before.
    if (!device_.shared()) free = underway.end;
    flights_[pending].push_back(underway);
  }

  void await(int pending) {
    const auto found = flights_.find(pending);
    if (found == flights_.end()) return;
    for (const Underway& underway : found->second) {
      const double waited =
          device_.shared() ? underway.seconds : std::max(0.0, underway.end - run_.clock);
      if (waited > 0) keep(InstructionTime::Kind::wait, run_.clock, run_.clock + waited);
      run_.clock += waited;
      run_.exposed += waited;
      run_.lanes[underway.lane].exposed += waited;
      if (device_.shared() && underway.kept >= 0) {
        kept_[underway.kept].time.end = run_.clock;
        kept_[underway.kept].ended_in = runs_;
      }
    }
    flights_.erase(found);
  }

  std::vector<Priced> price(const Segment& segment) {
    std::vector<Priced> list;
    list.reserve(segment.code.size());
    for (const Instruction& i : segment.code) list.push_back(price(i));
    return list;
  }

  Priced price(const Instruction& i) {
    const Footprint made = footprint(*rank_, i, Asks::work);
    Priced p{made.awaits, made.begins, 0, {}, made.between_stages, made.executed()};
    for (const LocalWork& work : made.work) p.before += seconds_of(work) * speed_.stretch;
    for (const Transfer& transfer : made.transfers) {
      const auto [group, fresh] =
          group_index_.try_emplace(transfer.set, static_cast<int>(group_index_.size()));
      p.transfers.push_back({seconds_of(transfer), lane_of(transfer), group->second});
    }
    return p;
  }

  double seconds_of(const Transfer& transfer) const {
    return mw::transfer_seconds(transfer, device_, speed_, program_.stage_atom);
  }

  double seconds_of(const LocalWork& work) const {
    const double rate = work.gemms > 0 ? speed_.gemm.rate : speed_.pointwise;
    double seconds = work.gemms * speed_.gemm.overhead + work.calls * speed_.overhead +
                     std::max(work.flops / rate, work.bytes / speed_.bandwidth);
    if (device_.shared()) {  // threads have one memory for device and host
      return seconds +
             (work.host + (work.one_memory_copies ? 2 * work.link : 0)) / speed_.bandwidth;
    }
    // Not beside compute: the executor copies in the rank's own stream.
    if (work.link > 0) seconds += work.link / device_.link;
    if (work.host > 0) seconds += work.host / (device_.host > 0 ? device_.host : device_.link);
    return seconds;
  }

  int lane_of(const Transfer& transfer) {
    const CommunicationKey key = key_of(transfer, program_);
    const auto lane = std::find(keys_.begin(), keys_.end(), key);
    const auto index = static_cast<int>(lane - keys_.begin());
    if (lane == keys_.end()) {
      keys_.push_back(key);
      run_.lanes.emplace_back();
    }
    return index;
  }

  const RankViews ranks_;
  const RankView* rank_;  // of the microbatch that is played
  const Program& program_;
  const Device& device_;
  const Speed speed_;
  Run run_;
  // By segment and kind of microbatch; known: begun with nothing under way.
  std::map<std::pair<int, int>, Run> known_;
  std::map<std::pair<int, int>, std::vector<Priced>> priced_;
  std::vector<CommunicationKey> keys_;
  std::map<RankSet, int> group_index_;
  std::map<int, double> groups_;                  // when each group's link is free
  std::map<int, std::vector<Underway>> flights_;  // by pending
  bool keeps_ = false;
  std::size_t runs_ = 0;
  InstructionTime now_;  // which instruction is played
  std::vector<Pricer::Kept> kept_;
};

Pricer::Pricer(const RankView& rank, const Device& device, int threads, int sharing)
    : state_(std::make_unique<State>(rank, device, threads, sharing)) {}
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

StepTime price_step(const RankView& rank, const Device& device, int threads) {
  Pricer pricer(rank, device, threads, rank.program().mesh.size());
  for (const SegmentRun& run : rank.program().timeline) {
    throw_if_stopped();
    pricer.play(run);
  }
  return pricer.times();
}

}  // namespace mw
