// What a proof knows about one stage's tensors while it follows the program: which value or
// gradient of the graph each tensor holds, and its layout over the ranks. One abstract rank stands
// for all ranks of the stage.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "prove/prove.h"
#include "prove/tables.h"
#include "prove/terms.h"

namespace mw::proving {

inline bool among(const std::vector<int>& list, int one) {
  return std::find(list.begin(), list.end(), one) != list.end();
}

// The only dim of a bucket's flat tensors.
inline const Dim flat_dim("flat");

// A place in a stage's program: an instruction of a segment run.
struct Where {
  int stage = -1, run = -1, instruction = -1, ring_step = -1;
  bool known() const { return run >= 0; }
};

// Thrown by a rule that cannot follow its instruction. The first one ends the proof.
struct Refused {
  Refusal refusal;
};

// The kind of a tensor's content.
enum class ContentKind : std::uint8_t {
  nothing,
  value,      // a value of the graph
  saved,      // what an op's forward keeps for its backward
  gradient,   // a sum of terms (Gradients)
  direction,  // what UpdateRule::direction makes of a parameter's gradient
  update,     // what UpdateRule::whole makes of a matrix parameter's direction
  sums,       // a round of a bucket's UpdateRule::sums; `output` is the round
  gram,       // the Gram matrices of what `steps` steps have made of a parameter's direction
};

struct Content {
  ContentKind what = ContentKind::nothing;
  int id = -1;     // index of a value of the graph; for `saved`, of an op; for `sums`, of a bucket
  int output = 0;  // for `saved`: index among the op's saved tensors
  int microbatch = -1;  // -1: it belongs to the step, as parameters do
  TermSet terms = 0;    // for a gradient: the terms that are in it
  Layout place;
  // `shift`: in a ring, it is the shard of the `shift`-th rank before this one. `steps`: how many
  // ring steps or slices have contributed to it so far, 0 for all. For a direction, `steps` is the
  // number of steps by Gram matrices that have been made.
  int shift = 0, steps = 0;
  // Slice `slice` of `slices` of an op that computes a dim in slices (Program::slicing). The dim is
  // none for a saved tensor of one slice that lacks the dim.
  int slices = 1, slice = 0;
  Dim slice_dim;
  // For a gradient to which an op's slices add one after the other: by term, how many slices have
  // been added. With its last slice a term moves to `terms`.
  std::map<int, int> parts;
};

// A tensor of a microbatch. Several slots may hold it.
struct Tensor {
  Content content;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  Memory memory = Memory::device;
  int holders = 0;       // slots and transfers that hold it
  int readers = 0;       // transfers under way that read it
  bool writing = false;  // a transfer under way writes it
  Where by;
};

// A set of microbatches.
class Microbatches {
 public:
  bool has(int microbatch) const;
  // False: a microbatch was in the set already.
  bool add(int microbatch);
  bool add(const Microbatches& others);
  bool all(int count) const;
  friend bool operator==(const Microbatches& a, const Microbatches& b) {
    return a.words_ == b.words_;
  }

 private:
  std::vector<std::uint64_t> words_;
};

// What the part of a flat tensor that belongs to one parameter holds.
struct Region {
  enum class Kind : std::uint8_t { nothing, parameter, state, gradient, direction };
  Kind kind = Kind::nothing;
  // For a parameter or a state: the number of this step's updates that it contains; -1: it lacks
  // even the update that the step before has left (Bucket::update_overlaps_forward).
  int version = 0;
  std::map<int, Microbatches> sums;  // for a gradient: by term, the microbatches that are in it
  int twice = -1;                    // a term that was added twice for a microbatch; -1: none
  Layout place;                      // layout of a gradient; unused while `sums` is empty
  bool stale = false;                // it is still the gradient of the step before
  Atoms first = 0;                   // atoms on which only the first rank added to the sum
  // Atoms on which, at the next addition, only the first rank keeps the sum so far.
  Atoms begins_beside = 0;
  // Only the rank's own shard of the flat tensor holds this, the rest holds something else.
  bool rest_differs = false;
};

// A bucket's flat tensor, or the slot that sums the losses of a step.
struct Flat {
  int slot = -1, bucket = -1;
  bool shard = false;  // the tensor is itself a rank's shard
  bool there = false;
  bool settled = false;         // every element has been written
  std::vector<Region> regions;  // in the order of Bucket::parameters
  int readers = 0;
  bool writing = false;
  Where by;
};

// The part of a flat tensor that a persistent slot is.
struct FlatView {
  enum class Part : std::uint8_t { none, whole, own, parameter };
  int flat = -1;
  Part part = Part::none;
  int region = -1;  // for Part::parameter: index into Flat::regions
};

// What one stage contributes to a collective that several stages share, or sends in a message.
struct Post {
  Where by;
  Content content;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  std::vector<Region> regions;
  std::vector<int> values;  // by region: the graph's value of its parameter
  Move::Kind kind = Move::Kind::all_reduce;
};

// A transfer that was started and not awaited yet.
struct Underway {
  Where by;
  Move::Kind kind = Move::Kind::all_reduce;
  bool flat = false, hook = false;
  int from = -1, to = -1;  // indices of pool or flat tensors; -1: none
  int reads = -1;          // the flat tensor of which it reads a parameter; -1: none
  int slot = -1;           // the slot named by the start: the target, for a send the source
  Content result;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  std::vector<Region> regions;  // what a flat target will hold
  FlatView view;                // the part of a flat tensor that is the target
  int round = -1;               // round of a collective of several stages; -1: none
  RankSet ranks;
  // The transfer may be over before its wait: a reader of the parameters between two steps awaits
  // what the first step has started, and makes the updates that it has left.
  bool may_be_over = false;
};

// The tensors and progress of one microbatch, or of the step.
struct MicrobatchState {
  std::vector<int> slots;  // by slot: index into the tensor pool; -1: empty
  int held = 0;
  std::vector<std::uint8_t> done;  // by op of the stage: bits of its finished pieces
  std::map<int, Atoms> carried;    // by op: atoms on which forward carried a sum
  std::map<std::pair<int, Piece>, int> next_slice;  // the next slice of a sliced op
  // By op and operand: the gradient slot that the op's first slice added to, and the atoms of which
  // only the first ranks did.
  std::map<std::pair<int, std::size_t>, std::pair<int, std::vector<int>>> slice_targets;
  std::set<std::pair<int, std::vector<std::pair<int, Dim>>>>
      rows;  // sets of sparse rows (StageProof::rows_of) whose number is known
};

}  // namespace mw::proving
