// A program as one rank sees it: the sizes of its slots, its shards, and the steps and bytes of
// moves, which core/src/run/redistribute.cpp carries out.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scratch.h"
#include "meshwright/program.h"
#include "meshwright/reduction_hook.h"

namespace mw {

// A tensor in pieces along a dim, one after the other in a flat buffer.
struct Pieces {
  std::vector<std::int64_t> shape;  // of the tensor
  std::int64_t dim = 0;
  std::vector<std::int64_t> sizes = {1};  // of each along the dim
  std::int64_t width = 0;                 // in the buffer, with zeros at its end; 0: its size

  std::vector<std::int64_t> slab(std::size_t piece) const;  // its shape in the buffer
  std::vector<std::int64_t> splits() const;                 // elements of each in the buffer
  std::int64_t elements() const;                            // of the buffer
  bool pads() const;
  bool lies() const;  // the tensor is the buffer's first part as it is
};
// In one piece.
Pieces whole(std::vector<std::int64_t> shape);

struct MoveSteps {
  std::int64_t index = 0;  // of the rank in the group
  Pieces sent, arrived;
  bool packs = false;     // what is sent is copied to a buffer; else it is the tensor itself
  bool receives = false;  // into a buffer of its own; else over what is sent, or nothing
  bool joins = false;     // the result is a copy; else (the first part of) what arrived

  // Elements that are allocated until the move is awaited, and then for the result.
  std::int64_t held() const {
    return (packs ? sent.elements() : 0) + (receives ? arrived.elements() : 0);
  }
  std::int64_t joined() const;
};

// The steps of a move of a tensor of these dims that has this shape on the rank at `at`. `size`:
// a dim's global size.
MoveSteps move_steps(const Move& move, const Dims& dims, const std::vector<std::int64_t>& shape,
                     const Layout& from, const Layout& to, const Mesh& mesh, const Coordinates& at,
                     const std::function<std::int64_t(Dim)>& size);

// A move on one rank, in bytes.
struct MoveSize {
  std::int64_t wire = 0;          // sent, as Communicator posts it; 0 for local moves
  std::int64_t payload = 0;       // of the collective's larger buffer on this rank
  std::int64_t held = 0;          // allocated by start and alive until the wait
  std::int64_t finish = 0;        // allocated by the wait while `held` is still alive
  std::int64_t result = 0;        // of the storage that the output keeps
  std::int64_t copied = 0;        // by local packing and joining
  bool output_is_source = false;  // the output is the input's own storage
  bool output_is_held = false;    // the output is what start allocated: the wait copies nothing
};

// What a slot takes of a microbatch's data on one rank.
struct DataCut {
  Range rows;                  // of the microbatch's
  std::vector<Range> columns;  // of all, as they lie
  bool copies = false;         // else it is a view of the rows that are read
  bool of_rows(const Range& other) const {
    return rows.offset == other.offset && rows.size == other.size;
  }
};

class RankView {
 public:
  // Keeps a reference to the program. `batch`: the sequences of a microbatch over all ranks; 0: as
  // many as the graph has. `scratch`: says what kernels allocate on a device, and outlives this;
  // null: the kernels are this machine's.
  RankView(const Program& program, Coordinates at, std::int64_t batch = 0,
           const DeviceScratch* scratch = nullptr);

  const Program& program() const { return program_; }
  const Coordinates& at() const { return at_; }
  std::int64_t batch() const { return batch_; }
  const DeviceScratch* scratch() const { return scratch_; }
  std::int64_t bytes(int slot) const {
    if (bytes_[slot] < 0) size_slot(slot);
    return bytes_[slot];
  }
  // `part`: of an op that is computed in several (Instruction::part).
  const LocalDims& dims(int op, int part = 0) const;
  const Cost& cost(int op, Piece piece, int part = 0) const;
  // Bytes that a piece's kernel takes for itself where this machine or the device computes it. Of
  // several ring steps: of the one that takes most.
  Scratch workspace(int op, Piece piece, int part = 0, int ring_alike = 0) const;
  // Bytes of a slot that the instruction reads or writes: where its op is computed in slices, those
  // of its slice's part.
  std::int64_t bytes_of_slice(const Instruction& i, int slot) const;
  // Bytes that an executor copies of a slice's operands: parts of what is no parameter, and zeros
  // for an additive operand that counts in the first slice alone.
  std::int64_t copied_operands(const Instruction& i) const;
  // One of the ops that cost the same (LikeOps): what is known of it holds for all.
  int like(int op) const { return like_.first(op); }
  // Whether it is at the start of these atoms (Instruction::contributing).
  bool contributes(const std::vector<int>& atoms) const;
  // Whether the rank runs this compute: not if all its gradients are left to other ranks.
  bool runs(const Instruction& instruction) const;
  DataCut data_cut(int slot) const;
  // The steps of a move that is not of sparse rows; and what a move takes.
  MoveSteps steps(const Instruction& instruction) const;
  MoveSize size_of(const Instruction& instruction) const;
  // Which of a bucket's elements are the rank's shard (all of them if it has none), a flat slot's,
  // and a parameter's.
  Range shard(int bucket) const { return shards_[bucket]; }
  Range part(int slot) const;
  Range place(int parameter) const { return places_[parameter]; }
  // The elements that a flat slot of matrices (FlatSlots::of_matrix) has of a parameter, none where
  // the rank updates no element of the parameter; and all elements that the slot has on the rank.
  Range of_matrix(int slot, int parameter) const;
  Range all_of_matrix(int slot) const { return {0, of_matrix(slot, -1).offset}; }
  // What a bucket's hook takes; nothing without one.
  ReductionCost reduction(int bucket) const;

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
  // Bytes of each slot, negative until they are asked for. Slots that last are sized at once.
  mutable std::vector<std::int64_t> bytes_;
  mutable std::vector<int> shapes_;  // equal numbers, equal dims, layouts and dtypes; -1: flat
  mutable std::unordered_multimap<std::size_t, int> sized_;  // the first slot of a shape, by digest
  std::vector<Range> shards_;                                // of each bucket
  std::vector<Range> places_;                                // of each parameter
  // What follows is kept of ops that are alike by the first one.
  mutable LikeOps like_;
  mutable std::map<std::pair<int, int>, LocalDims> ring_dims_;  // from the second ring step on
  mutable std::map<std::tuple<int, Piece, int>, Cost> ring_costs_;
  struct OfOp {
    std::optional<LocalDims> dims;
    std::array<std::optional<Cost>, 4> costs;          // by piece
    std::array<std::optional<Scratch>, 4> workspaces;  // of ops that take no ring steps
  };
  OfOp& of(int op) const;
  mutable std::deque<OfOp> ops_;                                            // by LikeOps::number
  mutable std::map<std::tuple<int, Piece, int, int>, Scratch> workspaces_;  // in ring steps
  // What a move between slots of these shapes takes, by what else decides.
  struct SizedMove {
    Move::Kind kind;
    Dim from, to;
    int source, target;  // shapes
    bool aliased;
    std::vector<int> atoms;
    MoveSize size;
  };
  mutable std::unordered_multimap<std::size_t, SizedMove> sizes_;  // by digest
};

// A rank's sizes for microbatches of different sizes, alike in all else.
class RankViews {
 public:
  // Views the rank that `largest` views, which must outlive this; or one with a view of its own.
  explicit RankViews(const RankView& largest);
  RankViews(const Program& program, const Coordinates& at);
  // Microbatches of one kind are of one size; kind 0: of the largest,
  // and of what is of no microbatch.
  int kinds() const { return static_cast<int>(views_.size()); }
  int kind(int microbatch) const { return microbatch < 0 ? 0 : kind_.at(microbatch); }
  const RankView& of_kind(int kind) const { return *views_.at(kind); }
  const RankView& of(int microbatch) const { return *views_[kind(microbatch)]; }

 private:
  explicit RankViews(std::shared_ptr<const RankView> largest);

  std::vector<std::shared_ptr<const RankView>> views_;
  std::vector<int> kind_;  // of each microbatch
};

// Every atom.
std::vector<int> world_atoms(const Mesh& mesh);

// Ranks with the same sizes throughout, and one of them.
struct RankClass {
  Coordinates at;
  std::int64_t ranks = 1;
};

// The classes of a program's ranks. Their number grows with uneven cuts, not with ranks.
std::vector<RankClass> rank_classes(const Program& program);

}  // namespace mw
