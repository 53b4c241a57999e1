// Plays one rank's priced instructions on a clock on which transfers, and copies to and from host
// memory, run beside compute or in line with it.
#include "predict/price.h"

#include <algorithm>
#include <optional>

#include "meshwright/error.h"
#include "predict/instruction_prices.h"
#include "predict/link_queue.h"

namespace mw {

const char* name_of(Basis basis) {
  return basis == Basis::measured ? "measured" : basis == Basis::fitted ? "fitted" : "beyond";
}

Basis TransferTime::basis() const {
  for (const Basis worst : {Basis::beyond, Basis::fitted}) {
    if (by_basis[static_cast<std::size_t>(worst)] > negligible_share * seconds) return worst;
  }
  return Basis::measured;
}

void TransferTime::add(const TransferCost& cost) {
  seconds += cost.seconds;
  by_basis[static_cast<std::size_t>(cost.basis)] += cost.seconds;
}

void TransferTime::add(const TransferTime& more, double times) {
  seconds += times * more.seconds;
  exposed += times * more.exposed;
  for (std::size_t b = 0; b < by_basis.size(); ++b) by_basis[b] += times * more.by_basis[b];
}

// One rank's clock. Transfers are begun and awaited; those between stages are timed by the caller.
class Pricer::State {
 public:
  State(const RankView& rank, const Machine& machine, int ranks, int threads)
      : lanes_(rank),
        prices_(rank, machine, lanes_, ranks, threads),
        overlaps_(machine.overlaps()),
        last_(rank.program().timeline.back().segment) {}

  void play(const SegmentRun& what) {
    const InstructionPrices::Kinds kinds = prices_.kinds(what);
    ++runs_;
    now_ = {InstructionTime::Kind::own, what.segment, -1, what.microbatch, 0, 0};
    const PricedSegment& priced = prices_.segment(what.segment, kinds);
    const bool quiet = !keeps_ && settled() && !priced.on_host;
    const HostLanes::State copies = lanes_.state(run_.clock, what.microbatch);
    std::vector<Known>& known = known_[known_by(what, kinds)];
    if (quiet) {
      const auto same = std::find_if(known.begin(), known.end(),
                                     [&](const Known& one) { return one.before.like(copies); });
      if (same != known.end()) {
        repeat(same->run);
        seen_ = same->seen;
        lanes_.resume(same->after, run_.clock, what.microbatch);
        return;
      }
    }
    run_.transfers.resize(prices_.keys().size());
    const Run before = run_;
    seen_.sent.clear();
    seen_.lanes.assign(kinds.size(), {-1, 0});
    auto ring = priced.rings.begin();
    for (const PricedInstruction& p : priced.code) {
      ++now_.index;
      now_.microbatch = microbatch_of(what, p.lane);
      auto& [from, to] = seen_.lanes[static_cast<std::size_t>(p.lane)];
      if (from < 0) from = run_.clock;
      if (ring != priced.rings.end() && ring->first == static_cast<std::size_t>(now_.index)) {
        await_copies(p.copied);
        play_ring((ring++)->second);
      } else {
        play(p);
      }
      to = run_.clock;
    }
    const double played = run_.clock - before.clock;
    work(priced.beside.seconds);
    const double own = run_.clock - before.clock;
    work(prices_.run_seconds(own, priced.host + priced.beside.host) - own);
    if (what.segment == last_) await_until(lanes_.left());
    // Work beside the instructions, and what the host takes longer, are spread over the whole run.
    const double whole = run_.clock - before.clock;
    const auto stretch = [&](double& time) {
      time = played > 0 ? (time - before.clock) * (whole / played) : whole;
    };
    for (double& time : seen_.sent) stretch(time);
    for (auto& [from, to] : seen_.lanes) {
      if (from < 0) from = to = before.clock;
      stretch(from);
      stretch(to);
    }
    if (quiet && settled() && known.size() < most_known)
      known.push_back(
          {copies, lanes_.state(run_.clock, what.microbatch), difference(run_, before), seen_});
  }
  const std::vector<double>& between_stages() const { return seen_.sent; }
  const std::vector<std::pair<double, double>>& lanes() const { return seen_.lanes; }

  double clock() const { return run_.clock; }
  void keep_times() { keeps_ = true; }
  const std::vector<Pricer::Kept>& kept() const { return kept_; }
  void idle_until(double time) { run_.clock = std::max(run_.clock, time); }
  void transferred(const Instruction& i, double seconds) {
    const auto [found, missing] = stage_keys_.try_emplace(&i);
    if (missing) found->second = prices_.key_of(i);
    run_.transfers.resize(std::max(run_.transfers.size(), prices_.keys().size()));
    run_.clock += seconds;
    run_.exposed += seconds;
    run_.transfers[found->second].exposed += seconds;
  }
  double transfer_seconds(const Instruction& i, int microbatch) const {
    const int kind = prices_.ranks().kind(microbatch);
    const auto [found, missing] = stage_seconds_.try_emplace({&i, kind});
    if (missing) found->second = prices_.transfer_seconds(i, kind);
    return found->second;
  }

  void begin_step() {
    began_ = run_.clock;
    run_ = {run_.clock, 0, 0, 0, {}, {}, std::vector<TransferTime>(run_.transfers.size())};
    host_ = std::max(host_, run_.clock);  // the host waits for the end of each step
    kept_.clear();
    runs_ = 0;
    for (auto& [which, flights] : flights_)
      for (Underway& underway : flights) underway.kept = -1;
  }

  StepTime times() const {
    StepTime time;
    time.step = run_.clock - began_;
    time.compute = run_.compute;
    time.exposed = run_.exposed;
    time.host_copies = run_.host_copies;
    time.host_updates = run_.host_updates;
    const double idle = time.step - run_.compute - run_.exposed - run_.host_copies.exposed;
    time.idle = idle > 1e-9 * time.step ? idle : 0;  // less is rounding
    time.executed = run_.executed;
    for (std::size_t k = 0; k < run_.transfers.size(); ++k)
      time.transfers[prices_.keys().key(k)] = run_.transfers[k];
    return time;
  }

 private:
  // The pending of transfers that are awaited as soon as they are begun.
  static constexpr int at_once = -1;
  // How many runs of a segment are remembered, which differ in the copies that are under way.
  static constexpr std::size_t most_known = 8;

  struct Run {
    double clock = 0, compute = 0, exposed = 0, executed = 0;
    TransferTime host_copies, host_updates;
    std::vector<TransferTime> transfers;  // by communication key
  };
  // The times of the last run, in seconds since it began: when sends and receives between stages
  // were begun, and when each lane began and ended.
  struct Seen {
    std::vector<double> sent;
    std::vector<std::pair<double, double>> lanes;
  };
  struct Known {
    HostLanes::State before, after;
    Run run;
    Seen seen;
  };
  struct Underway {
    double end = 0;
    TransferCost cost;
    int key = -1, kept = -1;
    double brought = 0;  // when the data that it sends has come from host memory
  };

  // What tells runs of a segment apart. Runs of a braid are alike if their microbatches are of the
  // same kinds and equally far apart.
  static Few<int, 6> known_by(const SegmentRun& what, const InstructionPrices::Kinds& kinds) {
    Few<int, 6> key{what.segment};
    key.insert(key.end(), kinds.begin(), kinds.end());
    for (const int other : what.others) key.push_back(other - what.microbatch);
    return key;
  }
  // What tells transfers under way apart: the pending and, unless the transfer is of the step, the
  // microbatch.
  std::pair<int, int> flight(const PricedInstruction& p, int pending) const {
    return {pending, p.of_step ? -1 : now_.microbatch};
  }

  bool settled() const {
    return flights_.empty() && std::all_of(links_.begin(), links_.end(), [&](const auto& link) {
             return link.second.free() <= run_.clock;
           });
  }
  static Run difference(const Run& after, const Run& before) {
    Run d{after.clock - before.clock,
          after.compute - before.compute,
          after.exposed - before.exposed,
          after.executed - before.executed,
          after.host_copies,
          {},  // a run in which the host works is never repeated
          after.transfers};
    d.host_copies.add(before.host_copies, -1);
    for (std::size_t k = 0; k < before.transfers.size(); ++k) {
      d.transfers[k].add(before.transfers[k], -1);
    }
    return d;
  }
  void repeat(const Run& run) {
    run_.clock += run.clock;
    run_.compute += run.compute;
    run_.exposed += run.exposed;
    run_.executed += run.executed;
    run_.host_copies.add(run.host_copies);
    for (std::size_t k = 0; k < run.transfers.size(); ++k) {
      run_.transfers[k].add(run.transfers[k]);
    }
  }

  // Keeps a time if times are kept. Returns its index in `kept_`, or -1.
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

  void play(const PricedInstruction& p) {
    run_.executed += p.executed;
    await_copies(p.copied);
    if (p.awaits >= 0) await(flight(p, p.awaits));
    work(p.before);
    if (p.on_host > 0) work_on_host(p);
    if (p.host_waits) host_ = std::max(host_, run_.clock);
    if (p.copy.seconds > 0) copy(p.copy);
    const double brought = p.follows >= 0 ? lanes_.there({p.follows}, now_.microbatch) : 0;
    if (p.between_stages && !p.transfers.empty()) seen_.sent.push_back(run_.clock);
    for (const TimedTransfer& transfer : p.transfers) {
      if (p.between_stages) {
        run_.transfers[transfer.key].add(transfer.cost);
      } else {
        begin(transfer, flight(p, p.begins), brought);
        if (p.begins == at_once) await(flight(p, at_once));
      }
    }
  }

  // The host and the device both go on with the next instruction when the host's work is over.
  void work_on_host(const PricedInstruction& p) {
    for (const int slot : p.there) host_ = std::max(host_, lanes_.on_host(slot));
    keep(InstructionTime::Kind::on_host, host_, host_ + p.on_host);
    host_ += p.on_host;
    run_.host_updates.seconds += p.on_host;
    const double exposed = std::max(0.0, host_ - run_.clock);
    run_.host_updates.exposed += exposed;
    work(exposed);
  }

  void play_ring(int number) {
    const bool quiet = !keeps_ && settled();
    if (known_rings_.size() <= static_cast<std::size_t>(number)) known_rings_.resize(number + 1);
    const std::optional<Run>& known = known_rings_[number];
    if (quiet && known) {
      repeat(*known);
      return;
    }
    const Run before = run_;
    for (const PricedInstruction& p : prices_.ring(number).code) {
      ++now_.inner;
      play(p);
    }
    now_.inner = -1;
    if (quiet && settled()) known_rings_[number] = difference(run_, before);
  }

  // Begins a copy to or from host memory.
  void copy(const PricedCopy& priced) {
    if (lanes_.awaits_left(priced.copy)) await_until(lanes_.left());
    const HostLanes::Copy made =
        lanes_.begin(priced.copy, priced.seconds, now_.microbatch, run_.clock);
    run_.host_copies.seconds += priced.seconds;
    keep(InstructionTime::Kind::copy, made.begin, made.end);
  }
  void await_copies(const std::vector<int>& storages) {
    if (!storages.empty()) await_until(lanes_.there(storages, now_.microbatch));
  }
  // Waits until `time`, when copies are over.
  void await_until(double time) {
    if (time <= run_.clock) return;
    keep(InstructionTime::Kind::copy_wait, run_.clock, time);
    run_.host_copies.exposed += time - run_.clock;
    run_.clock = time;
  }

  // Begins a transfer. Ranks that are threads copy their own messages, so a transfer takes its time
  // from the rank when it is waited for and none before.
  void begin(const TimedTransfer& transfer, const std::pair<int, int>& which, double brought) {
    const double seconds = transfer.cost.seconds;
    Underway underway{0, transfer.cost, transfer.key};
    underway.brought = brought;
    double begin = run_.clock;
    if (overlaps_) {
      // Transfers of a stream go in their order over all links, those of a group over each link.
      double& over = stream_over_[transfer.stream];
      const double ready = transfer.stream < 0 ? brought : std::max(brought, over);
      const LinkQueue::Time time = links_[transfer.cost.link].begin(transfer.group, transfer.key,
                                                                    run_.clock, ready, seconds);
      over = time.end;
      begin = time.begin;
      underway.end = time.end;
    } else {
      underway.end = std::max(run_.clock, brought) + seconds;
    }
    underway.kept = keep(InstructionTime::Kind::transfer, begin, underway.end);
    if (underway.kept >= 0) kept_[underway.kept].link = transfer.cost.link;
    run_.transfers[transfer.key].add(transfer.cost);
    flights_[which].push_back(underway);
  }

  // Waits until `time` for a transfer that goes on. Returns the seconds.
  double await_transfer(double time, int key) {
    if (time <= run_.clock) return 0;
    const double seconds = time - run_.clock;
    keep(InstructionTime::Kind::wait, run_.clock, time);
    run_.clock = time;
    run_.exposed += seconds;
    run_.transfers[key].exposed += seconds;
    return seconds;
  }
  // Waits until a transfer that is under way ends at `end`: for those before it on its link, and
  // for itself. Where no transfer goes on, they wait for copies. Returns the seconds in which one
  // goes on.
  double await_link(const LinkQueue& link, double end) {
    double seconds = 0;
    for (const LinkQueue::Piece& piece : link.pieces()) {
      if (piece.begin >= end) break;
      if (piece.end <= run_.clock) continue;
      await_until(piece.begin);
      seconds += await_transfer(std::min(piece.end, end), piece.key);
    }
    await_until(end);
    return seconds;
  }

  void await(const std::pair<int, int>& which) {
    const auto found = flights_.find(which);
    if (found == flights_.end()) return;
    for (const Underway& underway : found->second) {
      const double seconds = underway.cost.seconds;
      double waited = seconds;
      if (overlaps_) {
        waited = await_link(links_[underway.cost.link], underway.end);
      } else {
        await_until(underway.brought);
        await_transfer(run_.clock + seconds, underway.key);
        if (underway.kept >= 0) {
          kept_[underway.kept].time.end = run_.clock;
          kept_[underway.kept].ended_in = runs_;
        }
      }
      work(underway.cost.slows * std::max(0.0, seconds - waited));
    }
    flights_.erase(found);
  }

  HostLanes lanes_;
  InstructionPrices prices_;
  const bool overlaps_;
  const int last_;  // last segment of a step, at whose end copies to the host are awaited
  Run run_;
  double began_ = 0;  // when the step began
  double host_ = 0;   // when the host is free for the next work that it does itself
  Seen seen_;
  // By key: runs that began with no transfer under way.
  std::map<Few<int, 6>, std::vector<Known>> known_;
  // Sends and receives between stages: their seconds by kind of microbatch, and their communication
  // keys.
  mutable std::map<std::pair<const Instruction*, int>, double> stage_seconds_;
  std::map<const Instruction*, int> stage_keys_;
  std::vector<std::optional<Run>> known_rings_;  // runs of rings that began with nothing under way
  std::map<int, LinkQueue> links_;
  std::map<int, double> stream_over_;  // by stream: when its last transfer is over
  std::map<std::pair<int, int>, std::vector<Underway>> flights_;
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
const std::vector<double>& Pricer::between_stages() const {
  return state_->between_stages();
}
const std::vector<std::pair<double, double>>& Pricer::lanes() const {
  return state_->lanes();
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
void Pricer::begin_step() {
  state_->begin_step();
}
StepTime Pricer::times() const {
  return state_->times();
}

std::function<std::function<double(const Instruction&)>(const Program&)> seconds_on(
    std::shared_ptr<const Machine> machine, int threads) {
  struct Priced {
    Priced(const Program& program, const Machine& machine, int threads)
        : rank(program, program.first(), 0, machine.scratch()),
          lanes(rank),
          prices(rank, machine, lanes, program.mesh.size() / program.stages, threads) {}
    const RankView rank;
    const HostLanes lanes;
    InstructionPrices prices;
  };
  return [machine = std::move(machine), threads](const Program& program) {
    const int all = machine->threads_of(program.mesh.size(), threads);
    auto priced = std::make_shared<Priced>(program, *machine, all);
    return [machine, priced](const Instruction& i) { return priced->prices.seconds(i); };
  };
}

int steps_to_price(const Program& program) {
  const auto& buckets = program.buckets;
  return std::any_of(buckets.begin(), buckets.end(),
                     [](const Bucket& bucket) { return bucket.gather_overlaps_forward; })
             ? 2
             : 1;
}

StepTime price_step(const RankView& rank, const Machine& machine, int threads) {
  Pricer pricer(rank, machine, rank.program().mesh.size(), threads);
  for (int step = steps_to_price(rank.program()); step-- > 0;) {
    pricer.begin_step();
    for (const SegmentRun& run : rank.program().timeline) {
      throw_if_stopped();
      pricer.play(run);
    }
  }
  return pricer.times();
}

}  // namespace mw
