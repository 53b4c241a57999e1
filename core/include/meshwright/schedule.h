// A pipeline schedule as data: the order of actions of each stage. The checker, the simulator, the
// drawing and the engine read the same table. A schedule knows no tensors.
//
// A model's layers are split into *virtual stages*, numbered in model order; a stage holds one or
// more of them, its *chunks*. Round-robin: virtual stage v lies on stage v mod p. V: with two
// chunks, stage i holds i and 2p-1-i (Qi et al. 2024, "Pipeline Parallelism with
// Controllable Memory").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/registration.h"

namespace mw {

// F, B (the whole backward), I (gradient of the input), W (gradient of the weights): B = I then W.
enum class Work : std::uint8_t { forward, backward, dgrad, wgrad };
char letter_of(Work work);  // 'F', 'B', 'I', 'W'

// "2F0": the forward of microbatch 0 through virtual stage 2.
struct Action {
  int vstage = 0;
  Work work = Work::forward;
  int microbatch = 0;
  friend bool operator==(const Action& a, const Action& b) = default;
};
std::string to_string(const Action& action);

struct Schedule {
  std::string name;
  int microbatches = 0;
  std::vector<int> stage_of;               // the stage of each virtual stage
  std::vector<std::vector<Action>> order;  // the actions of each stage, in order
  // For each action of each stage, whether it is in one group with the next action, "0F3+1B1". The
  // actions of a group are neighbours in `order`, and a stage may interleave them. Empty: no
  // groups.
  std::vector<std::vector<bool>> joined;

  int stages() const { return static_cast<int>(order.size()); }
  int vstages() const { return static_cast<int>(stage_of.size()); }
  // The virtual stages of a stage, in model order, and the index of a virtual stage among those of
  // its stage.
  std::vector<int> chunks(int stage) const;
  int chunk_of(int vstage) const;
  bool splits() const;  // whether any backward is split into I and W
  bool joins(int stage,
             std::size_t step) const;      // whether an action is in one group with the next one
  bool grouped() const;                    // whether there are any groups
  void join(int stage, std::size_t step);  // puts an action into one group with the next one
  // One past the last action of the group that begins with `first`; first + 1 for an action without
  // a group.
  std::size_t group_end(int stage, std::size_t first) const;
};
// "0F3+1B1": the group of the stage's actions from `first` on.
std::string group_text(const Schedule& schedule, int stage, std::size_t first);

// Times of a virtual stage's actions on one microbatch, in seconds (or any unit). B takes dgrad +
// wgrad.
struct WorkTimes {
  double forward = 1, dgrad = 1, wgrad = 1;
  double send = 0;  // from the end of an action until a neighbour stage may use its result
};

// Activation memory of a virtual stage for one microbatch, in bytes (or any unit): held after F,
// and still held for W after I. Nothing is held after B and W.
struct WorkBytes {
  double forward = 1, dgrad = 1;
};

struct ScheduleRequest {
  int stages = 1, chunks = 1, microbatches = 1;
  std::vector<WorkTimes> times;  // one for all, or one for each virtual stage; empty: all 1, send 0
  std::vector<WorkBytes> bytes;  // one for all, or one for each virtual stage; empty: all 1
  double memory_limit = 0;       // limit of a stage's activations, in the unit of `bytes`; 0: none
  double joint = 1;  // time of a group of actions, divided by the sum of their separate times

  const WorkTimes& times_of(int vstage) const;
  const WorkBytes& bytes_of(int vstage) const;
};

class Scheduler : public Registered {
 public:
  // The only number of chunks of each stage that the scheduler supports; 0: any number.
  virtual int fixed_chunks() const { return 0; }
  // For a scheduler that needs several chunks: the name of the scheduler to which it is equal with
  // one chunk for each stage, "1f1b". A plan that gives no number of chunks is then refused. Empty:
  // one chunk is fine.
  virtual std::string of_one_chunk() const { return ""; }
  // The stage of each virtual stage; by default round-robin.
  virtual std::vector<int> placement(int stages, int chunks) const;
  // Makes a schedule, whose name is that of the scheduler, for any number of microbatches. Throws
  // Error (plan), with the numbers and the nearest possible ones, if it cannot meet the request: a
  // number of chunks, or a memory limit that is below what the order or one microbatch needs. The
  // caller checks the result. Called by one thread at a time, several times for a plan.
  virtual Schedule make(const ScheduleRequest& request) const = 0;
};

template <>
struct KindOf<Scheduler> {
  static constexpr Kind kind = Kind::scheduler;
  using Make = std::unique_ptr<Scheduler>(const Values& values);
};
template <class Class>
constexpr Registration scheduler(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Scheduler, Class>(name, doc);
}

std::vector<int> round_robin_placement(int stages, int chunks);
std::vector<int> v_placement(int stages);

// Checks a schedule, and adds a problem (plan) for every fault: other numbers of stages or
// microbatches than in the request; an action that is missing, repeated, on the wrong stage, or
// before an action of the same stage that it needs; a cycle of stages that wait for each other
// (with each action of the cycle); activations above `memory_limit`. Each problem names stage, step
// (from 0, in the stage's order) and action. Actions of a group must not need each other, not even
// by way of other stages, and their memory counts together. Only a few faults of one kind are
// added; a kind that makes later checks meaningless ends the check.
void check(const Schedule& schedule, const ScheduleRequest& request, Problems& problems);

// An action, or a transfer, with its times in seconds since the step began, simulated or measured.
struct TimedAction {
  int rank = 0, stage = 0, chunk = 0;
  std::string name;  // "F", "B", "I", "W", "send F", "receive B", "finish", ...
  int microbatch = -1;
  double start = 0, end = 0;
  int vstage = -1;
  int lane = 0, lanes = 1;  // index of the action in its group, and number of actions in the group
};

struct ScheduleTimeline {
  std::vector<std::vector<TimedAction>> stages;  // for each stage, its actions in order
  double makespan = 0;                           // time from the first start to the last end
  std::vector<double> busy;                      // for each stage, the total time of its actions
  // For each stage, the idle time between its first start and its last end, divided by the
  // makespan.
  std::vector<double> inner_idle;
  // For each stage, the highest activation memory: by WorkBytes, and in microbatches (the number of
  // F's that are not yet followed by B or W, divided by the number of chunks).
  std::vector<double> bytes_peak, microbatches_peak;
  // The idle share of all stages: 1 - sum of busy / (stages * makespan). With equal times, GPipe
  // and 1F1B have (p-1)/(m+p-1).
  double bubble = 0;
};

// Simulates the schedule with the times of the request. A group begins when all of its actions can,
// and all of them end together. The schedule must have passed check(). Throws Error (plan) at a
// deadlock.
ScheduleTimeline simulate(const Schedule& schedule, const ScheduleRequest& request);

// Read and write PyTorch's CSV form of compute actions: a row for each stage, with cells such as
// 2F0, 1I3, 1W3, 3B1. An empty cell is an idle step, and "(0F5;7B1)OVERLAP_F_B" is a group. A group
// of three actions is "(0F5;7I1;7W0)OVERLAP_F_B", although PyTorch's own form has only two. The
// placement follows from the cells. The reader throws Error (plan), with row, cell and the fault.
Schedule schedule_from_csv(const std::string& text, const std::string& name);
std::string to_csv(const Schedule& schedule);
// Read and write the text form: a line for each stage, spaces between actions, and groups as sums:
// "0F0 0F1+1B0 0B1". Both readers accept both forms of a group.
Schedule schedule_from_text(const std::string& text, const std::string& name);
std::string to_text(const Schedule& schedule);

// Draws a timeline in characters: a row for each stage, time to the right, at most `columns` wide.
// `colour`: whether to use escape codes for colours.
std::string draw_text(const Schedule& schedule, const ScheduleTimeline& timeline, int columns,
                      bool colour);
// Draws a timeline as a stand-alone SVG. Rows are stages, or ranks of a measured timeline. `title`
// stands above the grid, `caption` below it.
std::string draw_svg(const std::vector<std::vector<TimedAction>>& rows,
                     const std::vector<std::string>& row_names, const std::string& title,
                     const std::string& caption);

}  // namespace mw
