// The instructions of a program, the slots that they use, and what is known of an instruction by
// its code alone.
#pragma once

#include <cstdint>
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

// The ranks of a collective: those that agree with a rank on all atoms but these, and of them, if
// `stages` is not empty, those of these stages (the stage's own atom is among `atoms` then).
struct RankSet {
  std::vector<int> atoms, stages;
  bool by_axis = false;  // named by their axis even where they are all ranks
  friend auto operator<=>(const RankSet&, const RankSet&) = default;
};

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
// The moves of a sparse tensor, whose rows are grouped by `group`, from one layout to the other.
// Where the ranks of the groups change, its rows go from the ranks that hold tokens to those that
// hold their groups, or back, in one exchange over all atoms. Sums are made before the exchange.
// Throws std::invalid_argument where such moves do not lead to the layout.
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
  bool is_flat() const { return bucket >= 0; }
  Category category = Category::activations;
  int value = -1;  // the graph's value that it is (a view of), -1: none
  // What goes round the ranks of `ring` (Rotation) and is here in this ring step:
  // the shard of the ring_step-th rank before.
  std::vector<int> ring;
  int ring_step = 0;
  // A slot of one slice of an op that computes a dim in slices (Program::slicing): the number of
  // slices, which of them it is, and the dim. Without a dim the slot holds what the op saves of the
  // slice in a tensor that lacks the dim.
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
  // added next to such a slot, or to any view of it, overwrites. With contributing[0], the ranks at
  // the start of these atoms keep the sum so far, which therefore counts once, and all other ranks
  // begin anew. A transient slot begins a sum whenever it is made.
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
inline constexpr Code last_code = Code::totals;
const char* name_of(Code code);

// What a copy, a collective or a wait brings to where it is needed.
enum class Serves : std::uint8_t {
  values,           // of the graph, or on their way to it: to other ranks, other stages, the host
  parameters,       // a bucket's, gathered from shards; a rank's shard comes from host memory first
  gradients,        // a bucket's, reduced, and cast for it or brought to host memory after it
  gradient_shards,  // those that lie as shards already, summed over the ranks that have the same
  directions,       // of a bucket's matrices, gathered from shards
  update,           // a bucket's states and parameters, brought to where they are updated, or back
};

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
  Few<bool, 8> accumulate;         // for each grad_input: add to what is there
  bool in_place = false;           // forward overwrites an input; a move its source
  Move move;                       // of a copy too that casts for one
  int pending = -1;                // of start, wait and a hook's: which
  bool again = false;              // of a wait: the transfer may be over (Code::wait)
  Serves serves = Serves::values;  // of a copy, a start, a wait and a hook's
  // The bucket that it is of: an operand of hooks and updates; to all others it says what they are
  // priced and printed as.
  int bucket = -1;
  bool has_bucket() const { return bucket >= 0; }
  int parameter = -1;  // of an update of one: index into Program::parameters
  // A list of atoms for each grad_input (of an add: for outputs[0]) that is a parameter's gradient.
  // Only ranks at the start of these atoms contribute to it: every rank along them has the whole
  // contribution, and the accumulated gradient is a sum over ranks. Code says what begin_sum and
  // totals have here.
  std::vector<std::vector<int>> contributing;
  // Where the op of a compute runs in ring steps (Rotation), one instruction stands for all of
  // them, and for what they send. engine/program_facts.h writes it out, as executor and footprint
  // read it: then each instruction is of a `ring_step`, or of that and the `ring_alike` next ones.
  std::shared_ptr<const std::vector<Rotating>> ring;
  int ring_step = 0, ring_steps = 1, ring_alike = 0;
  // An op that computes a dim in slices (Program::slicing) has an instruction for each of them.
  // What of an operand has the dim, and is not of one slice already, is read and written in that
  // slice's part. Results and gradients without the dim are made by the first slice, and each later
  // one adds to them; an additive operand counts in the first slice alone.
  int slice = 0, slices = 1;
  // How many parts the op is computed in, ring steps or slices, and which of them this computes.
  int parts() const { return slices > 1 ? slices : ring_steps; }
  int part() const { return slices > 1 ? slice : ring_step; }
  const char* phase = "forward";
  std::string label;  // what it serves: an op, a value, a bucket
  Slots release;      // slots that nobody reads after this instruction
  int lane = 0;       // of a braid's: which of its lanes it is of

  bool computes() const { return code == Code::compute; }  // an op of the graph, or of an update
  bool runs_op() const { return computes() && update == Update::none; }  // the graph's
  bool begins_transfer() const { return code == Code::start || code == Code::hook_start; }
  bool awaits_transfer() const { return code == Code::wait || code == Code::hook_finish; }
  bool runs_hook() const { return code == Code::hook_start || code == Code::hook_finish; }
  bool makes_totals() const { return code == Code::totals; }
  bool copies() const { return code == Code::copy; }
  bool begins_sums() const { return code == Code::begin_sum; }
  bool settles_sum() const { return code == Code::settle; }
  // The code that it is measured as: a hook's work is that of other transfers.
  Code measured_as() const {
    return begins_transfer() ? Code::start : awaits_transfer() ? Code::wait : code;
  }
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

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

}  // namespace mw
