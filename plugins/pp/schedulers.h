// The schedulers of this plugin, each in a file of its own, and their registrations; and the
// schedule that a script's function returns.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "make.h"
#include "meshwright/json.h"

namespace pp {

// Fill `schedule.order` with orders that follow from the counts alone.
void fill_gpipe(const ScheduleRequest& request, bool pair, Schedule& schedule);
void fill_looped_bfs(const ScheduleRequest& request, bool pair, Schedule& schedule);
void fill_1f1b(const ScheduleRequest& request, bool pair, Schedule& schedule);
void fill_interleaved(const ScheduleRequest& request, bool pair, Schedule& schedule);
void fill_dualpipev(const ScheduleRequest& request, bool pair, Schedule& schedule);

// Schedulers without groups of actions.
class GPipe final : public FixedScheduler {
 public:
  GPipe() : FixedScheduler(fill_gpipe, 1, false, false) {}
};
class LoopedBreadthFirst final : public FixedScheduler {
 public:
  LoopedBreadthFirst() : FixedScheduler(fill_looped_bfs, 0, false, false) {}
  std::string of_one_chunk() const override { return "gpipe"; }
};

// Schedulers that join an F and a B into a group, if asked to.
class OneForwardOneBackward final : public FixedScheduler {
 public:
  static Options options() {
    return pair_option(
        "an F and the B after it form a group, which the stage may interleave: a stage runs ahead "
        "by one more F for each stage behind it, and stores their activations",
        false);
  }
  explicit OneForwardOneBackward(const Values& values)
      : FixedScheduler(fill_1f1b, 1, false, pairs(values, false)) {}
};
class Interleaved final : public FixedScheduler {
 public:
  static Options options() {
    return pair_option(
        "an F and the B after it form a group, which the stage may interleave, and the "
        "activations of both are stored at once",
        false);
  }
  explicit Interleaved(const Values& values)
      : FixedScheduler(fill_interleaved, 0, false, pairs(values, false)) {}
  std::string of_one_chunk() const override { return "1f1b"; }
};
class DualPipeV final : public FixedScheduler {
 public:
  static Options options() {
    return pair_option(
        "an F of one chunk and a B of the other form a group, which the stage may interleave; "
        "false: B follows F",
        true);
  }
  explicit DualPipeV(const Values& values)
      : FixedScheduler(fill_dualpipev, 2, true, pairs(values, true)) {}
};

// Schedulers that place W's by the request's times and keep to its memory limit. Without a limit,
// zb-h1 keeps to the memory of 1F1B (p microbatches), zb-h2 to that of 2p - 1 microbatches, zbv to
// that of p.
class ZeroBubble : public Scheduler {
 public:
  static Options options() {
    return pair_option(
        "each W forms a group with a neighbouring action that does not need it, and the stage may "
        "interleave them",
        false);
  }
  explicit ZeroBubble(const Values& values) : pair_(pairs(values, false)) {}
  Schedule make(const ScheduleRequest& request) const override;

 private:
  virtual Schedule unpaired(const ScheduleRequest& request) const = 0;
  bool pair_;
};

class ZeroBubbleH : public ZeroBubble {
 public:
  ZeroBubbleH(const Values& values, bool doubled) : ZeroBubble(values), doubled_(doubled) {}
  int fixed_chunks() const override { return 1; }

 private:
  Schedule unpaired(const ScheduleRequest& request) const override;
  bool doubled_;
};
class ZeroBubbleH1 final : public ZeroBubbleH {
 public:
  explicit ZeroBubbleH1(const Values& values) : ZeroBubbleH(values, false) {}
};
class ZeroBubbleH2 final : public ZeroBubbleH {
 public:
  explicit ZeroBubbleH2(const Values& values) : ZeroBubbleH(values, true) {}
};

class ZeroBubbleInV : public ZeroBubble {
 public:
  using ZeroBubble::ZeroBubble;
  int fixed_chunks() const override { return 2; }
  std::vector<int> placement(int stages, int) const override { return v_placement(stages); }
};
class ZeroBubbleV final : public ZeroBubbleInV {
 public:
  explicit ZeroBubbleV(const Values& values) : ZeroBubbleInV(values) {}

 private:
  Schedule unpaired(const ScheduleRequest& request) const override;
};

// Two chunks in a V, in less memory than 1F1B's: without a limit, v-half keeps to a half of it, and
// v-min to as little as lets every stage work all the time between the first and the last
// microbatches.
class ThriftyV : public ZeroBubbleInV {
 public:
  ThriftyV(const Values& values, bool least) : ZeroBubbleInV(values), least_(least) {}

 private:
  Schedule unpaired(const ScheduleRequest& request) const override;
  bool least_;
};
class VHalf final : public ThriftyV {
 public:
  explicit VHalf(const Values& values) : ThriftyV(values, false) {}
};
class VMin final : public ThriftyV {
 public:
  explicit VMin(const Values& values) : ThriftyV(values, true) {}
};

inline constexpr std::array<Registration, 10> schedulers = {
    scheduler<GPipe>("gpipe", "all forwards, then all backwards (Huang et al. 2019, GPipe)"),
    scheduler<OneForwardOneBackward>("1f1b",
                                     "one forward, one backward, at most p - i microbatches stored "
                                     "(Narayanan et al. 2021)"),
    scheduler<Interleaved>(
        "interleaved", "1F1B over several chunks a stage, bubble / chunks (Narayanan et al. 2021)"),
    scheduler<LoopedBreadthFirst>("looped-bfs",
                                  "all microbatches through chunk after chunk (Lamy-Poirier 2022)"),
    scheduler<ZeroBubbleH1>(
        "zb-h1", "1F1B with W's that fill a third of its bubble, in its memory (Qi et al. 2023)"),
    scheduler<ZeroBubbleH2>(
        "zb-h2", "no bubble beyond warm-up, in about twice 1F1B's memory (Qi et al. 2023)"),
    scheduler<ZeroBubbleV>(
        "zbv", "two chunks in a V, no bubble beyond warm-up, in 1F1B's memory (Qi et al. 2024)"),
    scheduler<VHalf>("v-half", "two chunks in a V, in half of 1F1B's memory (Qi et al. 2024)"),
    scheduler<VMin>("v-min", "two chunks in a V, in a third of 1F1B's memory (Qi et al. 2024)"),
    scheduler<DualPipeV>(
        "dualpipev", "DualPipe cut in half: forwards and backwards cross in a V (DeepSeek 2025)"),
};

// The argument of a script's schedule function: { stages, chunks, microbatches, times = {{ forward,
// dgrad, wgrad }} }, and with a memory limit { memory, bytes = {{ forward, dgrad }} }. The lists
// have an entry for each virtual stage. Virtual stages and microbatches count from 0 as in "2F0".
Json describe_request(const ScheduleRequest& request);

// The schedule that a script's function returned: a list with one entry for each stage, "0F0 0F1
// 0B0" or {"0F0", "0F1"}; or one text with a line for each stage. Throws Error (plan) that says
// what is wrong and where.
Schedule schedule_from_script(const Json& returned, const ScheduleRequest& request,
                              const std::string& name);

}  // namespace pp
