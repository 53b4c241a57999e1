#include "simulate/price.h"

#include <algorithm>
#include <cmath>

#include "base/interrupt.h"
#include "simulate/speed.h"
#include "sizes/matrices.h"

namespace mw {
namespace {

struct Transfer {
  double seconds = 0;
  int lane = -1;   // index of the collective's key
  int group = -1;  // index of its group
};
struct Priced {
  double before = 0;                // compute seconds, between what it awaits and what it begins
  std::vector<Transfer> transfers;  // that the instruction begins
  double executed = 0;
  const Instruction* instruction = nullptr;
};

}  // namespace

// One rank's clock. Transfers are begun and awaited; those between stages are timed by who waits.
class Pricer::State {
 public:
  State(const RankView& rank, const Device& device, int optimizer_states, int threads, int sharing)
      : ranks_(rank),
        rank_(&ranks_.of_kind(0)),
        program_(rank.program()),
        device_(device),
        states_(optimizer_states),
        speed_(speed_of(device, sharing, program_.element, threads)) {}

  void play(const SegmentRun& what) {
    rank_ = &ranks_.of(what.microbatch);
    const std::pair segment(what.segment, ranks_.kind(what.microbatch));
    const bool quiet = settled();
    const auto found = known_.find(segment);
    if (quiet && found != known_.end()) {
      repeat(found->second);
      return;
    }
    auto [code, missing] = priced_.try_emplace(segment);
    if (missing) code->second = price(program_.segments[what.segment]);
    const Run before = run_;
    for (const Priced& p : code->second) play(p);
    if (quiet && settled()) known_[segment] = difference(run_, before);
  }

  double clock() const { return run_.clock; }
  void idle_until(double time) { run_.clock = std::max(run_.clock, time); }
  void transferred(const Instruction& i, double seconds) {
    const int lane = lane_of(calls_of(*rank_, i).at(0).key);
    run_.clock += seconds;
    run_.exposed += seconds;
    run_.lanes[lane].exposed += seconds;
  }
  double transfer_seconds(const Instruction& i, int microbatch) const {
    return seconds_of(calls_of(ranks_.of(microbatch), i).at(0));
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
  struct Run {
    double clock = 0, compute = 0, exposed = 0, executed = 0;
    std::vector<TransferTime> lanes;  // by key
  };
  struct Flight {
    double end = 0, seconds = 0;
    int lane = -1;
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

  void work(double seconds) {
    run_.clock += seconds;
    run_.compute += seconds;
  }

  void play(const Priced& p) {
    const Instruction& i = *p.instruction;
    run_.executed += p.executed;
    if (i.code == Code::wait && between_stages(i)) return;
    if (i.code == Code::wait || i.code == Code::reduced || i.code == Code::reduced_parts ||
        i.code == Code::gathered) {
      await(flight_of(i));
      work(p.before);
      for (const Transfer& transfer : p.transfers) {  // a hook's own, one after the other
        begin(transfer, flight_of(i));
        await(flight_of(i));
      }
      return;
    }
    work(p.before);
    for (const Transfer& transfer : p.transfers) {
      if (between_stages(i)) {
        run_.lanes[transfer.lane].seconds += transfer.seconds;
      } else {
        begin(transfer, flight_of(i));
      }
    }
    if (i.code == Code::totals || i.code == Code::direct) await(flight_of(i));
  }

  void begin(const Transfer& transfer, std::pair<Code, int> which) {
    double& free = groups_[transfer.group];  // a group's transfers go one after the other
    Flight flight{0, transfer.seconds, transfer.lane};
    flight.end = std::max(run_.clock, free) + transfer.seconds;
    run_.lanes[transfer.lane].seconds += transfer.seconds;
    // Threads copy their own messages, so a transfer takes its time from the rank when it is waited
    // for and none before.
    if (!device_.shared()) free = flight.end;
    flights_[which].push_back(flight);
  }

  static bool between_stages(const Instruction& i) {
    return i.move.kind == Move::Kind::send || i.move.kind == Move::Kind::recv;
  }

  static std::pair<Code, int> flight_of(const Instruction& i) {
    switch (i.code) {
      case Code::start:
      case Code::wait:
        return {Code::start, i.pending};
      case Code::reduce:
      case Code::reduced:
        return {Code::reduce, i.bucket};
      case Code::reduce_parts:
      case Code::reduced_parts:
        return {Code::reduce_parts, i.bucket};
      case Code::gather:
      case Code::gathered:
        return {Code::gather, i.bucket};
      default:
        return {i.code, 0};
    }
  }

  void await(std::pair<Code, int> which) {
    const auto found = flights_.find(which);
    if (found == flights_.end()) return;
    for (const Flight& flight : found->second) {
      const double waited =
          device_.shared() ? flight.seconds : std::max(0.0, flight.end - run_.clock);
      run_.clock += waited;
      run_.exposed += waited;
      run_.lanes[flight.lane].exposed += waited;
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
    Priced p;
    p.instruction = &i;
    p.before = local_seconds(i, p.executed) * speed_.stretch;
    for (const Call& call : calls_of(*rank_, i)) {
      const int group =
          group_index_.try_emplace(call.set, static_cast<int>(group_index_.size())).first->second;
      p.transfers.push_back({seconds_of(call), lane_of(call.key), group});
    }
    return p;
  }

  double seconds_of(const Call& call) const {
    return mw::transfer_seconds(call, device_, speed_, program_.stage_atom);
  }

  int lane_of(const CommunicationKey& key) {
    const auto lane = std::find(keys_.begin(), keys_.end(), key);
    const auto index = static_cast<int>(lane - keys_.begin());
    if (lane == keys_.end()) {
      keys_.push_back(key);
      run_.lanes.emplace_back();
    }
    return index;
  }

  double copy_seconds(std::int64_t bytes) const {
    return static_cast<double>(bytes) / speed_.bandwidth;
  }

  // Between a device and its host; ranks that are threads have one memory for both.
  double host_seconds(std::int64_t bytes) const {
    return device_.shared() ? 0 : static_cast<double>(bytes) / device_.link;
  }

  double local_seconds(const Instruction& i, double& executed) const {
    switch (i.code) {
      case Code::compute:
        return op_seconds(i, executed);
      case Code::move:
        return speed_.overhead + copy_seconds(2 * rank_->size_of(i).copied);
      case Code::start: {
        if (between_stages(i)) return speed_.overhead;
        const MoveSize size = rank_->size_of(i);
        return speed_.overhead + copy_seconds(2 * (size.copied - size.finish));
      }
      case Code::wait:
        return speed_.overhead + copy_seconds(2 * rank_->size_of(i).finish);
      case Code::add:
        return speed_.overhead + copy_seconds(3 * rank_->bytes(i.outputs[0]));
      case Code::copy:
        return speed_.overhead + copy_seconds(2 * rank_->bytes(i.outputs[0]));
      case Code::offload:
      case Code::fetch: {  // not beside compute: the executor copies in the rank's own stream
        const std::int64_t bytes = rank_->bytes(i.outputs[0]);
        return speed_.overhead + (device_.shared() ? copy_seconds(2 * bytes) : host_seconds(bytes));
      }
      case Code::load: {
        std::int64_t bytes = 0;
        for (int slot : i.outputs) bytes += rank_->bytes(slot);
        return speed_.overhead + copy_seconds(2 * bytes);
      }
      case Code::totals: {  // the gradients are read for their norm
        std::int64_t bytes = 0;
        for (std::size_t b = 0; b < program_.buckets.size(); ++b)
          bytes += rank_->flat(static_cast<int>(b)).part_of_gradients;
        return static_cast<double>(program_.buckets.size()) * speed_.overhead + copy_seconds(bytes);
      }
      case Code::direct: {  // gradients and momentum are read, momentum and directions written
        const std::int64_t elements = direct_size(*rank_, i).elements;
        return speed_.overhead + copy_seconds(elements * (program_.gradient_element +
                                                          3 * direction_element(program_)));
      }
      case Code::update: {  // parameters and states are read and written, gradients read
        if (i.parameter >= 0) return matrix_seconds(i, executed);
        const Offload offload = program_.buckets[i.bucket].offload;
        const FlatBytes flat = rank_->flat(i.bucket);
        const std::int64_t updated = std::max(program_.element, program_.master_element);
        const std::int64_t element = 2 * states_ * updated + 2 * program_.element +
                                     program_.gradient_element + 2 * program_.master_element;
        const std::int64_t moved = element * flat.part_elements;
        if (offload == Offload::nothing || device_.shared()) {
          return speed_.overhead + copy_seconds(moved);
        }
        // The gradient goes to the host, and the parameters that do not lie there come back; without
        // masters they went there first.
        const int ways = offload == Offload::parameters ? 0 : program_.master_element > 0 ? 1 : 2;
        return speed_.overhead +
               host_seconds(flat.part_of_gradients + ways * flat.part_of_parameters) +
               static_cast<double>(moved) / (device_.host > 0 ? device_.host : device_.link);
      }
      case Code::seed:
      case Code::report:
        return speed_.overhead;
      case Code::hand:
        return 0;
      case Code::reduced:  // what was reduced is added to the part that is kept
        if (program_.buckets[i.bucket].hook)
          return hook_seconds(rank_->reduction(i.bucket).finish, executed);
        return program_.buckets[i.bucket].parted >= Parted::gradients
                   ? speed_.overhead + copy_seconds(3 * rank_->flat(i.bucket).part_of_gradients)
                   : 0;
      case Code::reduce:
        return program_.buckets[i.bucket].hook
                   ? hook_seconds(rank_->reduction(i.bucket).start, executed)
                   : 0;
      case Code::gather:  // a part that lies in host memory goes to the device first
        return program_.buckets[i.bucket].offload == Offload::parameters
                   ? host_seconds(rank_->flat(i.bucket).part_of_parameters)
                   : 0;
      case Code::reduce_parts:
      case Code::reduced_parts:
      case Code::gathered:
      case Code::drop:
        return 0;
    }
    return 0;
  }

  double hook_seconds(const ReductionCost::Phase& phase, double& executed) const {
    executed = phase.flops;
    return speed_.overhead + std::max(phase.flops / speed_.gemm.rate, copy_seconds(phase.touched));
  }

  double matrix_seconds(const Instruction& i, double& executed) const {
    const MatrixUpdate update = matrix_update(*rank_, i);
    executed = update.flops;
    const std::int64_t element = program_.element + 3 * direction_element(program_);
    return executed / speed_.gemm.rate + 3 * program_.ns_steps * speed_.gemm.overhead +
           copy_seconds(element * (update.end - update.begin));
  }

  double op_seconds(const Instruction& i, double& executed) const {
    if (!rank_->runs(i)) return 0;
    const Cost& cost = rank_->cost(i.op, i.piece, i.turn);
    executed = cost.executed;
    const double memory = cost.bytes / speed_.bandwidth;
    if (cost.flops > 0) {
      return std::max(cost.executed / speed_.gemm.rate, memory) + speed_.gemm.overhead;
    }
    return std::max(cost.executed / speed_.pointwise, memory) + speed_.overhead;
  }

  const RankViews ranks_;
  const RankView* rank_;  // of the microbatch that is played
  const Program& program_;
  const Device& device_;
  const int states_;
  const Speed speed_;
  Run run_;
  // By segment and kind of microbatch; known: begun with nothing under way.
  std::map<std::pair<int, int>, Run> known_;
  std::map<std::pair<int, int>, std::vector<Priced>> priced_;
  std::vector<CommunicationKey> keys_;
  std::map<RankSet, int> group_index_;
  std::map<int, double> groups_;  // when each group's link is free
  std::map<std::pair<Code, int>, std::vector<Flight>> flights_;
};

Pricer::Pricer(const RankView& rank, const Device& device, int optimizer_states, int threads,
               int sharing)
    : state_(std::make_unique<State>(rank, device, optimizer_states, threads, sharing)) {}
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
StepTime Pricer::times() const {
  return state_->times();
}

StepTime price_step(const RankView& rank, const Device& device, int optimizer_states, int threads) {
  Pricer pricer(rank, device, optimizer_states, threads, rank.program().mesh.size());
  for (const SegmentRun& run : rank.program().timeline) {
    throw_if_stopped();
    pricer.play(run);
  }
  return pricer.times();
}

}  // namespace mw
