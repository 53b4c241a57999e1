// The program of one pipeline stage: what the engine runs, the simulator prices and `plan` prints.
// It is the same for every rank of the stage; local shapes follow from a rank's coordinates.
//
// A stage's step is a timeline: segments, lists of instructions over slots, each run for a
// microbatch ("the forward of microbatch 3"). Slots of a segment exist once for each microbatch in
// flight; persistent slots (parameters, gradients, optimizer state) exist once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/communicator.h"
#include "meshwright/dtype.h"
#include "meshwright/few.h"
#include "meshwright/graph.h"
#include "meshwright/ledger.h"
#include "meshwright/mesh.h"
#include "meshwright/placement.h"

namespace mw {

// A change of placement along a run of atoms: one step of a redistribution.
struct Move {
  enum class Kind : std::uint8_t {
    all_reduce,      // Partial -> Replicate
    reduce_scatter,  // Partial -> Shard(to)
    all_gather,      // Shard(from) -> Replicate
    all_to_all,      // Shard(from) -> Shard(to)
    slice,           // Replicate -> Shard(to): local
    keep,   // Replicate -> Partial: local; the first rank keeps the value, the others hold zeros
    send,   // to the rank of stage `peer` that agrees on all other coordinates
    recv,   // a tensor from it
    shift,  // to the next rank of the atoms, round, and from the one before
  };
  Kind kind = Kind::all_reduce;
  std::vector<int> atoms;
  Dim from, to;
  Reduction reduction = Reduction::sum;
  // The layout that an exchange of rows leads to, an all-to-all of sparse tensors, on all its atoms
  // at once; empty for other moves.
  Layout lands;
  bool exchanges_rows() const { return !lands.empty(); }
  // The start of an exchange says before the rows how many of each group there are, which those
  // after it know from it. The planner marks one for each way that a layer's rows go out.
  bool brings_counts = false;
  std::vector<int> stages;  // only ranks of these take part; empty: of all (RankSet)
  int peer = -1;            // of send and recv: a stage
  int tag = 0;  // what is sent: the same on both sides, distinct in a step but for microbatches
  // The stream on which a start, or a hook's, goes: an index into Program::streams; -1: that of its
  // group of ranks. Transfers of one stream go in the order in which they are started,
  // whatever their groups; those of two streams need no order.
  int stream = -1;
  friend bool operator==(const Move&, const Move&) = default;
};
bool communicates(Move::Kind kind);
const char* name_of(Move::Kind kind);
// The collective that carries out a move that communicates.
Collective collective_of(Move::Kind kind);

// The moves that take a tensor from one layout to the other, in order. Atoms that cut the same dim
// nest, the outer one first; an atom whose inner neighbour cuts the dim in question has that one
// let go first and cut again after. Adjacent atoms that make the same move go together.
std::vector<Move> moves(const Layout& from, const Layout& to, const Mesh& mesh);
// The same for a sparse tensor, whose rows are grouped by `group`: rows go from the ranks that hold
// tokens to those that hold their groups, or back, in one exchange over all atoms where that
// changes; sums are made before. Throws std::invalid_argument where that is not enough.
std::vector<Move> sparse_moves(const Layout& from, const Layout& to, Dim group);
// The layout that a move leads to.
Layout after(const Layout& layout, const Move& move);

enum class Memory : std::uint8_t { device, host };

struct Slot {
  std::string name;  // "layers.0.attention.q", "d layers.0.attention.q", ...
  Dims dims;
  Layout layout;
  Dtype dtype = Dtype::fp32;
  Memory memory = Memory::device;
  std::int64_t extra = 0;   // a last, unnamed dim of that size (0: none)
  bool persistent = false;  // exists once, not for each microbatch
  bool transient = false;   // of a persistent one: comes and goes in the course of a step
  // The bucket whose flat tensor it is: of one dim, `flat`, of as many elements as the bucket's
  // parameters have on the rank, with zeros at the end so that its shards are equal.
  int bucket = -1;
  Category category = Category::activations;
  int value = -1;  // the graph's value that it is (a view of), -1: none
  // What goes round the ranks of `ring` (Rotation) and is here in this ring step:
  // the shard of the ring_step-th rank before.
  std::vector<int> ring;
  int ring_step = 0;
  // Where an op computes a dim in slices (Program::slicing) and this holds what is of one of them:
  // how many slices there are, which of them it is, and the dim of which it has that part (none: of
  // what the op keeps of a slice without the dim).
  int slices = 1, slice = 0;
  Dim slice_dim;
  int alias_of = -1;  // shares the storage of that slot
  friend bool operator==(const Slot&, const Slot&) = default;
};

// What an instruction does. No reader knows more of it than this and the program say: above all,
// when a sum begins, what is zero where nobody wrote, and what a transfer brings are instructions.
enum class Code : std::uint8_t {
  load,     // data of the microbatch into outputs
  compute,  // a piece of an op
  move,     // a local move (slice, keep): inputs[0] -> outputs[0]
  // A move that communicates is begun: inputs[0] -> outputs[0]; a send has no output, a recv no
  // input. It is of the step where its slots are persistent, else of the microbatch
  // (between_lasting).
  start,
  // Waits for what was begun under `pending`, and does nothing beside. It is an error where nothing
  // was begun, unless `again` says that the transfer may be over: an earlier wait may have had it,
  // or whoever read the parameters between the steps, if it is a bucket's gather that crosses from
  // one step into the next or follows an update that does.
  wait,
  seed,   // outputs[0] = 1, the gradient of the loss
  alias,  // outputs[0] is inputs[0] itself, under a name that is released on its own
  add,    // outputs[0] += inputs[0]
  copy,   // outputs[0] = a copy of inputs[0], in the dtype and memory of outputs[0]
  // A new sum begins in each of `outputs`, persistent slots that are sums over a step: what is
  // added next to such a slot, or to any view of it, overwrites. With contributing[0], only ranks
  // that are not at the start of these atoms begin anew; those that are keep the sum so far, so
  // that it counts once. A transient slot begins a sum whenever it is made.
  begin_sum,
  // What nobody added to outputs[0] since its sum began becomes zeros: each parameter's part, and
  // the padding at the end. It makes a transient slot that is not there. It stands before whatever
  // reads such a slot as a whole.
  settle,
  // The hook of `bucket` (reduction_hook.h) begins, and ends, to reduce inputs[0] = outputs[0], the
  // bucket's flat gradients, under `pending`.
  hook_start,
  hook_finish,
  // The step's loss, inputs[0], the squared norm of the gradients in the other inputs, and the stop
  // request are summed over the world. contributing[k]: only ranks at the start of these atoms
  // count inputs[k], which all ranks along them hold alike.
  totals,
};
const char* name_of(Code code);

// The op of a bucket's rule (UpdateRule) that a compute runs,
// for the whole bucket or one of its parameters. Where an update of one element at a time is made
// in host memory, all that it reads and writes lies there. Where that of matrices is, gradients and
// parameters are brought there and back piece by piece inside of it, and no slot holds such a
// piece.
enum class Update : std::uint8_t {
  none,       // an op of the graph
  direction,  // outputs[0]: of the gradients in inputs[0], which it may share
  whole,      // outputs[0]: of the matrices of a parameter in inputs[0]
  apply,  // to what is updated, in outputs[0]: gradients, or what was made of them, in inputs[0];
          // outputs[1], if it is there, is that in the dtype that computes
};

// An operand of an op that computes in ring steps, on its way round the ranks: the slots that it
// arrives in. Two of them take turns; where shards differ in size there is one for each step.
struct Rotating {
  int input = -1;           // of the op
  std::vector<int> shards;  // that of step t in the (t - 1)-th
  int pending = -1;         // of the shifts that bring them
  // In backward, where the operand has a gradient, which follows it round: each step's share, and
  // the sum of those before, which step t sends on to the t-th.
  std::vector<int> shares, sums;
  int sum_pending = -1;
};

using Slots = Few<int, 4>;  // indices into Program::slots

struct Instruction {
  Code code = Code::compute;
  Update update = Update::none;  // of compute
  Piece piece = Piece::forward;  // of compute
  int op = -1;                   // of compute: the graph's op
  // Slots, -1 for none. Compute: indexed as the op's operands; for others see Code.
  // `saved` of an op of the optimizer is FlatSlots::states_on_device; where that is empty, the op
  // works on FlatSlots::states.
  Slots inputs, outputs, saved, grad_outputs, grad_inputs;
  Few<bool, 8> accumulate;  // for each grad_input: add to what is there
  bool in_place = false;    // forward overwrites an input; a move its source
  Move move;                // of a copy too that casts for one
  int pending = -1;         // of start, wait and a hook's: which
  bool again = false;       // of a wait: the transfer may be over (Code::wait)
  // What it serves: an operand of hooks and updates; to all others it says what they are priced and
  // printed as.
  int bucket = -1;
  int parameter = -1;  // of an update of one: index into Program::parameters
  // Which ranks contribute to gradients of parameters, a list for each grad_input (of an add: for
  // outputs[0]): only those at the start of these atoms, as every rank there has the whole
  // contribution while the accumulated gradient is a sum over ranks. What begin_sum and totals have
  // here is said with them (Code).
  std::vector<std::vector<int>> contributing;
  // Where the op of a compute runs in ring steps (Rotation), one instruction stands for all of
  // them, and for what they send. engine/program_facts.h writes it out, as executor and footprint
  // read it: then each instruction is of a `ring_step`, or of that and the `ring_alike` next ones.
  // An op that computes a dim in slices (Program::slicing) has an instruction for each of them,
  // without `ring`: `ring_step` says which slice it is. What of an operand has the dim, and is not
  // of one slice already, is read and written in that slice's part. Results and gradients without
  // the dim are made by the first slice, and each later one adds to them; an additive operand
  // counts in the first slice alone.
  std::shared_ptr<const std::vector<Rotating>> ring;
  int ring_step = 0, ring_steps = 1, ring_alike = 0;
  const char* phase = "forward";
  std::string label;  // what it serves: an op, a value, a bucket
  Slots release;      // slots that nobody reads after this instruction
  int lane = 0;       // of a braid's: which of its lanes it is of

  bool runs_op() const { return code == Code::compute && update == Update::none; }  // the graph's
  bool begins_transfer() const { return code == Code::start || code == Code::hook_start; }
  bool awaits_transfer() const { return code == Code::wait || code == Code::hook_finish; }
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

struct Program;
// Whether all slots that the instruction reads and writes are persistent; false for an op's, and
// for one that writes none. Such a transfer belongs to the step: it begins once for all
// microbatches, and any of them may wait for it. Any other one belongs to the microbatch for which
// it runs.
bool between_lasting(const Program& program, const Instruction& instruction);

// What an instruction does to a slot.
enum class Access : std::uint8_t { read, add, write, release };

// Calls `visit(slot, access)` for each slot that the instruction uses. Slots inside a ring are left
// out, as no other instruction uses them. A slot may come twice: an input that is overwritten is
// read and written. A backward reads what the forward of its op has made. The start and the wait of
// a transfer both name its slots.
template <class Visit>
void for_each_use(const Instruction& instruction, const Visit& visit) {
  const auto all = [&](const Slots& slots, Access access) {
    for (const int slot : slots)
      if (slot >= 0) visit(slot, access);
  };
  const bool backward = instruction.code == Code::compute && instruction.piece != Piece::forward;
  const Access made = backward ? Access::read : Access::write;
  all(instruction.inputs, Access::read);
  if (instruction.in_place) all(instruction.inputs, Access::write);
  all(instruction.outputs, instruction.code == Code::add ? Access::add : made);
  all(instruction.saved, made);
  all(instruction.grad_outputs, Access::read);
  all(instruction.grad_inputs, Access::add);
  all(instruction.release, Access::release);
}

// Calls `visit` with each slot that the instruction reads or writes; a slot may come twice.
template <class Visit>
void for_each_slot(const Instruction& instruction, const Visit& visit) {
  for_each_use(instruction, [&](int slot, Access access) {
    if (access != Access::release) visit(slot);
  });
}

enum class SegmentKind : std::uint8_t {
  forward,
  backward,  // or the pair
  dgrad,
  wgrad,
  post,     // begins the receives of what another stage sends
  receive,  // waits for them
  sent,     // waits for this stage's own sends and lets go of what they read
  begin,    // once in a step, before all others: its sums begin
  gather,   // once in a step, before what computes: the parameters that are then kept until its end
  finish,   // once in a step, last: reductions, totals, optimizer
  braid,    // several of those that compute, interleaved instruction by instruction
};

const char* name_of(SegmentKind kind);  // "forward", "braid"

// One of the segments that a braid interleaves.
struct Lane {
  SegmentKind kind = SegmentKind::forward;
  int vstage = 0;
  std::string segment;  // its name: "forward.2", "backward.last"
};

struct Segment {
  // "forward", "backward", "dgrad", "wgrad"; where a model is split into virtual stages
  // "forward.2" and so on, and "post forward.2", "receive forward.2", "sent forward.2"; "begin",
  // "gather", "reduce", "totals", "update"; "X.last": a copy of X with reductions in it.
  std::string name;
  std::vector<Instruction> code;
  SegmentKind kind = SegmentKind::forward;
  int vstage = 0;
  bool gradient = false;  // of post, receive and sent: of gradients
  int copy_of = -1;       // of "X.last": X
  // A braid, "forward+backward", has the segments that it interleaves here, and the weave that has
  // said how. Its `code` has copies of the lanes' instructions (Instruction::lane), those of one
  // lane in their own order; its `kind` and `vstage` say nothing of a lane.
  std::vector<Lane> lanes;
  std::string weave;
};

// One run of a segment.
struct SegmentRun {
  int segment = -1;
  int microbatch = -1;  // -1: of the step; of a braid: that of its first lane
  Few<int, 2> others;   // of a braid: those of the lanes after the first
  // While programs are made: the schedule joins it with the run after it, and a braid of both is
  // to come. No run of a finished program says so.
  bool joined = false;
};
// The microbatch that a lane of the run is for; of a segment without lanes, lane 0.
inline int microbatch_of(const SegmentRun& run, int lane) {
  return lane == 0 ? run.microbatch : run.others[static_cast<std::size_t>(lane) - 1];
}
// How many lanes the run has: 1 but for a braid's.
inline int lanes_of(const SegmentRun& run) {
  return 1 + static_cast<int>(run.others.size());
}

// A parameter of the stage: where it is stored and where its gradient accumulates.
struct ProgramParameter {
  int value = -1;
  int slot = -1, gradient_slot = -1;
  Layout stored;       // also the layout of the reduced gradient
  Layout accumulated;  // of the gradient before reduction
  // How many leading dims number matrices (experts), and how many after them make the rows, of a
  // layer's weights that are matrices, outputs by inputs. 0 rows: anything else.
  int stacked = 0, rows = 0;
};

// How many matrices of a parameter a rank has, and how large each is, whole.
struct MatrixSizes {
  std::int64_t stacked = 1, rows = 1, columns = 1;
};

// What of a bucket each rank keeps only its shard of; each has also what stands before it.
enum class ShardedState : std::uint8_t { nothing, optimizer, gradients, parameters };

// What of a bucket lies in host memory and is updated there: the optimizer's state; the rank's
// shard of parameters that are kept as shards too.
enum class Offload : std::uint8_t { nothing, optimizer, parameters };

// A bucket's flat slots, of which its parameters' and their gradients' slots are views.
struct FlatSlots {
  int parameters = -1;  // whole, as compute reads them
  int stored = -1;      // what the rank keeps of them: these, or its shard
  int gradients = -1;   // whole, as backward adds to them
  int reduced = -1;     // what the rank keeps of their sum
  // What the rank keeps of the parameters, on the device, while that is gathered from host memory.
  // -1: it lies on the device.
  int on_device = -1;
  // Where they are summed in another dtype, the gradients in that; where the shard of a sum is not
  // `reduced` itself, what arrives, and that in the gradients' dtype. -1: there is none.
  int cast = -1, arriving = -1, cast_back = -1;
  // The optimizer's: its own copy of what it updates, -1 where that is `stored`; what it keeps
  // beside it; of matrices in shards, the shard of directions and all of them.
  int master = -1;
  std::vector<int> states, of_matrix;  // as UpdateRule has them
  // The tensor that the optimizer updates.
  int updated() const { return master >= 0 ? master : stored; }
  // Where a bucket is updated on the device (Bucket::update_on_device), the copies there of what
  // lies in host memory: of `states`, and of updated(), -1 where that lies on the device.
  std::vector<int> states_on_device;
  int updated_on_device = -1;
  // Where a bucket is updated in host memory, element by element (Bucket::updated_on_host()): its
  // reduced gradients there; and, where that is not the dtype of updated(), the updated parameters
  // there in the dtype that computes: `stored` itself, or what is copied to it on the device.
  int gradients_on_host = -1, parameters_on_host = -1;
  int direction = -1, directions = -1;
  // Their moves under way: the reduction, what of it remains for the shards,
  // the gather of parameters.
  int reduction = -1, shard_reduction = -1, gather = -1, gather_directions = -1;
};

// Parameters whose gradients are reduced together and updated together. Parameters, gradients and
// optimizer state of a bucket each lie in one flat tensor, in this order.
struct Bucket {
  std::vector<int> parameters;       // indices into Program::parameters
  std::vector<int> reduce_atoms;     // atoms to all-reduce over; empty: nothing to reduce
  std::vector<int> parameter_atoms;  // atoms over which the parameters are sharded
  std::vector<int> stages;  // that hold these parameters, if more than one (tied embeddings)
  std::string name;
  bool counts = false;   // of parameters that count (Value::counts), which no optimizer sees
  bool matrix = false;   // of matrices of layers, for which the optimizer has a rule of their own
  bool overlap = false;  // its reduction starts as soon as its last gradient is there
  bool reduce_per_microbatch = false;  // reduced after every run that adds to it
  // Where the optimizer's state is in shards and parameters are whole: the updated parameters are
  // gathered beside the next step's forward, which awaits them before their first use; else, and
  // where no forward uses them, at the step's end. Whoever reads parameters between two steps
  // (RankRun) awaits them too.
  bool gather_overlaps_forward = false;
  // Carries out the reduction (reduction_hook.h); null: one all-reduce.
  std::shared_ptr<const class ReductionHook> hook;
  // How it is stored. Atoms of `reduce_atoms` over which flat tensors are cut, equally, with zeros
  // after the last parameter, and of what a rank keeps its shard alone. Parameters that are kept
  // whole are gathered after the update by the planner. Whoever has them kept as shards gathers
  // them before each use (begin_gather), and reduces gradients that are kept as shards
  // (begin_reduction).
  std::vector<int> shard_atoms;
  // Whether all ranks keep the parameters whole, and each updates its shard of them.
  bool gathered_once_updated() const {
    return sharded_state == ShardedState::optimizer || sharded_state == ShardedState::gradients;
  }
  ShardedState sharded_state = ShardedState::nothing;  // `nothing` where there are no such atoms
  Offload offload = Offload::nothing;                  // parameters: only of those kept as shards
  bool update_on_device = false;  // what is offloaded comes to the device for the update
  // Whether it is updated in host memory, one element at a time.
  bool updated_on_host() const { return flat.gradients_on_host >= 0; }
  // Whether such an update is to be made beside what the device computes: beside the backward,
  // where it waits for no totals (Program::update_needs_totals), else beside the next step's
  // forward. Else it is made at the step's end.
  bool update_overlaps = false;
  // Set by the planner: the update of a step, and the way of the parameters to the device, stand in
  // the next step's forward, before what reads the parameters first (completes_update,
  // engine/program_facts.h). Where no forward has a place for them, they stand at the step's end.
  bool update_overlaps_forward = false;
  std::shared_ptr<const struct UpdateRule> rule;  // how the optimizer updates it; null: it does not
  FlatSlots flat;                                 // once the passes have decided about buckets
};

// The ranks of a collective: those that agree with a rank on all atoms but these, and of them, if
// `stages` is not empty, those of these stages (the stage's own atom is among `atoms` then).
struct RankSet {
  std::vector<int> atoms, stages;
  bool by_axis = false;  // named by their axis even where they are all ranks
  friend auto operator<=>(const RankSet&, const RankSet&) = default;
};

// An op that runs in ring steps: the shards of a dim that it needs whole go round the ranks of some
// atoms, and in each step it computes with the shard that is there.
// In step t that is the shard of the t-th rank before.
struct Rotation {
  Dim dim;
  std::vector<int> atoms;
};

// An op that a rank computes in parts of one of its dims, one after the other (Draft::slice).
struct Slicing {
  Dims dims;  // the dim, and those that follow it (kv_heads after heads)
  int slices = 1;
  int chain = 0;  // neighbouring ops, whose slices are computed together, have the same number
  friend bool operator==(const Slicing& a, const Slicing& b) {
    return a.dims == b.dims && a.slices == b.slices;
  }
};

// Elements of a gradient that are cast at a time, for the optimizer or the norm. The optimizer's
// kernel gives 65,536 to each block of a GPU, which a piece as small as a CPU's leaves mostly idle.
constexpr std::int64_t cast_at_a_time = 1 << 20;
constexpr std::int64_t cast_at_a_time_on_accelerators = 1 << 22;

struct Program {
  std::shared_ptr<const Graph> graph;
  Mesh mesh;
  int stage = 0, stages = 1;
  int stage_atom = -1;         // of the mesh; -1: one stage
  std::vector<int> stage_of;   // of each virtual stage
  std::vector<int> vstage_of;  // of each op of the graph; -1: wherever its outputs are needed
  int microbatches = 1;
  // The size of "batch" in each microbatch, over all ranks, where they differ (the graph's is then
  // the largest); empty: the graph's in all.
  std::vector<std::int64_t> batches;
  int threads = 1;            // that a rank's kernels have
  Dtype dtype = Dtype::fp32;  // of the reals that it computes with
  // The types of a parameter's gradient while it is added up and reduced, and of the optimizer's
  // states and its own copy of the parameters (the masters) where that is wider than those that
  // compute.
  Dtype gradient_dtype = Dtype::fp32, optimizer_dtype = Dtype::fp32;
  Dtype reduce_dtype = Dtype::fp32;  // in which narrower reals are summed over ranks
  std::shared_ptr<const class Optimizer> optimizer;  // null: the step updates nothing
  // Whether an update waits for the step's totals, which say how gradients are clipped, whether
  // they overflowed and whether all is finite.
  bool update_needs_totals = true;
  std::vector<Slot> slots;
  int loss = -1;  // the slot in which the losses of a step's microbatches are summed
  std::vector<ProgramParameter> parameters;
  std::vector<Bucket> buckets;
  std::vector<Segment> segments;
  std::vector<SegmentRun> timeline;
  int pendings = 0;                   // numbers used by start and wait
  std::vector<std::string> streams;   // of transfers (Move::stream), by name
  std::vector<Layout> cut;            // for each op of the graph: its iteration space on the mesh
  std::vector<Layout> follow;         // the dim that follows the cut one (kv_heads after heads)
  std::map<int, Rotation> rotations;  // of ops of the graph
  std::map<int, Slicing> slicing;     // of ops of the graph that are computed in slices
  // Rows of sparse tensors on the rank that has most, over the average,
  // where groups are cut; for predictions.
  double imbalance = 1;
  // The ranges of each dim that lies in another order than its own, as they lie
  // (Draft::permute_tokens).
  std::map<Dim, std::vector<Range>> token_permutation;

  bool has_masters() const { return optimizer_dtype != dtype; }
  // The type of a value of the graph.
  Dtype dtype_of(Scalar scalar, bool fp32_at_least) const;
  const std::string& name_of_parameter(int parameter) const;
  int segment(const std::string& name) const;  // index; -1
  // Index of the segment of that kind (and, of post, receive and sent, direction); -1.
  int segment(SegmentKind kind, int vstage, bool gradient = false) const;
  int chunk_of(int vstage) const;  // its index among those of its stage
  // Coordinates of the stage's first rank.
  Coordinates first() const;
  std::vector<int> ranks_of(const RankSet& set, int rank) const;  // ascending
  int ways(const RankSet& set) const;
  // "dp", "dp*tp", "world"; with stages "pp[0,3]".
  std::string name_of(const RankSet& set) const;
  RankSet reduction(const Bucket& bucket) const { return {bucket.reduce_atoms, bucket.stages}; }
  // The ranks that reduce a part: those of the reduction on the atoms that do not part it.
  RankSet shard_reduction(const Bucket& bucket) const;
  // Elements of the bucket on a rank: of its parameters, of a shard of its flat tensors.
  std::int64_t elements(const Bucket& bucket, const Coordinates& at) const;
  std::int64_t shard_elements(const Bucket& bucket, const Coordinates& at) const;
  MatrixSizes matrices(const ProgramParameter& parameter, const Coordinates& at) const;
  // Elements of a flat slot, where the bucket's shards have `shard` elements.
  std::int64_t flat_elements(const Slot& slot, std::int64_t shard) const;
  // The size of "batch" in a microbatch (-1: of the step, which has none),
  // and its first row in the step's.
  std::int64_t batch_of(int microbatch) const;
  std::int64_t first_row(int microbatch) const;
  // A dim's global size where that of "batch" is `batch`; 0: the graph's.
  std::int64_t size(Dim dim, std::int64_t batch) const;
  // The range of each dim of an op's space, or of a slot's dims, on the rank at these coordinates;
  // of an op that is computed in slices, in the slice `ring_step`.
  LocalDims local_dims(int op, const Coordinates& at, int ring_step = 0,
                       std::int64_t batch = 0) const;
  // What of a dim lies at `part` of it: [part] but where it lies in another order.
  std::vector<Range> permuted(Dim dim, Range part) const;
  std::vector<std::int64_t> local_shape(const Slot& slot, const Coordinates& at,
                                        std::int64_t batch = 0) const;
  std::int64_t local_bytes(const Slot& slot, const Coordinates& at, std::int64_t batch = 0) const;
  int root(int slot) const;  // follows alias_of
  // How the op of a compute is sliced; null: it is not.
  const Slicing* slicing_of(const Instruction& instruction) const;
  // The place in a slot's shape of the dim by whose slices such an instruction reads and writes a
  // part of it; -1: it takes all of the slot, which lacks the dim or is of one slice already.
  int sliced_at(const Instruction& instruction, int slot) const;
};

}  // namespace mw
