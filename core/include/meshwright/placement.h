// How a tensor is distributed over the mesh: a layout has one Placement for each atom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/few.h"
#include "meshwright/mesh.h"

namespace mw {

// A named tensor dimension: "batch", "seq", "hidden", "heads", ... The name is interned, so that a
// Dim is cheap to copy and compare.
class Dim {
 public:
  Dim() = default;
  Dim(const char* name);         // NOLINT: names are written as literals
  Dim(const std::string& name);  // NOLINT
  const std::string& name() const;
  bool valid() const { return id_ != 0; }
  std::uint16_t id() const { return id_; }
  friend bool operator==(Dim a, Dim b) { return a.id_ == b.id_; }
  friend bool operator!=(Dim a, Dim b) { return a.id_ != b.id_; }
  friend bool operator<(Dim a, Dim b) { return a.id_ < b.id_; }

 private:
  std::uint16_t id_ = 0;
};

using Dims = Few<Dim, 6>;
bool contains(const Dims& dims, Dim dim);
std::vector<std::string> names_of(const Dims& dims);

enum class Reduction : std::uint8_t { sum, max };

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  Reduction reduction = Reduction::sum;  // for `partial`
  Dim dim;                               // for `shard`

  static Placement replicate() { return {}; }
  static Placement shard(Dim dim) { return {Kind::shard, Reduction::sum, dim}; }
  static Placement partial(Reduction r = Reduction::sum) { return {Kind::partial, r, {}}; }
  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_partial() const { return kind == Kind::partial; }
  friend bool operator==(const Placement& a, const Placement& b) {
    return a.kind == b.kind && a.reduction == b.reduction && a.dim == b.dim;
  }
  friend bool operator!=(const Placement& a, const Placement& b) { return !(a == b); }
};

// One Placement per atom of the mesh, in mesh order.
using Layout = Few<Placement, 8>;

// A placement as text: "R", "S(heads)", "P", "P(max)".
std::string to_string(const Placement& placement);
// A layout as text: "dp: S(batch), tp: P". Replicate is left out; "replicated" if nothing remains.
std::string to_string(const Layout& layout, const Mesh& mesh);

// The range of `dim` (global size `size`) that a rank at `at` holds under `layout`. Atoms that
// shard the same dim nest: the outer atom cuts first.
Range local_range(Dim dim, std::int64_t size, const Layout& layout, const Mesh& mesh,
                  const Coordinates& at);
// The sizes of `dim` on each rank of the group of `at` over `atoms`, in group order.
std::vector<std::int64_t> local_sizes(Dim dim, std::int64_t size, const Layout& layout,
                                      const Mesh& mesh, const std::vector<int>& atoms,
                                      const Coordinates& at);

// The ranges of a dim's elements at positions `part`, if the elements lie in the order `order`.
std::vector<Range> lying_at(const std::vector<Range>& order, Range part);
// The order in which the tokens of a row lie whose documents are parted over `ways` ranks. Of each
// document, cut into 2 * ways parts, each rank has the parts r and 2 * ways - 1 - r, for an r that
// turns with the documents. Parts are as even as possible, as are the ranks' numbers of tokens.
// `documents`: the places at which documents begin, ascending, the first one 0.
std::vector<Range> parted_by_documents(const std::vector<std::int64_t>& documents,
                                       std::int64_t tokens, int ways);

}  // namespace mw
