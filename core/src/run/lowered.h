// A program's instructions as one rank runs them. What the program, the rank's place on the mesh
// and the size of a microbatch say of an instruction is looked up here once, so that a step walks
// lists and looks nothing up.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/inputs.h"
#include "meshwright/ledger.h"
#include "meshwright/op.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "program/input_cut.h"
#include "program/update_steps.h"
#include "run/redistribute.h"

namespace mw {

// A slot that an instruction reads or writes.
struct Operand {
  int slot = -1;             // -1: none
  int rows = -1;             // which rows a sparse slot has (Lowering::rows)
  std::int8_t part_at = -1;  // the dim of which an instruction's slice has a part; -1: it has all
  bool lasts = false;        // the slot's tensor is in Storage, not a microbatch's
  bool whole = true;         // the slot is not of one slice alone
  bool counted = false;      // an earlier slice has counted this input, or begun this output
};

// How the gradient of an operand comes to its slot.
enum class GradientWay : std::uint8_t {
  none,     // not at all: nobody wants it, or another rank contributes it
  made,     // the slot takes what the kernel makes, or has added to what the slot holds
  summed,   // the kernel adds it to a sum that lasts, or to a part of that, or begins the sum
  part,     // the kernel makes it; it is added to a part of the slot
  widened,  // the kernel makes it; it is added to a sum that lasts, which has more bits
};

// A compute of an op of the graph. Tensors are in `call` while it runs, and never between two runs.
struct OpRun {
  const Op& op;
  const Piece piece;
  void (OpType::*const kernel)(const Op&, OpCall&) const;
  OpCall call;
  std::vector<Operand> inputs = {}, outputs = {}, saved = {}, grad_outputs = {}, grad_inputs = {};
  std::vector<GradientWay> ways = {};  // one for each of grad_inputs
  // The shape of each tensor that it makes: of outputs in forward, else of gradients. None for
  // rows, whose number is not known beforehand.
  std::vector<std::optional<std::vector<std::int64_t>>> shapes = {};
  bool wanted = true;  // this rank makes at least one of its gradients
  // Whether watchers see what it reads (in backward, the gradients), and what it makes. They see
  // operands with an op's first part, results with its last, and nothing that is recomputed.
  bool shows_operands = false, shows_results = false;
  int slice = 0, slices = 1;  // which slice it computes, and how many there are
  double flops = 0;
  Ledger::Entry entry = 0;
  // Which rows its sparse operands have (-1: it has none) and whether it makes them; whether the
  // ledger compares their number with that supposed, and counts them by group from `group` on.
  int rows = -1;
  bool makes_rows = false, compares_rows = false, counts_rows = false;
  std::int64_t supposed = 0, group = 0;
};

// A compute of an op of the optimizer. Tensors are in `call` while it runs.
struct UpdateRun {
  // A range of flat slots that an elementwise apply updates at a time, and its op.
  struct Part {
    const ElementOp* op;
    Range range;
  };
  // What a MatrixOp keeps for the parameter: a range of a flat slot.
  struct Kept {
    int slot;
    Range range;
    std::array<std::int64_t, 3> shape;
  };
  // A parameter of a bucket whose rule reads sums.
  struct Summed {
    UpdatedPart part;
    std::int64_t first = 0;          // the place of its updated elements in the bucket's shard
    bool contributes = true;         // whether this rank adds its terms to the sums
    std::vector<Range> places = {};  // by sum: among those of its round
    std::vector<Kept> kept = {};
  };
  bool host = false;   // whether it runs in host memory
  bool casts = false;  // the gradient has another dtype than the parameters
  std::vector<Part> parts = {};
  std::vector<Kept> kept = {};
  std::vector<Summed> summed = {};
  std::int64_t at_a_time = 0;            // elements of a piece of a summed parameter
  std::vector<int> states = {};          // the slots of the states that it works on
  MatrixUpdate matrix = {};              // set for updates of matrices
  bool takes_part = true;                // false: other ranks make the matrices' update
  MatrixParts parts_of_matrices = {};    // set for steps by parts of matrices
  Range own = {};                        // elements of the updated slot that `matrix` updates
  std::vector<std::int64_t> shape = {};  // the shape of the direction, or the Gram matrices
  UpdateCall call = {};
};

// What a load brings to one slot. Slots that take the same rows of the data share what is read:
// `shares` is the index of the first of them.
struct Loaded {
  DataValue what = DataValue::tokens;
  int slot = -1;
  DataCut cut = {};
  std::size_t shares = 0;
  InputCut input = {};  // of DataValue::input
};

struct Lowered {
  const Instruction* said = nullptr;
  Code code = Code::compute;
  int lane = 0;
  bool idle = false;     // other ranks do it, this rank skips it
  bool of_step = false;  // the transfer belongs to the step (between_lasting)
  // What a start and its wait have in common: the pending; or, where the next step awaits the
  // transfer, whatever its program, a number below 0 for the bucket.
  int transfer = 0;
  // Whether it belongs to a bucket's update that a step leaves to the next step's forward, and
  // whether it is the last instruction of that update.
  bool completes_update = false, ends_update = false;
  bool shown = false;          // a watcher sees what it has moved
  int index = -1, inner = -1;  // its place in the segment, and in a ring's steps
  Operand input, output;       // the instruction's first input and first output
  std::vector<Operand> release;
  std::vector<Operand> touched;  // all that it reads or writes; empty on a CPU
  std::vector<double> shares;    // of totals, for each input: 1, or 0 if another rank counts it
  // The communicators of a transfer, looked up when the transfer first runs: `group` of a
  // collective; `goes` of the pair of ranks over which it sends, `comes` of the receiving pair.
  Communicator *group = nullptr, *goes = nullptr, *comes = nullptr;
  std::unique_ptr<OpRun> op;
  std::unique_ptr<UpdateRun> update;
  std::unique_ptr<ReadyMove> move;
  std::vector<Loaded> load;
};

// The lowered instructions of a segment, for microbatches of given sizes.
struct LoweredCode {
  std::vector<Lowered> list;
  std::vector<std::vector<Instruction>> rings;  // the steps of each ring, to which `list` refers
};

class Lowering {
 public:
  // Keeps the references.
  Lowering(const RankViews& sizes, at::Device device, Ledger& ledger);
  // Lowers a segment. `kinds`: the kind of each lane's microbatch (RankViews::kind).
  LoweredCode segment(int segment, const std::vector<int>& kinds) const;
  // The updates of buckets that a step leaves to the next step's forward, bucket by bucket.
  LoweredCode updates() const;
  // How many different rows sparse slots have: equal where the same layer's op made them and they
  // lie alike (SparseRows).
  std::size_t rows() const { return rows_; }

 private:
  Operand operand(int slot) const;
  Operand operand(const Instruction& i, int slot) const;
  std::vector<Operand> operands(const Instruction& i, const Slots& slots) const;
  Lowered lower(const Instruction& i, const RankView& sizes) const;
  std::unique_ptr<OpRun> op_run(const Instruction& i, const RankView& sizes) const;
  void find_rows(const Instruction& i, const RankView& sizes, OpRun& run) const;
  GradientWay way(const Instruction& i, std::size_t input, const OpRun& run) const;
  std::unique_ptr<UpdateRun> update_run(const Instruction& i) const;
  static std::vector<UpdateRun::Kept> kept_of(const Bucket& bucket, const RankView& sizes,
                                              int parameter, const MatrixSizes& matrix);
  void add_summed(const Instruction& i, const RankView& sizes, UpdateRun& run) const;
  std::vector<Loaded> load(const Instruction& i, const RankView& sizes) const;
  void number_rows();
  void note(const Instruction& i);

  const RankViews& sizes_;
  const Program& program_;
  const Graph& graph_;
  const Coordinates& at_;
  const at::Device device_;
  Ledger& ledger_;
  std::vector<int> rows_of_slot_;  // by slot: Operand::rows
  std::size_t rows_ = 0;
  // by bucket: what a step leaves to the next
  std::vector<std::vector<const Instruction*>> updates_;
  std::set<int> of_some_;  // slots of Gram matrices that only ranks with elements to update need
};

}  // namespace mw
