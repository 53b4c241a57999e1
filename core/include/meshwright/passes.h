// Passes: edits of a derived program, for strategies to add (Draft::add_pass). First what a pass
// is, then the core's own, then the verbs that passes of one's own are made of. With program.h this
// is the third layer of the SDK; a strategy that is rules alone needs neither.
//
// A pass of one's own, in Strategy::edit, which has all optimizer state lie in host memory:
//
//   draft.add_pass({"state on the host",
//                   [](mw::Program& program) {
//                     for (mw::Bucket& bucket : program.buckets)
//                       bucket.offload = mw::Offload::optimizer;
//                   },
//                   mw::Pass::storage});
//
// Among the plugins that ship, tp's (tp.cpp) moves instructions, and zero's (zero.cpp)
// uses most of the verbs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/program.h"

namespace mw {

class ReductionHook;
struct BucketShape;

// Called when a plan is made, after recompute and offload: once for each stage's program, in the
// script's thread, and again for each plan that is made of the same strategies (of other steps, in
// float64 for `verify`, of a sweep). So `run` keeps nothing from call to call and edits nothing but
// the program, which is the planner's; what it leaves must follow from the program and the
// strategy's options alone. What it decides about buckets must be the same for every timeline, as
// steps with different schedules share a rank's storage, and for buckets of several stages the same
// on all of them.
//
// After the passes the planner adds the step's end (what is left to reduce, the norm, the update),
// grants in-place work and places releases, by the uses that it then finds: a pass need do nothing
// about slots that come and go within a microbatch.
//
// To refuse the plan, throw Error; whatever else is thrown refuses it too, in the plugin's name.
struct Pass {
  // Whichever strategy brings a pass, those that decide what buckets hold run before those that
  // decide how they are reduced, then those that decide how they are stored, then the others.
  // Within one order they run as the script lists their strategies.
  enum Order : std::uint8_t { buckets, reductions, storage, instructions };
  std::string name;                   // for messages: "bucket gradients"
  std::function<void(Program&)> run;  // empty: the plan is refused
  Order order = instructions;
  // The axis that it works on, if it is for one; the plan is refused where the mesh lacks it. One
  // for reductions or storage is refused where no gradient is a sum over that axis.
  std::string axis = {};
  std::string strategy = {}, place = {};  // of who brings it, for messages; set by Draft::add_pass
  // A sentence for the printed plan about what came of the pass, or "". Asked once all passes have
  // run, for the programs of all stages; empty: there is nothing to say.
  std::function<std::string(const std::vector<Program>&)> note = {};
  // What the pass may change: a pass that changes more is refused, with the instruction.
  enum class Changes : std::uint8_t {
    // The order of instructions within their segments, and the streams of transfers: all numbers
    // stay the same bit for bit. Each change of two instructions' order must be one that their
    // slots allow (may_swap).
    order,
    // Also when transfers are made, what is kept where, and in which segment: each op is still
    // computed as often, in the same dtype, and sums are made of the same parts.
    placement,
    numerics,  // anything
  };
  Changes changes = Changes::numerics;
  // Called at last, in the order of the passes, when every instruction of the step has its place:
  // for changes of order alone, whatever `changes` says. Empty: there is nothing to do.
  std::function<void(Program&)> rearrange = {};
  // Called once all passes have run and all buckets have their flat slots, in the order of the
  // passes: for what is placed by the timeline's runs. A reduction that it begins, of gradients
  // kept as shards, and that no run awaits is awaited at the end of the step. Empty: there is
  // nothing to do.
  std::function<void(Program&)> finish = {};
};

// The core's own passes, which several forms use, follow. This one splits the buckets so that none
// exceeds `bytes` of gradients (a larger parameter stands alone), in the order in which gradients
// become ready in backward.
Pass bucket_gradients(std::int64_t bytes);
// Starts each bucket's reduction inside the last run of a segment that adds to its gradients, as
// soon as the last one is there.
Pass overlap_gradient_reduction();
// Reduces the buckets that are reduced over `axis` in every microbatch. Those that several stages
// share are still reduced after the last, as the stages add to them at different times.
Pass reduce_each_microbatch(const std::string& axis);
// Gives a hook (reduction_hook.h), or null for a plain all-reduce, to each bucket that is reduced
// over `axis`. Called when the plan is made, for each such bucket of each stage, with the shape on
// the stage's first rank. Where several stages share a bucket, they must get the same: let the
// choice follow from the bucket alone. Gradients that are kept as shards cannot have one (the plan
// is refused).
Pass hook_reductions(
    const std::string& axis,
    std::function<std::shared_ptr<const ReductionHook>(const BucketShape&)> choose);

// What passes of one's own are made of follows; all of it is for the thread that runs the pass.

// The first and the last of a segment's instructions that use a group of slots.
struct Span {
  int group = -1, first = -1, last = -1;
};
// The groups that a segment uses, by first use. `group_of`: of slots; others are left out. A slot
// counts by its own number, not by what it is an alias of.
std::vector<Span> spans(const Segment& segment, const std::map<int, int>& group_of);

// What is to be put into a segment. Places are indices into its code as it is before into().
class Insertions {
 public:
  // Before the instruction at `place`; at the end where that is the number of instructions. What is
  // given for one place stands there in the order given.
  void before(int place, Instruction instruction);
  void before(int place, std::vector<Instruction> code);
  // Puts all of it in, and has nothing more to put. Throws std::out_of_range, and changes nothing,
  // if the segment has no such place.
  void into(Segment& segment);

 private:
  void check(const Segment& segment) const;
  std::multimap<int, std::vector<Instruction>> list_;
};

// Appends a copy of a segment with what is to be inserted, under a name that no other has, such as
// "backward.last"; its index. Runs of the timeline that are to differ from others are pointed at
// it.
int add_copy(Program& program, int segment, const std::string& suffix, Insertions& inserts);

// Whether two neighbours of a segment's code may change places: neither writes, begins to fill or
// lets go of what the other one uses, and what both send over the same ranks stays in order. The
// numbers are then the same bit for bit, whoever made the two. Two parameters' slots are two
// storages, though they are views of one flat slot.
bool may_swap(const Program& program, const Instruction& first, const Instruction& second);
// How far the instruction at `at` may move by swapping with neighbours (may_swap): latest() looks
// up to `limit`, earliest() down to it. `at` itself where it may not move.
std::size_t latest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                   std::size_t limit);
std::size_t earliest(const Program& program, const std::vector<Instruction>& code, std::size_t at,
                     std::size_t limit);
// Moves the instruction at `from` toward `to`, past the neighbours that `over` takes (empty: all)
// and with which it may change places, as far as there are such; where it then stands.
std::size_t moved(const Program& program, std::vector<Instruction>& code, std::size_t from,
                  std::size_t to, const std::function<bool(const Instruction&)>& over = {});
// An order between two sets of instructions can be made by moving either of them.
enum class Moves : std::uint8_t {
  first,  // up, with what it depends on
  then,   // down, with what depends on it
};
// Has all instructions of `first` stand before all of `then`; both are ascending indices. Where
// dataflow forbids it, nothing is changed, and the pair that must stand in the other order is
// returned: what is of `then`, and what is of `first`; else {-1, -1}. `places`: where each
// instruction of the new order stood.
std::pair<int, int> order_before(const Program& program, std::vector<Instruction>& code,
                                 const std::vector<std::size_t>& first,
                                 const std::vector<std::size_t>& then, Moves moves,
                                 std::vector<std::size_t>& places);
// Index of the stream of that name (Program::streams), which is added if there is none.
int stream_named(Program& program, const std::string& name);
// Takes the instruction at `from` out and puts it in so that it stands at `to`. A pass that asks
// latest() or earliest() for the place changes no result.
void move_to(std::vector<Instruction>& code, std::size_t from, std::size_t to);

// Appends a slot; its index. References into Program::slots do not outlive the call.
int add_slot(Program& program, Slot slot);

// Splits each bucket by the segments that write its gradients, so that each segment can reduce its
// own once; and by layer, if asked. Those that several stages share stay as they are. Flat slots
// must not be there yet. Names the buckets anew.
void split_buckets(Program& program, bool by_layer);

// Gives buckets that have none yet their flat slots (Bucket::flat), as the buckets' fields say, and
// makes the slots of parameters and gradients views of them. From then on those fields are fixed.
// Called by passes that need these slots; else by the planner, after the last pass.
void make_flat_slots(Program& program);

// The next four make instructions, of a bucket that has its flat slots, for the pass to put where
// it wants them. `bucket`: an index into Program::buckets.
//
// Begins the sum of a bucket's gradients, which are whole by then and are settled here, over the
// ranks of Bucket::reduce_atoms: where shards are kept, over those of Bucket::shard_atoms; the
// planner adds the rest once, at the end of the step. Nothing may write the gradients until it is
// awaited.
std::vector<Instruction> begin_reduction(const Program& program, int bucket);
// Awaits it, and brings the sum to where it is kept. Where gradients are kept as shards it is added
// to what is there and the whole gradients are released: the next
// write begins them anew.
std::vector<Instruction> end_reduction(const Program& program, int bucket);
// Begins, and awaits, the all-gather of parameters that are kept as shards; a shard in host memory
// is copied to the device first. Between the wait and the release of Bucket::flat.parameters
// (Instruction::release) they may be read. What is gathered and never released stays until the end
// of the step; where several runs await such a gather, mark the waits with Instruction::again.
// `phase`: under which the ledger counts it, "forward" or "backward"; a literal.
std::vector<Instruction> begin_gather(const Program& program, int bucket, const char* phase);
Instruction end_gather(const Program& program, int bucket, const char* phase);

}  // namespace mw
