// The program of one pipeline stage, which the engine runs, predictions price and `plan` prints.
// All ranks of the stage have the same program; local shapes follow from a rank's coordinates.
//
// A segment is a list of instructions over slots. A stage's step is a timeline of segment runs,
// each for a microbatch ("the forward of microbatch 3"). Slots exist once for each microbatch in
// flight; persistent slots (parameters, gradients, optimizer state) exist once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/bucket.h"
#include "meshwright/dtype.h"
#include "meshwright/few.h"
#include "meshwright/graph.h"
#include "meshwright/instruction.h"
#include "meshwright/mesh.h"
#include "meshwright/placement.h"

namespace mw {

enum class SegmentKind : std::uint8_t {
  forward,
  backward,  // a whole backward; if it is split, there are dgrad and wgrad instead
  dgrad,
  wgrad,
  post,     // begins the receives of tensors that another stage sends
  receive,  // waits for these receives
  sent,     // waits for this stage's own sends and releases what they read
  begin,    // once in a step, before all others: begins the sums of the step
  gather,   // once in a step, before computation: gathers parameters that stay until its end
  finish,   // once in a step, last: reductions, totals, optimizer
  braid,    // several computing segments, interleaved instruction by instruction
};

const char* name_of(SegmentKind kind);  // "forward", "braid"

// One of the segments that a braid interleaves.
struct Lane {
  SegmentKind kind = SegmentKind::forward;
  int vstage = 0;
  std::string segment;  // name of the interleaved segment: "forward.2", "backward.last"
};

struct Segment {
  // "forward", "backward", "dgrad", "wgrad"; with several virtual stages "forward.2" and so on, and
  // "post forward.2", "receive forward.2", "sent forward.2"; "begin", "gather", "reduce", "totals",
  // "update"; "X.last" is a copy of the segment X with reductions in it.
  std::string name;
  std::vector<Instruction> code;
  SegmentKind kind = SegmentKind::forward;
  int vstage = 0;
  bool gradient = false;  // post, receive, sent: whether they transfer gradients
  int copy_of = -1;       // for "X.last": index of X; -1: not a copy
  // In a braid, "forward+backward": the segments that it interleaves, and the name of the weave
  // that ordered them. `code` then has copies of the lanes' instructions (Instruction::lane), each
  // lane's in their own order; `kind` and `vstage` of the braid do not describe its lanes.
  std::vector<Lane> lanes;
  std::string weave;
};

// One run of a segment.
struct SegmentRun {
  int segment = -1;
  int microbatch = -1;  // -1: none, the run is once in a step; in a braid: of the first lane
  Few<int, 2> others;   // in a braid: the microbatches of the lanes after the first
  // Set only while programs are made: whether this run and the next one are to become a braid,
  // because the schedule joins their works.
  bool joined = false;
};
// The microbatch of a lane of the run; a segment that is no braid has only lane 0.
inline int microbatch_of(const SegmentRun& run, int lane) {
  return lane == 0 ? run.microbatch : run.others[static_cast<std::size_t>(lane) - 1];
}
// The number of lanes of the run: 1 unless it runs a braid.
inline int lanes_of(const SegmentRun& run) {
  return 1 + static_cast<int>(run.others.size());
}

// A parameter of the stage: its slot, its gradient's slot (-1: it is frozen), and their layouts.
struct ProgramParameter {
  int value = -1;
  int slot = -1, gradient_slot = -1;
  Layout stored;       // layout of the parameter, and of its reduced gradient
  Layout accumulated;  // layout of the gradient before the reduction
  int group = 0;       // the optimizer's group that updates it (Optimizer::groups_of)
  // The shape of a weight that is updated as whole matrices (outputs by inputs): `stacked` leading
  // dims number the matrices (experts), and `rows` dims after these form the rows of a matrix. Both
  // are 0 for all other parameters.
  int stacked = 0, rows = 0;
};

// The number of matrices of a parameter on a rank, and the size of each whole matrix.
struct MatrixSizes {
  std::int64_t stacked = 1, rows = 1, columns = 1;
};
// The sizes of a shape as matrices, of which the first `stacked` dims number the matrices, and
// `rows` dims after these form the rows.
MatrixSizes as_matrices(const std::vector<std::int64_t>& shape, int stacked, int rows);

// For an op that runs in ring steps: the dim whose shards are passed in a ring, and the atoms over
// whose ranks they are passed. In step t a rank computes with the shard of the rank t places before
// it.
struct Rotation {
  Dim dim;
  std::vector<int> atoms;
};

// For an op that a rank computes in slices of a dim, one after the other (Draft::slice).
struct Slicing {
  Dims dims;  // the dim, and the dims that follow it (kv_heads after heads; Op::follows)
  int slices = 1;
  int chain = 0;  // neighbouring ops, whose slices are computed together, have the same number
  friend bool operator==(const Slicing& a, const Slicing& b) {
    return a.dims == b.dims && a.slices == b.slices;
  }
};

// The number of elements of a gradient that are cast at a time, for the optimizer or the norm. The
// number is larger on accelerators: the optimizer's kernel gives 65,536 elements to each block of a
// GPU, so that a piece of the CPU's size would leave most of the GPU idle.
constexpr std::int64_t cast_at_a_time = 1 << 20;
constexpr std::int64_t cast_at_a_time_on_accelerators = 1 << 22;

struct Program {
  std::shared_ptr<const Graph> graph;
  Mesh mesh;
  int stage = 0, stages = 1;
  int stage_atom = -1;         // the mesh's atom over the stages; -1: one stage
  std::vector<int> stage_of;   // the stage of each virtual stage
  std::vector<int> vstage_of;  // the virtual stage of each op; -1: wherever its outputs are needed
  int microbatches = 1;
  // The size of "batch" in each microbatch, over all ranks, if these differ (the graph then has the
  // largest one); empty: the graph's size in all microbatches.
  std::vector<std::int64_t> batches;
  int threads = 1;            // threads of a rank's kernels
  Dtype dtype = Dtype::fp32;  // dtype of the real values with which ops compute
  // The dtype in which gradients are added and reduced; and the dtype of the optimizer's states,
  // and of masters if this dtype is wider than `dtype`.
  Dtype gradient_dtype = Dtype::fp32, optimizer_dtype = Dtype::fp32;
  Dtype reduce_dtype = Dtype::fp32;  // the dtype in which narrower reals are summed over ranks
  std::shared_ptr<const class Optimizer> optimizer;  // null: the step updates nothing
  std::shared_ptr<const struct OuterSteps> outer;    // null: ranks have no replicas that differ
  // Whether an update waits for the step's totals, because these decide how gradients are clipped,
  // or whether the update is left out (overflow, values that are not finite).
  bool update_needs_totals = true;
  std::vector<Slot> slots;
  int loss = -1;  // the slot in which the losses of a step's microbatches are summed
  std::vector<ProgramParameter> parameters;
  std::vector<Bucket> buckets;
  std::vector<Segment> segments;
  std::vector<SegmentRun> timeline;
  int pendings = 0;                   // number of pendings (Instruction::pending) in use
  std::vector<std::string> streams;   // names of the streams of transfers (Move::stream)
  std::vector<Layout> cut;            // how the mesh cuts the iteration space of each op
  std::vector<Layout> follow;         // for each op, the dims that follow cut ones (Op::follows)
  std::int64_t batch_ways = 1;        // number of ranks over which the batch is split
  std::map<int, Rotation> rotations;  // by op, for ops that run in ring steps
  std::map<int, Slicing> slicing;     // by op, for ops that are computed in slices
  // The rows of sparse tensors on the fullest rank, divided by the average over ranks, if groups
  // are cut; for predictions.
  double imbalance = 1;
  // For each permuted dim, its ranges in the order in which they lie (Draft::permute_tokens).
  std::map<Dim, std::vector<Range>> token_permutation;
  int document_parts = 1;  // each document is parted over so many parts of seq

  bool has_masters() const { return optimizer_dtype != dtype; }
  // The dtype of a value of the graph.
  Dtype dtype_of(Scalar scalar, bool fp32_at_least) const;
  const std::string& name_of_parameter(int parameter) const;
  int segment(const std::string& name) const;  // index of the segment of that name; -1: none
  // Index of the segment of a kind and virtual stage; -1: none. `gradient`: Segment::gradient.
  int segment(SegmentKind kind, int vstage, bool gradient = false) const;
  int chunk_of(int vstage) const;  // index of a virtual stage among those of its stage
  // Coordinates of the stage's first rank.
  Coordinates first() const;
  std::vector<int> ranks_of(const RankSet& set, int rank) const;  // ascending
  int ways(const RankSet& set) const;
  // The name of a set of ranks: "dp", "dp*tp", "world"; with stages "pp[0,3]".
  std::string name_of(const RankSet& set) const;
  // The atoms along which ranks have replicas that differ (OuterSteps::atoms).
  const std::vector<int>& replica_atoms() const;
  bool parts_replicas(int atom) const { return std::ranges::count(replica_atoms(), atom) > 0; }
  int replicas() const { return mesh.ways(replica_atoms()); }
  int replica_of(const Coordinates& at) const;  // the index of a rank's replica
  RankSet reduction(const Bucket& bucket) const { return {bucket.reduce_atoms, bucket.stages}; }
  // The ranks over which reduced shards are summed: those of reduction() without
  // Bucket::shard_atoms.
  RankSet shard_reduction(const Bucket& bucket) const;
  // The ranks over which a hook sums gradients: those that have shards of them, if they are kept as
  // shards, else those of reduction().
  RankSet hooked_reduction(const Bucket& bucket) const {
    return bucket.sharded_state < ShardedState::gradients ? reduction(bucket)
                                                          : RankSet{bucket.shard_atoms, {}};
  }
  // Elements on a rank of the bucket's parameters, and of a shard of its flat tensors.
  std::int64_t elements(const Bucket& bucket, const Coordinates& at) const;
  std::int64_t shard_elements(const Bucket& bucket, const Coordinates& at) const;
  MatrixSizes matrices(const ProgramParameter& parameter, const Coordinates& at) const;
  // Elements of a flat slot, if the bucket's shards have `shard` elements.
  std::int64_t flat_elements(const Slot& slot, std::int64_t shard) const;
  // The size of "batch" in a microbatch (-1: the largest size), and the microbatch's first row
  // among the rows of the step.
  std::int64_t batch_of(int microbatch) const;
  std::int64_t first_row(int microbatch) const;
  // How many adjacent rows of a step each microbatch has on each of the ranks over which the batch
  // is split, in the order of the rows (TokenSource::order_of_rows).
  std::vector<std::int64_t> groups_of_rows() const;
  // A dim's global size if the size of "batch" is `batch` (0: as in the graph).
  std::int64_t size(Dim dim, std::int64_t batch) const;
  // The range of each dim of an op on the rank at these coordinates. `part`: which ring step or
  // slice of the op (Instruction::part); `batch`: as for size().
  LocalDims local_dims(int op, const Coordinates& at, int part = 0, std::int64_t batch = 0) const;
  // The ranges of a dim's elements at positions `part`: `part` itself unless the dim is permuted.
  std::vector<Range> permuted(Dim dim, Range part) const;
  std::vector<std::int64_t> local_shape(const Slot& slot, const Coordinates& at,
                                        std::int64_t batch = 0) const;
  std::int64_t local_bytes(const Slot& slot, const Coordinates& at, std::int64_t batch = 0) const;
  int root(int slot) const;  // the slot at the end of the chain of Slot::alias_of
  // The slicing of the op of a compute; null: it is not sliced.
  const Slicing* slicing_of(const Instruction& instruction) const;
  // The index, in a slot's shape, of the dim of which a sliced instruction uses only its slice's
  // part; -1: it uses the whole slot, which lacks the dim or holds one slice only.
  int sliced_at(const Instruction& instruction, int slot) const;
};

// Whether all slots that the instruction reads and writes are persistent; false for the compute of
// an op, and for an instruction that writes no slot. A transfer between persistent slots belongs to
// the step: it begins once for all microbatches, and any of them may wait for it. Any other
// transfer belongs to the microbatch for which it runs.
bool between_lasting(const Program& program, const Instruction& instruction);

}  // namespace mw
