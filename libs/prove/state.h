// What a proof knows of a stage's tensors at a moment: what each holds of the graph's values and
// gradients, and how that lies over the ranks. One abstract rank stands for all of the stage.
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

// The one dim of flat tensors.
inline const Dim flat_dim("flat");

// An instruction of a run, on its stage.
struct Where {
  int stage = -1, run = -1, instruction = -1, ring_step = -1;
  bool known() const { return run >= 0; }
};

// Thrown by the rules; the first one ends a proof.
struct Refused {
  Refusal refusal;
};

enum class What : std::uint8_t {
  nothing,
  value,      // of the graph
  saved,      // what an op's forward keeps for its backward
  gradient,   // a sum of terms
  direction,  // of a parameter's update: made of its gradient
  update,     // of matrices: made of directions
};

struct Content {
  What what = What::nothing;
  int id = -1;          // a value of the graph; of `saved` an op
  int output = 0;       // of `saved`: which
  int microbatch = -1;  // -1: of the step, as parameters are
  int version = 0;      // of a parameter's numbers: how many updates of this step are in them
  TermSet terms = 0;    // of a gradient
  Layout place;
  // In a ring: the shard is that of the `shift`-th rank before; and of how many of the ring's steps
  // it is made, 0 standing for all.
  int shift = 0, steps = 0;
  // The content is of one slice of a dim that its op computes in so many (Program::slicing); there
  // is no dim in what the op keeps of a slice without it.
  int slices = 1, slice = 0;
  Dim slice_dim;
  // Slices add to a gradient one after the other: how many have, by term, of those terms that are
  // not in `terms` yet, as more slices are to come.
  std::map<int, int> parts;
};

// A tensor of a microbatch. Several slots may hold it.
struct Tensor {
  Content content;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  Memory memory = Memory::device;
  int holders = 0;       // slots and transfers
  int readers = 0;       // transfers that read it
  bool writing = false;  // a transfer writes it
  Where by;
};

// A set of microbatches.
class Microbatches {
 public:
  bool has(int microbatch) const;
  // Whether it was not there yet.
  bool add(int microbatch);
  bool add(const Microbatches& others);
  bool all(int count) const;
  friend bool operator==(const Microbatches& a, const Microbatches& b) {
    return a.words_ == b.words_;
  }

 private:
  std::vector<std::uint64_t> words_;
};

// What a flat tensor holds of one parameter.
struct Region {
  enum class Kind : std::uint8_t { nothing, parameter, state, gradient, direction };
  Kind kind = Kind::nothing;
  // How many updates of this step are in a parameter's or a state's numbers; -1: not even that
  // which the step before has left.
  int version = 0;
  std::map<int, Microbatches> sums;  // of a gradient: which microbatches of which term
  int twice = -1;                    // a term that came again for a microbatch; -1: none
  Layout place;                      // of a gradient; where there are no sums it says nothing
  bool stale = false;                // of a gradient: of the step before
  Atoms first = 0;          // of a sum: ranks of these that are not the first gave nothing to it
  Atoms begins_beside = 0;  // what is added next leaves the sum so far to the first rank of these
  // A flat tensor of which ranks keep shards holds something else outside of the rank's own shard.
  bool rest_differs = false;
};

// A bucket's flat tensor, or the step's loss.
struct Flat {
  int slot = -1, bucket = -1;
  bool shard = false;  // it is a rank's shard itself
  bool there = false;
  bool settled = false;         // nothing in it is unwritten
  std::vector<Region> regions;  // as Bucket::parameters
  int readers = 0;
  bool writing = false;
  Where by;
};

// What a persistent slot is of a flat tensor.
struct FlatView {
  enum class Part : std::uint8_t { none, whole, own, parameter };
  int flat = -1;
  Part part = Part::none;
  int region = -1;  // of `parameter`
};

// Contributions of one stage to a collective that stages share, or a message.
struct Post {
  Where by;
  Content content;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  std::vector<Region> regions;
  std::vector<int> values;  // of the regions: parameters' values
  Move::Kind kind = Move::Kind::all_reduce;
};

// A transfer that was begun and not awaited.
struct Underway {
  Where by;
  Move::Kind kind = Move::Kind::all_reduce;
  bool flat = false, hook = false;
  int from = -1, to = -1;  // tensors of the pool, or flats; -1: none
  int reads = -1;          // a flat of which it reads a parameter
  int slot = -1;           // that it was begun for: its target, of a send its source
  Content result;
  Dims dims;
  Dtype dtype = Dtype::fp32;
  std::vector<Region> regions;  // of a flat
  FlatView view;                // of the target
  int round = -1;               // of a collective that stages share
  RankSet ranks;
  // It may be over: whoever reads the parameters between two steps awaits what the first of them
  // has begun, and makes the updates that it has left.
  bool may_be_over = false;
};

struct OfMicrobatch {
  std::vector<int> slots;  // tensors of the pool; -1: none
  int held = 0;
  std::vector<std::uint8_t> done;                   // of each of the stage's ops: pieces
  std::map<int, Atoms> carried;                     // of the ops that carried a sum on
  std::map<std::pair<int, Piece>, int> next_slice;  // of ops in slices
  // Where the first slice of an op added the gradient of an operand, and which ranks did.
  std::map<std::pair<int, std::size_t>, std::pair<int, std::vector<int>>> slice_targets;
  std::set<std::pair<int, std::vector<std::pair<int, Dim>>>>
      rows;  // of sparse values: known counts
};

}  // namespace mw::proving
