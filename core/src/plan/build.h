// The steps from placements to finished programs: segments, edits of them, timelines, the step's
// end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/activations.h"
#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/passes.h"
#include "meshwright/program.h"
#include "meshwright/strategy.h"
#include "plan/derive.h"
#include "plan/stages.h"

namespace mw {

struct BuildOptions {
  int microbatches = 1;
  Dtype dtype = Dtype::fp32, gradient_dtype = Dtype::fp32, optimizer_dtype = Dtype::fp32,
        reduce_dtype = Dtype::fp32;
  std::shared_ptr<const Optimizer> optimizer;
  bool update_needs_totals = true;
  int threads = 1;
  std::map<Dim, std::vector<Range>> order;
  int document_parts = 1;
  double imbalance = 1;
  bool split = false;  // also segments "dgrad" and "wgrad", for schedules that part them
};

// One program for each stage: segments "forward" and "backward" (and the split ones) of each
// virtual stage, what is sent and received between them, parameters, and one bucket for each set of
// reduction and storage axes. A timeline and passes come next; complete() makes a program runnable.
std::vector<Program> build(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                           const Derived& derived, const Partition& partition,
                           const BuildOptions& options);

// Whether two neighbours of a segment's code must stay in their order. may_swap() also keeps
// transfers of one stream in theirs, which a pass may choose (order_before).
bool depends(const Program& program, const Instruction& first, const Instruction& second);

// Names buckets by number, and those of several stages by their first parameter.
void name_buckets(Program& program);
Instruction of_bucket(Code code, int bucket, const Program& program, Serves serves,
                      const char* phase);

// The flat slots in which a bucket's gradients are summed over a step: the whole gradients, and
// what is kept of their sum where that is no view of them.
std::vector<int> sums_of(const Program& program, int bucket);
// Settles one of the bucket's sums (Code::settle).
Instruction settled(const Program& program, int bucket, int slot);

// Begin, and await, the sum of a bucket's gradient shards over the ranks with the same shard.
std::vector<Instruction> begin_shard_reduction(const Program& program, int bucket);
std::vector<Instruction> end_shard_reduction(const Program& program, int bucket);
// The instructions of the all-gather of a bucket's directions: start and wait.
std::vector<Instruction> gather_directions(const Program& program, int bucket);

// Computes the ops that the rules take in slices, stage by stage: repeats their instructions for
// each slice (Program::slicing). Returns, by op, whether backward recomputes what the op makes
// within a slice. Adds a problem for a rule that takes no op, for ops that two rules take, for
// slices that do not divide, and for ops that cannot be sliced so. To be called first after
// build().
std::vector<bool> slice_ops(std::vector<Program>& programs, const std::vector<SliceRule>& rules,
                            Problems& problems);

// Recomputes activations: copies forward's instructions, under the phase "recompute", into each
// backward segment, before the first instruction that reads what they make. Backward reads the
// copies' slots, so that forward's are not kept. What several blocks of layers read, or an op
// outside of the set makes, is kept. To be called before buckets, passes and completion.
void recompute(Program& program, const RecomputeSet& set);

// What is offloaded of one microbatch, on the stage's first rank.
struct Offloaded {
  int tensors = 0;
  std::int64_t bytes = 0;
};

// Offloads each tensor that a virtual stage's forward makes or receives, and that the backward of
// an op of the set reads (or the op's recomputation). It is copied to the host after forward's last
// use (Code::copy), and back once in each of "backward", "dgrad" and "wgrad" that reads it, as the
// layer of its first reader begins there, or `prefetch` layers earlier. note_releases() then
// releases the slots on the device. Parameters, their views, data and what another virtual stage
// uses too stay. To be called after recompute, before buckets, passes and completion.
Offloaded offload_activations(Program& program, const OffloadSet& set);

// Lays each stage's timeline: the schedule's actions, with sends, receives and their waits placed
// between them. A receive is begun one action ahead; a send's wait stands where something that came
// back shows that the receive has begun, so that it never blocks; if nothing comes back (the last
// gradients), at the end.
void add_timelines(std::vector<Program>& programs, const Partition& partition,
                   const Schedule& schedule);
// Has each stage begin its receives from another stage in the order in which that stage sends,
// however passes and weaves have ordered the sends.
void order_receives(std::vector<Program>& programs);
// Drops the segments that no run of the timeline needs. To be called after the passes, as what they
// decide about buckets is for whatever schedule a step may have.
void drop_unused(Program& program);

// Sets the group of the optimizer to which each parameter of the stages belongs, and
// ProgramParameter::stacked and rows of those that are updated as whole matrices. Throws Error
// (plan, "optimizer.groups").
void set_groups(std::vector<Program>& programs);

// Appends a bucket's update by the ops of its rule. Where that is for whole matrices, every rank
// makes the directions of its own shard, these are gathered until the rank has whole matrices (but
// only those experts that it holds), then each is treated whole and applied to the rank's shard of
// the parameter. Each matrix after the other, so that one is whole at a time; where the bucket lies
// in shards, its directions are gathered together.
void add_updates(Program& program, int bucket, std::vector<Instruction>& code);
// The instructions of a bucket that is updated in host memory (Bucket::updated_on_host()): those
// that copy its reduced gradients to host memory; and those that update it there and copy the
// updated parameters to the device, if they are kept there.
std::vector<Instruction> gradients_to_host(const Program& program, int bucket);
std::vector<Instruction> update_on_host(const Program& program, int bucket);
// The copies that bring a bucket's states and what is updated to the device; add_updates() copies
// them back. There are none where the bucket is updated where it lies.
std::vector<Instruction> bring_to_device(const Program& program, int bucket);

// Whether one run of the timeline alone runs the segment.
bool runs_once(const Program& program, int segment);
// Puts instructions into one run of the timeline: into its segment, or into a copy of that where
// other runs share it.
void insert_in_run(Program& program, std::size_t run, const char* suffix, Insertions& inserts);

// By segment: the indices of the instructions that begin or await a transfer of a bucket. Whoever
// follows reductions through the timeline looks at these alone, as a segment comes up for every
// microbatch.
std::vector<std::vector<int>> transfers_of_buckets(const Program& program);
// By bucket: the last run of the timeline that awaits its reduction, and the index of the
// instruction after those that bring the sum to where it is kept. A bucket whose last reduction no
// run awaits is left out.
std::map<int, std::pair<int, int>> last_sums(const Program& program);
// Places the copies of reduced gradients to host memory, each in the run that has its bucket's sum
// for the last time, right after that. Returns the buckets whose gradients are copied so; those of
// others have their sums at the step's end.
std::set<int> place_gradient_copies(Program& program);
// Has the forward await the parameters that the step before has updated, each bucket's before their
// first use, and make there the updates that the step before has left to it, each one bucket ahead
// of that use. Returns the buckets in the order in which they are to be updated: by their
// parameters' first use, so that what is needed first is gathered first, and then those that no
// forward awaits.
std::vector<int> place_updates(Program& program);

// Call Pass::run, Pass::finish and Pass::rearrange. Throw Error if the pass changes more than it
// declares (Pass::changes).
void run_held(const Pass& pass, Program& program);
void finish_held(const Pass& pass, Program& program);
void rearrange_held(const Pass& pass, Program& program);

// Adds the segments that begin and end the step ("begin"; "reduce", "totals", "update"), places
// overlapped reductions, grants in-place work where nobody reads the old value later, and notes for
// each instruction which slots it releases.
void complete(Program& program, const std::vector<Pass>& passes);

// The weave that interleaves joined works (weave.h), and the strategy that brings it. `weave` may
// be null: the works run one after the other. `seconds`: PlanRequest::seconds.
struct WeaveBy {
  const Weave* weave = nullptr;
  std::function<std::function<double(const Instruction&)>(const Program&)> seconds;
  std::string strategy, place;
};
// Replaces the runs that the timeline joins by one run of a braid. To be called last: a braid
// copies what its lanes' segments have then. The segments stay in the program, for whoever asks for
// one by name. Throws Error (plan) where the weave's order is not valid.
void weave(Program& program, const WeaveBy& by);
// Replaces each run of a braid by runs of its lanes, one after the other.
void unweave(Program& program);

// Derives placements from a draft's rules, parts the layers, builds a program for each stage, makes
// the schedule (again, with what its works take, where it wants that or a memory limit), lays the
// programs along it and runs the draft's passes. Needs the plan's request, mesh, graph and
// microbatches; sets its programs and schedule. Adds problems (plan) instead where something is
// wrong, and to `wrong` those that other ways may mend.
void make_programs(Plan& plan, Draft& draft, Problems& problems, std::vector<WrongWays>& wrong);

}  // namespace mw
