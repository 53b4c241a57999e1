// Passes edit the program that follows from the rules; strategies add them (Draft::add_pass). This
// file declares the class Pass, then the core's own passes, then functions from which plugins build
// passes. With program.h this is the third layer of the SDK; a strategy that consists of rules
// needs neither.
//
// A pass in a plugin's Strategy::edit, which puts all optimizer state into host memory:
//
//   draft.add_pass({"state on the host",
//                   [](mw::Program& program) {
//                     for (mw::Bucket& bucket : program.buckets)
//                       bucket.offload = mw::Offload::optimizer;
//                   },
//                   mw::Pass::storage});
//
// Examples among the shipped plugins: the pass of tp (tp.cpp) moves instructions, and the passes of
// zero (zero.cpp) use most functions of this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/outer_steps.h"
#include "meshwright/program.h"

namespace mw {

class ReductionHook;
struct BucketShape;

// A pass: an edit of the program of each stage. The planner calls `run` after recompute and
// offload, once for each stage's program, in the script's thread, and again for each plan that is
// made from the same strategies (for other steps, in float64 for `verify`, in a sweep). So `run`
// must keep no state between calls, and must edit only the program. Its result must depend only on
// the program and the strategy's options. Its decisions about buckets must be the same for every
// timeline, because steps with different schedules share a rank's storage, and the same on all
// stages that share a bucket.
//
// After the passes the planner adds the step's end (the remaining reductions, the norm, the
// update), allows in-place work and adds releases. A pass need not care about slots that live
// within one microbatch.
//
// To refuse the plan, throw Error. Any other exception refuses it too, with a message that names
// the plugin.
struct Pass {
  // Passes run in this order, whichever strategies add them: first those that decide what buckets
  // hold, then how buckets are reduced, then how they are stored, then all others. Within one
  // order, they run as the script lists their strategies.
  enum Order : std::uint8_t { buckets, reductions, storage, instructions };
  std::string name;  // for messages: "bucket gradients"
  // The plan is refused if this, `finish` and `rearrange` are all empty.
  std::function<void(Program&)> run;
  Order order = instructions;
  // The axis for which the pass is, if any. The plan is refused if the mesh lacks the axis, or, for
  // a pass of order `reductions` or `storage`, if no gradient is a sum over the axis.
  std::string axis = {};
  std::string strategy = {}, place = {};  // the pass's strategy, for messages; set by add_pass
  // Returns a sentence for the printed plan about the effect of the pass, or "". Called once all
  // passes have run, with the programs of all stages. Empty: no sentence.
  std::function<std::string(const std::vector<Program>&)> note = {};
  // What the pass may change. A pass that changes more is refused, with the instruction at fault.
  enum class Changes : std::uint8_t {
    // The order of instructions within their segments, and the streams of transfers. All results
    // stay the same bit for bit. Two instructions may change their order only if their slots allow
    // it (may_swap).
    order,
    // Also when transfers are made, where tensors are kept, and the segments of instructions. Each
    // op is computed as often as before, in the same dtype, and sums have the same terms.
    placement,
    numerics,  // any change, also of results
  };
  Changes changes = Changes::numerics;
  // Called at the very end, in the order of the passes, when every instruction of the step has its
  // place. It may change only the order of instructions, whatever `changes` says. Empty: nothing.
  std::function<void(Program&)> rearrange = {};
  // Called once all passes have run and all buckets have flat slots, in the order of the passes, to
  // place instructions by the runs of the timeline. A reduction of sharded gradients that it
  // begins, and that no run awaits, is awaited at the end of the step. Empty: nothing.
  std::function<void(Program&)> finish = {};
};

// The core's own passes, which several strategies use, follow.
//
// Splits the buckets so that none exceeds `bytes` of gradients (a larger parameter is a bucket of
// its own), in the order in which gradients become ready in backward.
Pass bucket_gradients(std::int64_t bytes);
// Starts each bucket's reduction inside the last segment run that adds to its gradients, as soon as
// the last gradient is ready.
Pass overlap_gradient_reduction();
// Reduces the buckets that are reduced over `axis` in every microbatch. Buckets that several stages
// share are still reduced after the last microbatch, because the stages add to them at different
// times.
Pass reduce_each_microbatch(const std::string& axis);
// Gives each bucket that is reduced over `axis` the hook that `choose` returns (reduction_hook.h);
// null: it leaves the bucket as it is. `choose` is called when the plan is made, for each such
// bucket of each stage, with the shape on the stage's first rank. All stages that share a bucket
// must get the same hook, so the choice must depend on the bucket alone. Throws Error if another
// pass has chosen another hook for the bucket. `who`: the hook in words, for a note of the plan;
// empty: no note.
Pass hook_reductions(const std::string& axis,
                     std::function<std::shared_ptr<const ReductionHook>(const BucketShape&)> choose,
                     std::string who = "");

// Lets replicas of the model differ along `axis` (outer_steps.h): gradients are no longer summed
// over it, and outer steps bring the replicas together. `steps`: all but `atoms` and `rule`, which
// the pass sets. Refuses the plan if another pass has done so, and offload (make_flat_slots).
Pass outer_steps(const std::string& axis, OuterSteps steps);

// The functions for writing passes follow. They must be called in the thread that runs the pass.

// The indices of the first and the last instruction of a segment that use a group of slots.
struct Span {
  int group = -1, first = -1, last = -1;
};
// The spans of all groups that a segment uses, in the order of first use. `group_of`: the group of
// each slot; other slots are ignored. A slot counts by its own index, not by that of the slot whose
// alias it is.
std::vector<Span> spans(const Segment& segment, const std::map<int, int>& group_of);

// Collects instructions to insert into a segment. Places are indices into the segment's code before
// into() is called.
class Insertions {
 public:
  // Adds instructions before the instruction at `place`; at the end, if `place` is the number of
  // instructions. Instructions for the same place keep the order of the calls.
  void before(int place, Instruction instruction);
  void before(int place, std::vector<Instruction> code);
  // Inserts all collected instructions, and forgets them. Throws std::out_of_range, and changes
  // nothing, if the segment has no such place.
  void into(Segment& segment);

 private:
  void check(const Segment& segment) const;
  std::multimap<int, std::vector<Instruction>> list_;
};

// Appends a copy of a segment with the insertions, under a unique name such as "backward.last", and
// returns its index. The caller then sets SegmentRun::segment of the runs that are to use the copy.
int add_copy(Program& program, int segment, const std::string& suffix, Insertions& inserts);

// Whether two neighbouring instructions may change places, so that all results stay the same bit
// for bit: neither writes, begins to fill or releases a slot that the other one uses, and they are
// not transfers whose order is fixed, such as two on one stream. Two parameters' slots are
// different storages, although they are views of one flat slot.
bool may_swap(const Program& program, const Instruction& first, const Instruction& second);
// The last, or the first, place to which the instruction at `at` may move by swaps with neighbours
// (may_swap), up to `limit` for latest() and down to `limit` for earliest(). `at` if it may not
// move.
std::size_t latest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                   std::size_t limit);
std::size_t earliest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                     std::size_t limit);
// Moves the instruction at `from` toward `to`, past neighbours for which `over` is true (empty:
// all) and with which it may swap, as far as possible. Returns its new index.
std::size_t moved(const Program& program, std::vector<Instruction>& code, std::size_t from,
                  std::size_t to, const std::function<bool(const Instruction&)>& over = {});
// The set of instructions that order_before() moves, of the two that it is given.
enum class Moves : std::uint8_t {
  first,  // the first set moves up, with the instructions on which it depends
  then,   // the second set moves down, with the instructions that depend on it
};
// Reorders the code so that all instructions of `first` stand before all of `then`; both are lists
// of ascending indices. If dataflow forbids this, it changes nothing and returns the pair that must
// keep its order, as indices of `then` and of `first`; otherwise it returns {-1, -1}. `places`
// receives the old index of each instruction in the new order.
std::pair<int, int> order_before(const Program& program, std::vector<Instruction>& code,
                                 const std::vector<std::size_t>& first,
                                 const std::vector<std::size_t>& then, Moves moves,
                                 std::vector<std::size_t>& places);
// Returns the index of the stream of that name (Program::streams), which is added if there is none.
int stream_named(Program& program, const std::string& name);
// Moves the instruction at `from` to index `to`, without checks. Results stay the same if `to` is a
// place from latest() or earliest().
void move_to(std::vector<Instruction>& code, std::size_t from, std::size_t to);

// Appends a slot and returns its index. The call invalidates references into Program::slots.
int add_slot(Program& program, Slot slot);

// Splits each bucket by the segments that write its gradients, so that each segment can reduce its
// own bucket once, and, if `by_layer`, also by layer. Buckets that several stages share are not
// split. No bucket may have flat slots yet. All buckets get new names.
void split_buckets(Program& program, bool by_layer);

// Makes the flat slots (Bucket::flat) of all buckets that have none, according to the buckets'
// fields, and makes the slots of parameters and gradients views of them. The fields must not change
// afterwards. A pass calls this if it needs flat slots; otherwise the planner does after the last
// pass.
void make_flat_slots(Program& program);

// The next four functions return instructions for a pass to insert. The bucket, given as an index
// into Program::buckets, must have its flat slots.
//
// Begins the reduction of a bucket's gradients, to which all terms of this rank must have been
// added, over the ranks of Bucket::reduce_atoms. If the bucket is sharded, only over
// Bucket::shard_atoms; the planner adds the reduction over the other atoms once, at the end of the
// step. No instruction may write the gradients until the reduction is awaited.
std::vector<Instruction> begin_reduction(const Program& program, int bucket);
// Awaits the reduction, and brings the sum to the slot that keeps it. For sharded gradients the sum
// is added to that slot, and the whole gradients are released, so that the next write begins them
// anew.
std::vector<Instruction> end_reduction(const Program& program, int bucket);
// Begin, and await, the all-gather of sharded parameters; a shard in host memory is first copied to
// the device. The parameters may be read between the wait and the release of
// Bucket::flat.parameters (Instruction::release). Without a release they stay until the end of the
// step; if several segment runs await such a gather, their waits need Instruction::again. `phase`:
// the phase for the ledger, "forward" or "backward", as a string literal.
std::vector<Instruction> begin_gather(const Program& program, int bucket, const char* phase);
Instruction end_gather(const Program& program, int bucket, const char* phase);

}  // namespace mw
