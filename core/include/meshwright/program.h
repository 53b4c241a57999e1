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
  // in that part of the op (Instruction::part).
  LocalDims local_dims(int op, const Coordinates& at, int part = 0, std::int64_t batch = 0) const;
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

// Whether all slots that the instruction reads and writes are persistent; false for an op's, and
// for one that writes none. Such a transfer belongs to the step: it begins once for all
// microbatches, and any of them may wait for it. Any other one belongs to the microbatch for which
// it runs.
bool between_lasting(const Program& program, const Instruction& instruction);

}  // namespace mw
