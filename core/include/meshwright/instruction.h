// The instructions of a program, the slots that they read and write, and the moves between layouts.
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

// The ranks of a collective, relative to one rank: the ranks whose coordinates differ from its own
// on `atoms` only. If `stages` is not empty, only the ranks of these stages; the atom of the stages
// is then among `atoms`.
struct RankSet {
  std::vector<int> atoms, stages;
  bool by_axis = false;  // named by its axis (also a borrowing one), even if it has all ranks
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
    send,   // to the rank of stage `peer` with the same other coordinates
    recv,   // from the rank of stage `peer` with the same other coordinates
    shift,  // in a ring over the atoms: to the next rank, and from the one before
  };
  Kind kind = Kind::all_reduce;
  std::vector<int> atoms;
  Dim from, to;
  Reduction reduction = Reduction::sum;
  // For an exchange of the rows of sparse tensors, which is an all-to-all on all its atoms at once:
  // the layout that it leads to. Empty for other moves.
  Layout lands;
  bool exchanges_rows() const { return !lands.empty(); }
  // Whether the start of an exchange first sends the number of rows of each group. Later exchanges
  // of the same rows use these numbers. The planner marks one exchange for each set of rows that a
  // layer sends.
  bool brings_counts = false;
  std::vector<int> stages;  // the stages whose ranks take part; empty: all (RankSet)
  int peer = -1;            // send and recv: the other stage
  int tag = 0;  // identifies a tensor that is sent: the same on both sides and in all microbatches
  // The stream of the transfer, an index into Program::streams; -1: the stream of its group of
  // ranks. Transfers on one stream run in the order in which they are started, whatever their
  // groups; transfers on two streams need no order.
  int stream = -1;
  friend bool operator==(const Move&, const Move&) = default;
};
bool communicates(Move::Kind kind);
const char* name_of(Move::Kind kind);
// The collective that carries out a move that communicates.
Collective collective_of(Move::Kind kind);

// The moves that take a tensor from one layout to another, in order. Atoms that cut the same dim
// nest, the outer one first. To change an outer atom, the inner atoms that cut the same dim are
// gathered first and cut again afterwards. Adjacent atoms that make the same move become one move.
std::vector<Move> moves(const Layout& from, const Layout& to, const Mesh& mesh);
// The moves of a sparse tensor, whose rows are grouped by `group` (experts), from one layout to
// another. If the ranks that hold the groups change, the rows go from the ranks that hold the
// tokens to the ranks that hold their groups, or back, in one exchange over all atoms. Sums are
// made before the exchange. Throws std::invalid_argument if such moves do not lead to the layout.
std::vector<Move> sparse_moves(const Layout& from, const Layout& to, Dim group);
// The layout of a tensor after a move.
Layout after(const Layout& layout, const Move& move);

enum class Memory : std::uint8_t { device, host };

struct Slot {
  std::string name;  // "layers.0.attention.q", "d layers.0.attention.q", ...
  Dims dims;
  Layout layout;
  Dtype dtype = Dtype::fp32;
  Memory memory = Memory::device;
  std::int64_t extra = 0;   // size of a last, unnamed dim (0: none)
  bool persistent = false;  // exists once, not once for each microbatch
  bool transient = false;   // a persistent slot that is allocated and freed within a step
  // The bucket whose flat tensor the slot is; -1: none. A flat tensor has one dim, `flat`, with the
  // elements of the bucket's parameters on the rank, and zeros at the end so that shards are equal.
  int bucket = -1;
  bool is_flat() const { return bucket >= 0; }
  Category category = Category::activations;
  int value = -1;  // the graph's value that the slot holds, or is a view of; -1: none
  // For a shard that is passed in a ring over the atoms `ring` (Rotation): the slot holds the shard
  // of the rank `ring_step` places before this one.
  std::vector<int> ring;
  int ring_step = 0;
  // For one slice of an op that computes a dim in slices (Program::slicing): the number of slices,
  // the index of this slice, and the dim. Without a dim, the slot is a saved tensor of this slice
  // that lacks the dim.
  int slices = 1, slice = 0;
  Dim slice_dim;
  int alias_of = -1;  // the slot whose storage this slot shares; -1: its own
  friend bool operator==(const Slot&, const Slot&) = default;
};

// What an instruction does. Readers of a program use no other knowledge: the beginning of a sum,
// the zeros of unwritten gradients and the casts around transfers are instructions of their own.
enum class Code : std::uint8_t {
  load,     // copies data of the microbatch into `outputs`
  compute,  // runs a piece of an op, or an op of the optimizer
  move,     // a local move (slice, keep): inputs[0] -> outputs[0]
  // Begins a move that communicates: inputs[0] -> outputs[0]; a send has no output, a recv no
  // input. A transfer between persistent slots belongs to the step, any other to the microbatch
  // (between_lasting).
  start,
  // Waits for the transfer that was begun under `pending`. It is an error if none was begun, unless
  // `again` is set. Then an earlier wait may have ended the transfer, or code that reads parameters
  // between two steps may have done so, for a gather that overlaps with the next step's forward.
  wait,
  seed,   // outputs[0] = 1, the gradient of the loss
  alias,  // outputs[0] is inputs[0] itself, in a slot that is released on its own
  add,    // outputs[0] += inputs[0]
  copy,   // outputs[0] = a copy of inputs[0], in the dtype and memory of outputs[0]
  // Begins a new sum in each of `outputs`, persistent slots that are sums over a step: the next
  // addition to the slot, or to a view of it, overwrites. With contributing[0], the ranks with
  // coordinate 0 on these atoms keep the sum so far, so that it counts once; all other ranks begin
  // anew. A transient slot begins a sum whenever it is allocated.
  begin_sum,
  // Sets to zero all parts of the sum outputs[0] to which nothing was added since it began: each
  // parameter's part, and the padding at the end. Allocates a transient slot that is not allocated.
  // Stands before each instruction that reads the slot as a whole.
  settle,
  // The reduction hook of `bucket` (reduction_hook.h) begins, and ends, the reduction of the
  // bucket's flat gradients, inputs[0] = outputs[0], under `pending`.
  hook_start,
  hook_finish,
  // Sums over all ranks: the step's loss, inputs[0]; the squared norm of the gradients in the other
  // inputs; the stop request. contributing[k]: only ranks with coordinate 0 on these atoms count
  // inputs[k], of which all ranks along the atoms have a copy.
  totals,
};
inline constexpr Code last_code = Code::totals;
const char* name_of(Code code);

// The purpose of a copy, a collective or a wait.
enum class Serves : std::uint8_t {
  values,           // values of the graph and their gradients: to other ranks, stages or the host
  parameters,       // the gather of a bucket's parameters, and copies of shards from host memory
  gradients,        // the reduction of a bucket's gradients, its casts, and copies to host memory
  gradient_shards,  // the sum of reduced gradient shards over the ranks that have the same shard
  directions,       // the gather of update directions of a bucket's matrices
  update,           // copies of optimizer states and parameters for an update, and back
  outer_gradients,  // the sum of outer gradients over replicas
};

// The op of a bucket's UpdateRule that a compute runs, for the whole bucket or for one parameter.
// If an ElementOp runs on the host, all its slots lie in host memory. If matrices in host memory
// are updated, the instruction copies gradients and parameters there and back piece by piece,
// without slots for the pieces.
enum class Update : std::uint8_t {
  none,       // no update: an op of the graph
  direction,  // UpdateRule::direction: outputs[0] from gradients inputs[0], maybe the same slot
  whole,      // UpdateRule::whole: outputs[0] from a parameter's matrices inputs[0]
  // UpdateRule::apply: updates outputs[0] by inputs[0], the gradients or what was made of them.
  // outputs[1], if given, receives the updated parameters in the ops' dtype. Further inputs are the
  // sums that it reads.
  apply,
  // A round of UpdateRule::sums: outputs[0], a sum over the ranks, from gradients inputs[0],
  // parameters inputs[1] and the sums of the rounds before, further inputs. contributing[n]: of the
  // bucket's parameter n, which ranks along these atoms have alike, only the first of them adds its
  // elements.
  sums,
  // No update: exchanges the numbers of two flat slots of one dtype, inputs and outputs alike.
  swap,
  // outputs[0], the outer gradient of the rank's replica: the anchor inputs[0] minus its parameters
  // inputs[1].
  outer_gradient,
  // OuterSteps::rule: updates the anchor outputs[0] by the sum of outer gradients inputs[0], and
  // brings the anchor to the replica's parameters outputs[1].
  outer_step,
  // The rank's terms of Gram matrices, which a sum over ranks follows: outputs[0] from the
  // directions inputs[0], of a parameter whose rows or columns are cut, or from what steps have
  // made of them.
  gram,
  gram_step,  // MatrixOp::gram_step: outputs[0] from parts inputs[0] and the sum inputs[1]
};
const char* name_of(Update update);
// Whether the op is of an outer step, and of no step of training.
inline bool of_outer_step(Update update) {
  return update == Update::outer_gradient || update == Update::outer_step;
}

// An operand of an op that runs in ring steps, and the slots that its shards arrive in as they are
// passed from rank to rank. Two slots take turns; if shards differ in size, each step has a slot.
struct Rotating {
  int input = -1;           // index of the op's input
  std::vector<int> shards;  // slots: the shard of step t arrives in slot t - 1
  int pending = -1;         // the pending of the shifts of shards
  // In backward, if the operand has a gradient: the slots of each step's share of the gradient of a
  // shard, and of the sum of earlier shares, which follows the shard; step t receives sum t.
  std::vector<int> shares, sums;
  int sum_pending = -1;  // the pending of the shifts of sums
};

using Slots = Few<int, 4>;  // indices into Program::slots

struct Instruction {
  Code code = Code::compute;
  Update update = Update::none;  // compute: the op of the optimizer, if it runs one
  Piece piece = Piece::forward;  // compute: the piece of the op
  int op = -1;                   // compute: the op of the graph
  // Slots; -1: none. For a compute they are indexed as the op's operands, for other codes see Code.
  // For an op of the optimizer, `saved` has FlatSlots::states_on_device; if that is empty, the op
  // works on FlatSlots::states.
  Slots inputs, outputs, saved, grad_outputs, grad_inputs;
  Few<bool, 8> accumulate;         // for each grad_input: whether to add to it, not overwrite it
  bool in_place = false;           // whether a forward overwrites an input, or a move its source
  Move move;                       // move, start, wait; also a copy that casts for a move
  int pending = -1;                // start, wait, hooks: the number that pairs start and wait
  bool again = false;              // wait: the transfer may be over already (Code::wait)
  Serves serves = Serves::values;  // copy, start, wait, hooks: the purpose
  // The bucket to which the instruction belongs; -1: none. Hooks and updates work on it; other
  // instructions are only priced and printed as the bucket's.
  int bucket = -1;
  bool has_bucket() const { return bucket >= 0; }
  int parameter = -1;  // for an update of one parameter: index into Program::parameters
  // Update::whole: of the ranks along contributing[0], the place of the one that makes the update,
  // while the others make zeros, so that the result is a sum over them. -1: all make it.
  int owner = -1;
  int round = 0;  // Update::gram_step: the index of the step
  // A list of atoms for each grad_input (for an add: for outputs[0]) that is a parameter's
  // gradient. Only ranks with coordinate 0 on these atoms contribute to the gradient, because every
  // rank along the atoms has the whole contribution, and the accumulated gradient is a sum over
  // ranks. For begin_sum and totals see Code.
  std::vector<std::vector<int>> contributing;
  // For a compute whose op runs in ring steps (Rotation): the rotating operands. This one
  // instruction stands for all steps and their transfers. ring_steps() and ring_kinds()
  // (engine/program_facts.h) write it out for the executor and the footprint; each instruction then
  // belongs to `ring_step`, or to that step and the `ring_alike` steps after it.
  std::shared_ptr<const std::vector<Rotating>> ring;
  int ring_step = 0, ring_steps = 1, ring_alike = 0;
  // An op that computes a dim in slices (Program::slicing) has an instruction for each slice. The
  // instruction reads and writes its slice's part of each operand that has the whole dim. Results
  // and gradients without the dim are made by the first slice, and later slices add to them. An
  // additive operand counts in the first slice only.
  int slice = 0, slices = 1;
  // The number of parts (ring steps or slices) in which the op is computed, and the index of this
  // part.
  int parts() const { return slices > 1 ? slices : ring_steps; }
  int part() const { return slices > 1 ? slice : ring_step; }
  const char* phase = "forward";
  std::string label;  // name of the op, value or bucket that the instruction serves
  Slots release;      // slots to free after this instruction: nothing reads them later
  int lane = 0;       // index of the lane to which an instruction of a braid belongs

  bool computes() const { return code == Code::compute; }  // an op of the graph or of an update
  bool runs_op() const { return computes() && update == Update::none; }  // an op of the graph
  bool begins_transfer() const { return code == Code::start || code == Code::hook_start; }
  bool awaits_transfer() const { return code == Code::wait || code == Code::hook_finish; }
  bool runs_hook() const { return code == Code::hook_start || code == Code::hook_finish; }
  bool makes_totals() const { return code == Code::totals; }
  bool copies() const { return code == Code::copy; }
  bool begins_sums() const { return code == Code::begin_sum; }
  bool settles_sum() const { return code == Code::settle; }
  // The code under which times are measured: hooks are measured as start and wait.
  Code measured_as() const {
    return begins_transfer() ? Code::start : awaits_transfer() ? Code::wait : code;
  }
  friend bool operator==(const Instruction&, const Instruction&) = default;
};

// What an instruction does to a slot.
enum class Access : std::uint8_t { read, add, write, release };

// Calls `visit(slot, access)` for each slot that the instruction uses, except slots inside a ring,
// which no other instruction uses. A slot may be visited twice: an input that is overwritten is
// read and written. A backward reads outputs and saved tensors of its op's forward. The start and
// the wait of a transfer both use its slots.
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

// Calls `visit` with each slot that the instruction reads or writes; a slot may be visited twice.
template <class Visit>
void for_each_slot(const Instruction& instruction, const Visit& visit) {
  for_each_use(instruction, [&](int slot, Access access) {
    if (access != Access::release) visit(slot);
  });
}

}  // namespace mw
