// The sizes of a program on one rank: bytes of slots, shards of buckets, costs of ops, and the
// local steps and bytes of moves, which core/src/run/redistribute.cpp carries out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scratch.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

// The pieces of a tensor along one dim, as they lie one after the other in a flat buffer.
struct Pieces {
  std::vector<std::int64_t> shape;        // shape of the tensor
  std::int64_t dim = 0;                   // the dim along which it is cut, as an index into `shape`
  std::vector<std::int64_t> sizes = {1};  // size of each piece along `dim`
  // The size of every piece in the buffer along `dim`, filled up with zeros; 0: no padding.
  std::int64_t width = 0;

  std::vector<std::int64_t> slab(std::size_t piece) const;  // shape of a piece in the buffer
  std::vector<std::int64_t> splits() const;                 // elements of each piece in the buffer
  std::int64_t elements() const;                            // elements of the buffer
  bool pads() const;                                        // whether any piece has padding
  bool lies() const;  // whether the tensor's storage is the first part of the buffer, uncopied
};
// A tensor as one piece.
Pieces whole(std::vector<std::int64_t> shape);

// How one rank carries out a move: it packs what it sends, communicates, and joins what arrived.
struct MoveSteps {
  std::int64_t index = 0;  // index of the rank in the group
  Pieces sent, arrived;
  bool packs = false;     // whether the tensor is copied to a buffer before it is sent
  bool receives = false;  // whether it receives into a new buffer, not over what it sends
  bool joins = false;     // whether the result is a copy of what arrived, not a part of that buffer

  // Elements allocated by start and alive until the wait, and elements allocated by the wait for
  // the result.
  std::int64_t held() const {
    return (packs ? sent.elements() : 0) + (receives ? arrived.elements() : 0);
  }
  std::int64_t joined() const;
};

// The steps of a move on the rank at `at`. `dims`, `shape`: of the tensor on that rank before the
// move. `size`: returns a dim's global size.
MoveSteps move_steps(const Move& move, const Dims& dims, const std::vector<std::int64_t>& shape,
                     const Layout& from, const Layout& to, const Mesh& mesh, const Coordinates& at,
                     const std::function<std::int64_t(Dim)>& size);

// The sizes of a move on one rank, in bytes.
struct MoveSize {
  std::int64_t wire = 0;          // sent, as Communicator posts it; 0 for local moves
  std::int64_t payload = 0;       // size of the collective's larger buffer on this rank
  std::int64_t held = 0;          // allocated by start and alive until the wait
  std::int64_t finish = 0;        // allocated by the wait while `held` is still alive
  std::int64_t result = 0;        // size of the storage that the output keeps
  std::int64_t copied = 0;        // copied by local packing and joining
  bool output_is_source = false;  // the output is the input's own storage
  bool output_is_held = false;    // the output is what start allocated: the wait copies nothing
};

// The part of a microbatch's data that a data slot holds on one rank.
struct DataCut {
  Range rows;                  // rows of the microbatch
  std::vector<Range> columns;  // ranges of each row, in the order in which they lie
  bool copies = false;         // whether the slot is a copy, not a view, of the rows that are read
  bool of_rows(const Range& other) const {
    return rows.offset == other.offset && rows.size == other.size;
  }
};

class RankView;

// What documents leave of the work of ops in one step.
class DocumentWork {
 public:
  virtual ~DocumentWork() = default;
  // Microbatches of one kind have nearly equal shares on the rank.
  virtual int kind(const RankView& rank, int microbatch) const = 0;
  // OpType::share_executed for the rows of a microbatch.
  virtual double share(const RankView& rank, int op, int part, int microbatch) const = 0;
};

class RankView {
 public:
  // Keeps a reference to the program. `batch`: the sequences of a microbatch over all ranks; 0: as
  // many as the graph has. `scratch`: the scratch of kernels on another device, which must outlive
  // this view; null: kernels run on this machine's CPU. `work`: ops cost what documents
  // leave of their work in this microbatch; null: each row is priced as one document.
  RankView(const Program& program, Coordinates at, std::int64_t batch = 0,
           const DeviceScratch* scratch = nullptr,
           std::shared_ptr<const DocumentWork> work = nullptr, int microbatch = 0);

  const Program& program() const { return program_; }
  const Coordinates& at() const { return at_; }
  std::int64_t batch() const { return batch_; }
  const DeviceScratch* scratch() const { return scratch_; }
  const std::shared_ptr<const DocumentWork>& work() const { return work_; }
  std::int64_t bytes(int slot) const {
    if (bytes_[slot] < 0) size_slot(slot);
    return bytes_[slot];
  }
  // The op's local dims and its cost. `part`: which ring step or slice of the op
  // (Instruction::part).
  const LocalDims& dims(int op, int part = 0) const;
  const Cost& cost(int op, Piece piece, int part = 0) const;
  // The scratch of a piece's kernel, on this machine or on the device. With `ring_alike`, of the
  // largest of these ring steps.
  Scratch workspace(int op, Piece piece, int part = 0, int ring_alike = 0) const;
  // Bytes of a slot that the instruction reads or writes; if its op is computed in slices, the
  // bytes of its slice.
  std::int64_t bytes_of_slice(const Instruction& i, int slot) const;
  // Bytes that the executor copies of a slice's operands: parts of operands that are no parameters,
  // and zeros for an additive operand in all slices but the first.
  std::int64_t copied_operands(const Instruction& i) const;
  // Bytes of gradients that the instruction's op adds to, and therefore reads. `begun`: slots of
  // the step's sums to which something was added; the instruction's own are inserted. The first
  // addition to a sum only writes.
  std::int64_t added_to(const Instruction& i, std::set<int>& begun) const;
  // The representative of all ops that cost the same as `op` (LikeOps).
  int like(int op) const { return like_.first(op); }
  // Whether the rank has coordinate 0 on all of these atoms (Instruction::contributing).
  bool contributes(const std::vector<int>& atoms) const;
  // Whether the rank is the one that makes a matrix's update (Instruction::owner).
  bool makes_update(const Instruction& i) const {
    return i.owner < 0 || index_among(i.contributing[0]) == i.owner;
  }
  // Whether the rank runs this compute. It does not if only other ranks contribute its gradients.
  bool runs(const Instruction& instruction) const;
  DataCut data_cut(int slot) const;
  // The local steps of a move (not of sparse rows), and the bytes of any move.
  MoveSteps steps(const Instruction& instruction) const;
  MoveSize size_of(const Instruction& instruction) const;
  // Ranges of a bucket's flat elements: the rank's shard (all elements if the bucket is not
  // sharded), the range that a flat slot holds, and the range of a parameter.
  Range shard(int bucket) const { return shards_[bucket]; }
  Range part(int slot) const;
  Range place(int parameter) const { return places_[parameter]; }
  // The range of a slot of FlatSlots::of_matrix that belongs to a parameter (empty if the rank
  // updates no element of the parameter), and all elements of the slot on this rank.
  Range of_matrix(int slot, int parameter) const;
  Range all_of_matrix(int slot) const { return {0, of_matrix(slot, -1).offset}; }
  // ReductionHook::cost of a bucket's hook; zeros without a hook.
  ReductionCost reduction(int bucket) const;
  // ReductionHook::gather_cost of a bucket's gather_hook; zeros without one.
  ReductionCost gather(int bucket) const;

 private:
  Scratch make_workspace(int op, Piece piece, int part, int ring_alike) const;
  KernelTrial trial(int op, Piece piece, int part) const;
  void size_slot(int slot) const;
  MoveSize size_of_exchange(const Instruction& instruction) const;
  MoveSize size_of_steps(const Instruction& instruction) const;
  int index_among(const std::vector<int>& atoms) const;

  const Program& program_;
  const Coordinates at_;
  const std::int64_t batch_;
  const DeviceScratch* scratch_;
  std::shared_ptr<const DocumentWork> work_;
  int microbatch_;
  // Bytes of each slot, negative until they are asked for; persistent slots are sized at once.
  mutable std::vector<std::int64_t> bytes_;
  // A number for each slot: slots of equal dims, layouts and dtypes have the same; -1: a flat slot.
  mutable std::vector<int> shapes_;
  mutable std::unordered_multimap<std::size_t, int> sized_;  // the first slot of a shape, by digest
  std::vector<Range> shards_;                                // the shard of each bucket
  std::vector<Range> places_;                                // the range of each parameter
  // The next caches have entries for the representatives of like_ only.
  mutable LikeOps like_;
  mutable std::map<std::pair<int, int>, LocalDims> ring_dims_;  // by op and part, from part 1 on
  mutable std::map<std::tuple<int, Piece, int>, Cost> ring_costs_;
  struct OfOp {
    std::optional<LocalDims> dims;
    std::array<std::optional<Cost>, 4> costs;          // by piece
    std::array<std::optional<Scratch>, 4> workspaces;  // by piece, for ops without ring steps
  };
  OfOp& of(int op) const;
  mutable std::deque<OfOp> ops_;                                            // by LikeOps::number
  mutable std::map<std::tuple<int, Piece, int, int>, Scratch> workspaces_;  // for ring steps
  // The size of a move, and all that it depends on.
  struct SizedMove {
    Move::Kind kind;
    Dim from, to;
    int source, target;  // numbers of the slots' shapes (shapes_)
    bool aliased;
    std::vector<int> atoms;
    MoveSize size;
  };
  mutable std::unordered_multimap<std::size_t, SizedMove> sizes_;  // by digest
};

// One RankView for each size of microbatch, and for each kind of work that documents leave, of the
// same rank.
class RankViews {
 public:
  // `largest`: the view for the largest microbatch, which must outlive this object.
  explicit RankViews(const RankView& largest);
  RankViews(const Program& program, const Coordinates& at);
  // Microbatches of the same size and the same DocumentWork::kind are of the same kind. Kind 0 has
  // the largest size, and serves for instructions that belong to no microbatch.
  int kinds() const { return static_cast<int>(views_.size()); }
  int kind(int microbatch) const { return microbatch < 0 ? 0 : kind_.at(microbatch); }
  const RankView& of_kind(int kind) const { return *views_.at(kind); }
  const RankView& of(int microbatch) const { return *views_[kind(microbatch)]; }

 private:
  explicit RankViews(std::shared_ptr<const RankView> largest);

  std::vector<std::shared_ptr<const RankView>> views_;
  std::vector<int> kind_;  // the kind of each microbatch
};

// The indices of all atoms of the mesh.
std::vector<int> world_atoms(const Mesh& mesh);

// A class of ranks on which all sizes of a program are the same: one of them, and their number.
struct RankClass {
  Coordinates at;
  std::int64_t ranks = 1;
};

// The classes of a program's ranks. Their number grows with the uneven cuts, not with the ranks.
std::vector<RankClass> rank_classes(const Program& program);

}  // namespace mw
