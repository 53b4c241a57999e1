// How a rank carries out an op of the optimizer: where, in what pieces, on which elements, and what
// is copied for it. The executor does it (run/executor_updates), the footprint says what it takes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/update_sums.h"
#include "meshwright/program.h"

namespace mw {

// A parameter's matrices on one rank, as they lie in the whole direction.
struct MatrixUpdate : MatrixSizes {
  std::vector<Range> own;  // by dim: where the rank's parameter lies in the whole direction
  std::int64_t first = 0;  // the parameter's first element in the bucket
  std::int64_t begin = 0, end = 0;  // the parameter's elements that the rank updates
  std::int64_t apart = 0;  // bytes of a copy of the rank's part, if that does not lie in one piece
};
MatrixUpdate matrix_update(const RankView& rank, const Instruction& update);

// The side of a parameter's matrices that is cut over ranks, and the atoms over which it is.
// Nothing: the matrices are whole, or cut on both sides.
struct CutMatrices {
  bool rows = false;  // false: columns
  std::vector<int> atoms;
};
std::optional<CutMatrices> cut_of_matrices(const Program& program, int parameter);

// The sizes of the rank's part of a parameter's matrices, which the ranks update by their parts
// (MatrixRanks::shards).
struct MatrixParts : MatrixSizes {
  bool rows_are_cut = false;
  std::int64_t n() const { return rows_are_cut ? columns : rows; }  // the Gram matrices are n by n
  std::int64_t others() const { return rows_are_cut ? rows : columns; }
};
MatrixParts matrix_parts(const RankView& rank, int parameter);

// Whether the rank makes any of what a `whole`, `gram` or `gram_step` makes: it is the owner, or it
// or a rank with other parts of the matrices updates an element of them.
bool takes_part(const RankView& rank, const Instruction& update);

// What the rank updates of the n-th parameter of a bucket whose rule reads sums.
UpdatedPart updated_part(const RankView& rank, int bucket, std::size_t n);
// Where the sums of a bucket lie among those of their round, by parameter of the bucket and by sum,
// and how many numbers each round has.
struct SumPlaces {
  std::vector<std::vector<Range>> of_parameter;
  std::vector<std::int64_t> of_round;
};
SumPlaces places_of_sums(const Program& program, int bucket);

struct UpdateSteps {
  std::int64_t elements = 0;        // elements that the rank updates, or whose directions it makes
  std::int64_t at_a_time = 0;       // elements of a piece, one updated after the other
  bool casts = false;               // a piece of the gradient is a copy in the optimizer's dtype
  int temporaries = 0;              // tensors of a piece that the op allocates beside that copy
  bool host = false;                // in host memory, where the state lies: the gradient goes there
  bool fetches_parameters = false;  // the parameters are copied there too, and come back
};
// The steps of `direction`, and of `apply` on a bucket or on a parameter's matrices, of a rank that
// computes on the CPU or on an accelerator.
UpdateSteps update_steps(const RankView& rank, const Instruction& update, bool accelerator);

}  // namespace mw
