// A pipeline schedule as data: which stage computes what, in which order. The checker, the
// simulator, the drawing and the engine read the same table. It knows no tensors.
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
  std::vector<int> stage_of;               // of each virtual stage
  std::vector<std::vector<Action>> order;  // of each stage
  // Whether an action is of one group with the next, "0F3+1B1", for each action of each stage. A
  // group's works stand one after the other in `order`, and a stage may interleave them. Empty: no
  // groups.
  std::vector<std::vector<bool>> joined;

  int stages() const { return static_cast<int>(order.size()); }
  int vstages() const { return static_cast<int>(stage_of.size()); }
  // The virtual stages of a stage, in model order, and a virtual stage's index among those
  // of its stage.
  std::vector<int> chunks(int stage) const;
  int chunk_of(int vstage) const;
  bool splits() const;  // whether some backward is split into I and W
  bool joins(int stage,
             std::size_t step) const;      // whether the action is of one group with the next
  bool grouped() const;                    // whether any is
  void join(int stage, std::size_t step);  // the action with the next
  // One past the last action of the group that begins with `first`; that of a work by itself ends
  // right behind it.
  std::size_t group_end(int stage, std::size_t first) const;
};
// "0F3+1B1": the group of the stage's actions from `first` on.
std::string group_text(const Schedule& schedule, int stage, std::size_t first);

// Seconds (or any unit) of a virtual stage's work on one microbatch. B takes dgrad + wgrad.
struct WorkTimes {
  double forward = 1, dgrad = 1, wgrad = 1;
  double send = 0;  // from the end of a work here until a neighbour stage may use its result
};

// Activation memory of a virtual stage and one microbatch, in bytes (or any unit): what F leaves,
// and what of it I still leaves for W. B and W leave nothing.
struct WorkBytes {
  double forward = 1, dgrad = 1;
};

struct ScheduleRequest {
  int stages = 1, chunks = 1, microbatches = 1;
  std::vector<WorkTimes> times;  // one for all, or one for each virtual stage; empty: all 1, send 0
  std::vector<WorkBytes> bytes;  // likewise
  double memory_limit = 0;       // of the activations of a stage, in the unit of `bytes`; 0: none
  double joint = 1;  // what the works of a group take, over the sum of what each takes by itself

  const WorkTimes& times_of(int vstage) const;
  const WorkBytes& bytes_of(int vstage) const;
};

class Scheduler : public Registered {
 public:
  // Chunks of each stage: the only number that will do, or 0 if any will.
  virtual int fixed_chunks() const { return 0; }
  // The name of what a schedule for several chunks is with one chunk of each stage, "1f1b", so that
  // nobody gets that for want of a number of chunks. Empty: it needs no chunks.
  virtual std::string of_one_chunk() const { return ""; }
  // The stage of each virtual stage.
  virtual std::vector<int> placement(int stages, int chunks) const;  // round-robin
  // The schedule's name is the scheduler's; any number of microbatches will do. Throws Error (plan)
  // if the request cannot be met (chunks, a limit that the order exceeds or that is below what one
  // microbatch takes), with the numbers and the nearest that can. Whoever asks checks what is
  // returned. Called by one thread at a time, several times for a plan.
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

// Adds a problem (plan) for every fault: other stages or microbatches than the request's, a work
// missing or done twice, on the wrong stage, before what it needs on the same stage, a cycle of
// stages that wait for each other (each action of it named), activations above `memory_limit`. Each
// names stage, step (from 0, in the stage's order) and action. Works of a group must need nothing
// of each other, also by way of other stages, and a stage holds what all of them hold. Not more
// than a few of a kind; a kind that hides what follows ends the check.
void check(const Schedule& schedule, const ScheduleRequest& request, Problems& problems);

// One work, or one transfer, with its times in seconds since the step began. Simulated and measured
// timelines are lists of these.
struct TimedAction {
  int rank = 0, stage = 0, chunk = 0;
  std::string name;  // "F", "B", "I", "W", "send F", "receive B", "finish", ...
  int microbatch = -1;
  double start = 0, end = 0;
  int vstage = -1;
  int lane = 0, lanes = 1;  // which work of a group, and how many works the group has
};

struct ScheduleTimeline {
  std::vector<std::vector<TimedAction>> stages;  // one for each action, in the stage's order
  double makespan = 0;                           // from the first start to the last end
  std::vector<double> busy;                      // of each stage: sum of its works
  // How long each stage is idle between its first start and its last end, over the makespan.
  std::vector<double> inner_idle;
  // Each stage's highest activation memory, by WorkBytes; and counted in F's not yet followed by B
  // or W, over chunks: with c chunks, c of them are a microbatch of the whole stage.
  std::vector<double> bytes_peak, microbatches_peak;
  // Idle of all stages over their whole time: 1 - sum of busy / (stages * makespan). For equal
  // times GPipe and 1F1B give (p-1)/(m+p-1).
  double bubble = 0;
};

// Runs the schedule with these times. A group begins when all of its works can, and all of them are
// over when the group is. The schedule must have passed check(). Throws Error (plan) at a deadlock.
ScheduleTimeline simulate(const Schedule& schedule, const ScheduleRequest& request);

// PyTorch's published form of compute actions: a row for each stage, cells such as 2F0, 1I3, 1W3,
// 3B1; an empty cell is an idle step and "(0F5;7B1)OVERLAP_F_B" is a group. A group of three works
// is written and read alike, "(0F5;7I1;7W0)OVERLAP_F_B", though PyTorch's own has two. Throws Error
// (plan) naming row, cell and what is wrong. The placement follows from the cells.
Schedule schedule_from_csv(const std::string& text, const std::string& name);
std::string to_csv(const Schedule& schedule);
// The same without commas, a line for each stage, and groups as sums: "0F0 0F1+1B0 0B1". Both
// readers take both forms of a group.
Schedule schedule_from_text(const std::string& text, const std::string& name);
std::string to_text(const Schedule& schedule);

// Draws a grid in characters (one row a stage, time to the right, at most `columns` wide), with
// colours by escape codes if `colour`; draw_svg draws the same as a stand-alone SVG.
std::string draw_text(const Schedule& schedule, const ScheduleTimeline& timeline, int columns,
                      bool colour);
// Rows are stages or, for measured timelines, ranks. `title` and a caption under the grid.
std::string draw_svg(const std::vector<std::vector<TimedAction>>& rows,
                     const std::vector<std::string>& row_names, const std::string& title,
                     const std::string& caption);

}  // namespace mw
