// Simulates the stages of a pipeline together: each advances through its timeline, waits for the
// others' transfers, and shares cores where ranks do.
#include "predict/pipeline.h"

#include <algorithm>
#include <compare>
#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <unordered_map>

#include "meshwright/engine/interrupt.h"

namespace mw {
namespace {

struct StageTransfer {
  int tag = 0;
  const Instruction* start = nullptr;
  std::size_t number = 0;  // of a send: its number among the segment's transfers between stages
};

// One stage, and where it is in its timeline.
class StageClock {
 public:
  StageClock(const RankView& rank, const Machine& machine, int threads)
      : program_(rank.program()),
        overlaps_(machine.overlaps()),
        waits_(machine.stages_wait()),
        pricer_(rank, machine, program_.mesh.size() / program_.stages, threads),
        sends_(program_.segments.size()),
        awaits_(program_.segments.size()),
        totals_(program_.segments.size(), false) {
    std::map<int, const Instruction*> recv;  // receives, by pending
    for (const Segment& s : program_.segments) {
      for (const Instruction& i : s.code) {
        if (i.begins_transfer() && i.move.kind == Move::Kind::recv) recv[i.pending] = &i;
      }
    }
    for (std::size_t s = 0; s < program_.segments.size(); ++s) {
      std::size_t number = 0;
      for (const Instruction& i : program_.segments[s].code) {
        if (i.makes_totals()) totals_[s] = true;
        if (i.begins_transfer() && i.move.kind == Move::Kind::recv) ++number;
        if (i.begins_transfer() && i.move.kind == Move::Kind::send) {
          sends_[s].push_back({i.move.tag, &i, number++});
        } else if (i.awaits_transfer() && i.move.kind == Move::Kind::recv) {
          awaits_[s].push_back({i.move.tag, recv.at(i.pending)});
        }
      }
    }
  }

  void keep_times() { pricer_.keep_times(); }
  // The times of instructions by the clock of all stages; `runs`: when each run began and ended on
  // it.
  std::vector<InstructionTime> times_on(const std::vector<std::pair<double, double>>& runs) const {
    std::vector<InstructionTime> times;
    for (const Pricer::Kept& kept : pricer_.kept()) {
      InstructionTime time = kept.time;
      time.start = on(kept.began_in - 1, time.start, runs);
      time.end = on(kept.ended_in - 1, time.end, runs);
      times.push_back(time);
    }
    return times;
  }

  bool done() const { return next_ == program_.timeline.size(); }
  const SegmentRun& run() const { return program_.timeline[next_]; }
  const std::vector<StageTransfer>& awaits() const { return awaits_[run().segment]; }
  const std::vector<StageTransfer>& sends() const { return sends_[run().segment]; }
  double seconds(const StageTransfer& t) const {
    return pricer_.transfer_seconds(*t.start, microbatch(t));
  }
  int microbatch(const StageTransfer& t) const { return microbatch_of(run(), t.start->lane); }
  const Segment& segment() const { return program_.segments[run().segment]; }
  const Program& program() const { return program_; }
  bool meets() const { return !done() && totals_[run().segment]; }
  bool met() const { return met_; }

  // When the last run begins this send, in seconds since the run began, as if the stage ran alone.
  double sent_after(const StageTransfer& send) const {
    return waited_ + pricer_.between_stages().at(send.number);
  }

  // Begins the next run, and returns its seconds as if the stage ran alone. `arrived`: when all
  // messages that the run waits for are there.
  double begin(double arrived, double now) {
    if (overlaps_) pricer_.idle_until(now);  // transfers under way go on meanwhile
    const double before = pricer_.clock();
    double spent = 0;
    for (const StageTransfer& t : awaits()) {
      if (!waits_) continue;
      const double own = seconds(t);
      spent += own;
      pricer_.transferred(*t.start, own);
    }
    // Links carry a message while its receiver computes, so only the rest is waited for.
    if (overlaps_ && arrived > now + spent)
      pricer_.transferred(*awaits().front().start, arrived - now - spent);
    waited_ = pricer_.clock() - before;
    pricer_.play(run());
    own_.emplace_back(before, pricer_.clock());
    return pricer_.clock() - before;
  }
  // When a lane of the last run began and ended, on the clock of all stages, on which the whole run
  // took from `start` to `end`.
  std::pair<double, double> lane(std::size_t number, double start, double end) const {
    const auto [own_start, own_end] = own_.back();
    const auto [from, to] = pricer_.lanes().at(number);
    const double spent = own_end - own_start;
    const double slow = spent > 0 ? (end - start) / spent : 1;
    return {start + (waited_ + from) * slow, std::min(end, start + (waited_ + to) * slow)};
  }
  void begin_step() {
    pricer_.begin_step();
    own_.clear();
    next_ = 0;
    met_ = false;
  }
  void advance() {
    met_ = met_ || meets();
    ++next_;
  }
  StepTime times(double step) {
    StepTime time = pricer_.times();
    time.idle = std::max(0.0, step - time.compute - time.exposed - time.host_copies.exposed);
    time.step = step;
    return time;
  }

 private:
  // A time of the stage's own clock, on the clock of all stages. The own clock stands while the
  // stage waits, and runs slower where cores are shared.
  double on(std::size_t run, double time,
            const std::vector<std::pair<double, double>>& runs) const {
    const auto [own_start, own_end] = own_.at(run);
    const auto [start, end] = runs.at(run);
    const double slow = own_end > own_start ? (end - start) / (own_end - own_start) : 1;
    return time <= own_end ? start + (time - own_start) * slow : end + (time - own_end);
  }

  const Program& program_;
  const bool overlaps_, waits_;
  Pricer pricer_;
  // By run: when it began and ended on the stage's own clock.
  std::vector<std::pair<double, double>> own_;
  std::size_t next_ = 0;
  // Seconds that the last run waited before its instructions.
  double waited_ = 0;
  // By segment: transfers that it begins, and that it awaits.
  std::vector<std::vector<StageTransfer>> sends_, awaits_;
  std::vector<bool> totals_;  // by segment: it makes the step's totals
  bool met_ = false;
};

class Simulation {
 public:
  Simulation(const std::vector<RankView>& stages, const Machine& machine, int threads, bool traced)
      : machine_(machine), traced_(traced), busy_(stages.size(), false) {
    const int ranks = stages.front().program().mesh.size();
    ranks_ = ranks / static_cast<int>(stages.size());
    // The threads of a rank follow from the number of all ranks, not from those of one stage.
    threads_ = machine.threads_of(ranks, threads);
    for (const RankView& rank : stages) clocks_.emplace_back(rank, machine, threads_);
    result_.actions.resize(stages.size());
    started_.resize(stages.size());
    runs_.resize(stages.size());
    shown_.resize(stages.size());
    if (!traced_) return;
    for (StageClock& clock : clocks_) clock.keep_times();
    sent_.resize(stages.size());
  }

  PipelineTime run() {
    int steps = 1;
    for (const StageClock& clock : clocks_)
      steps = std::max(steps, steps_to_price(clock.program()));
    while (steps-- > 0) play_step();
    result_.step = now_ - began_;
    for (std::size_t s = 0; s < clocks_.size(); ++s) {
      result_.stages.push_back(clocks_[s].times(result_.step));
      if (!traced_) continue;
      result_.instructions.push_back(clocks_[s].times_on(runs_[s]));
      auto& all = result_.instructions.back();
      all.insert(all.end(), sent_[s].begin(), sent_[s].end());
    }
    return finish();
  }

 private:
  // Plays a step. All stages begin it together, when the last one is done with the step before.
  void play_step() {
    began_ = now_;
    for (std::size_t s = 0; s < clocks_.size(); ++s) {
      clocks_[s].begin_step();
      runs_[s].clear();
      result_.actions[s].clear();
      shown_[s] = 0;
      if (traced_) sent_[s].clear();
    }
    for (std::size_t s = 0; s < clocks_.size(); ++s) start(s);
    while (advance()) {
    }
    for (const StageClock& clock : clocks_) {
      if (!clock.done())
        throw std::logic_error("a stage waits for ever in " + clock.segment().name);
    }
  }

  // Whether all stages have come to the totals: all add to them, and none goes on before the last
  // one has come.
  bool all_meet() const {
    return std::all_of(clocks_.begin(), clocks_.end(),
                       [](const StageClock& c) { return c.done() || c.meets() || c.met(); });
  }

  static std::int64_t message(const StageClock& clock, const StageTransfer& t) {
    return (static_cast<std::int64_t>(t.tag) << 32) + clock.microbatch(t);
  }

  // Begins the stage's next run if the messages that it waits for are there; else the stage stays
  // idle until another one sends them.
  void start(std::size_t s) {
    StageClock& clock = clocks_[s];
    if (busy_[s] || clock.done()) return;
    if (clock.meets() && !all_meet()) return;
    double arrived = 0;
    for (const StageTransfer& t : clock.awaits()) {
      const auto found = messages_.find(message(clock, t));
      if (found == messages_.end()) {
        waiting_[message(clock, t)] = s;
        return;
      }
      arrived = std::max(arrived, found->second);
    }
    for (const StageTransfer& t : clock.awaits()) messages_.erase(message(clock, t));
    started_[s] = now_;
    busy_[s] = true;
    ++computing_;
    const double began = done_, end = began + clock.begin(arrived, now_);
    const std::vector<StageTransfer>& sends = clock.sends();
    for (std::size_t k = 0; k < sends.size(); ++k)
      coming_.push({std::min(began + clock.sent_after(sends[k]), end), s, static_cast<int>(k)});
    coming_.push({end, s, ends_run});
  }

  // Goes to the next moment at which a run ends or sends; false if nothing runs.
  bool advance() {
    throw_if_stopped();
    if (coming_.empty()) return false;
    const double slow = machine_.slowdown(ranks_, threads_, computing_);
    now_ += (coming_.top().done - done_) * slow;
    done_ = coming_.top().done;
    std::vector<std::size_t> next;
    bool meets = false;
    while (!coming_.empty() && coming_.top().done <= done_ + 1e-15) {
      const Moment moment = coming_.top();
      coming_.pop();
      if (moment.send != ends_run) {
        send(moment.stage, clocks_[moment.stage].sends()[static_cast<std::size_t>(moment.send)],
             next);
        continue;
      }
      end(moment.stage);
      next.push_back(moment.stage);
      meets = meets || clocks_[moment.stage].done() || clocks_[moment.stage].meets();
    }
    if (meets) {  // perhaps this is the last stage that others wait for
      for (std::size_t s = 0; s < clocks_.size(); ++s)
        if (clocks_[s].meets()) next.push_back(s);
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    for (std::size_t s : next) start(s);
    return true;
  }

  // Sends a message. `next`: stages that may go on, to which the stage is added that waited for the
  // message.
  void send(std::size_t s, const StageTransfer& t, std::vector<std::size_t>& next) {
    const StageClock& clock = clocks_[s];
    const double seconds = clock.seconds(t);
    if (traced_) {
      const auto& code = clock.segment().code;
      sent_[s].push_back({InstructionTime::Kind::transfer, clock.run().segment,
                          static_cast<int>(t.start - code.data()), clock.microbatch(t),
                          now_ - began_, now_ - began_ + seconds});
    }
    const std::int64_t key = message(clock, t);
    messages_[key] = now_ + seconds;
    if (const auto waits = waiting_.find(key); waits != waiting_.end()) {
      next.push_back(waits->second);
      waiting_.erase(waits);
    }
  }

  void end(std::size_t s) {
    StageClock& clock = clocks_[s];
    busy_[s] = false;
    --computing_;
    runs_[s].emplace_back(started_[s] - began_, now_ - began_);
    if (is_shown(clock.segment())) show(s);
    clock.advance();
  }

  // Adds an action for the run, and for a braid one for each lane.
  void show(std::size_t s) {
    const StageClock& clock = clocks_[s];
    const Segment& segment = clock.segment();
    shown_[s] += now_ - started_[s];
    for (int lane = 0; lane < lanes_of(clock.run()); ++lane) {
      TimedAction action;
      action.rank = action.stage = static_cast<int>(s);
      action.vstage = segment.kind == SegmentKind::finish ? -1 : segment.vstage;
      action.name = action_name(segment, lane);
      action.microbatch = microbatch_of(clock.run(), lane);
      action.start = started_[s] - began_;
      action.end = now_ - began_;
      if (segment.kind == SegmentKind::braid) {
        action.vstage = segment.lanes[static_cast<std::size_t>(lane)].vstage;
        std::tie(action.start, action.end) =
            clock.lane(static_cast<std::size_t>(lane), action.start, action.end);
        action.lane = lane;
        action.lanes = lanes_of(clock.run());
      }
      action.chunk = action.vstage < 0 ? 0 : clock.program().chunk_of(action.vstage);
      result_.actions[s].push_back(std::move(action));
    }
  }

  PipelineTime finish() {
    double idle = 0;
    for (StepTime& stage : result_.stages) {
      // On shared cores a stage takes longer than it would alone, so its parts of the step are
      // stretched.
      if (!machine_.overlaps()) {
        const double busy = shown_[&stage - result_.stages.data()];
        const double own = stage.compute + stage.exposed;
        const double stretch = own > 0 ? std::max(1.0, busy / own) : 1;
        stage.compute *= stretch;
        stage.exposed *= stretch;
        for (auto& [key, transfer] : stage.transfers) {
          transfer.seconds *= stretch;
          transfer.exposed *= stretch;
        }
        stage.idle = std::max(0.0, result_.step - stage.compute - stage.exposed);
      }
      idle += stage.idle;
    }
    result_.bubble =
        result_.step > 0 ? idle / (result_.step * static_cast<double>(result_.stages.size())) : 0;
    return std::move(result_);
  }

  const Machine& machine_;
  int ranks_ = 1, threads_ = 1;  // ranks of a stage; threads of a rank
  const bool traced_;
  // By stage and run: when it began and ended.
  std::vector<std::vector<std::pair<double, double>>> runs_;
  std::vector<std::vector<InstructionTime>> sent_;  // times of sends to other stages, by stage
  std::vector<StageClock> clocks_;
  std::vector<bool> busy_;
  // The work that a stage would have done by now that never waited, in seconds as if it ran alone:
  // all stages that run advance alike.
  double done_ = 0;
  // An event: when `done_` has come to `done`, the stage's run ends, or begins one of its sends.
  static constexpr int ends_run = std::numeric_limits<int>::max();
  struct Moment {
    double done = 0;
    std::size_t stage = 0;
    int send = ends_run;  // number of the send; the end of a run comes after its sends
    friend auto operator<=>(const Moment&, const Moment&) = default;
  };
  std::priority_queue<Moment, std::vector<Moment>, std::greater<>> coming_;
  int computing_ = 0;            // number of stages that are in a run
  std::vector<double> started_;  // when each stage's run began
  // By stage: seconds of runs that are shown.
  std::vector<double> shown_;
  std::unordered_map<std::int64_t, double> messages_;      // when each message arrives
  std::unordered_map<std::int64_t, std::size_t> waiting_;  // the stage that waits for a message
  double now_ = 0, began_ = 0;                             // the clock, and when the step began
  PipelineTime result_;
};

}  // namespace

PipelineTime price_pipeline(const std::vector<RankView>& stages, const Machine& machine,
                            int threads, bool traced) {
  return Simulation(stages, machine, threads, traced).run();
}

bool is_shown(const Segment& segment) {
  return segment.kind != SegmentKind::post && segment.kind != SegmentKind::sent &&
         segment.kind != SegmentKind::begin;
}

std::string action_name(const Segment& segment, int lane) {
  const std::string of = segment.gradient ? " B" : " F";
  switch (segment.kind == SegmentKind::braid ? segment.lanes[static_cast<std::size_t>(lane)].kind
                                             : segment.kind) {
    case SegmentKind::forward:
      return "F";
    case SegmentKind::backward:
      return "B";
    case SegmentKind::dgrad:
      return "I";
    case SegmentKind::wgrad:
      return "W";
    case SegmentKind::post:
      return "post" + of;
    case SegmentKind::receive:
      return "receive" + of;
    case SegmentKind::sent:
      return "sent" + of;
    case SegmentKind::begin:
      return "begin";
    case SegmentKind::gather:
      return "gather";
    case SegmentKind::finish:
      return segment.name;
    case SegmentKind::braid:
      break;
  }
  return "?";
}

}  // namespace mw
