// The device mesh: named axes over ranks. Ranks are numbered row-major, so that the last axis has
// adjacent ranks. An axis may borrow ranks of other axes (ep takes dp's ranks). Borrowing splits
// axes into *atoms*, the finest factors of which every axis consists. Placements are kept per atom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mw {

// What the ranks of an axis split. Strategies find each other's axes by role, not by name. data:
// the sequences of the batch; sequence: the tokens of a sequence; model: dims of layers, for the
// same tokens; experts: the experts; layers: the stages of a pipeline.
enum class Role : std::uint8_t { none, data, model, sequence, experts, layers };
const char* name_of(Role role);                        // "data"
std::optional<Role> role_of(const std::string& name);  // nothing for "none"
const std::vector<std::string>& names_of_roles();      // all but "none"

// A factor of mesh axes: every axis consists of whole atoms.
struct Atom {
  std::string name;  // the axis' own name if it is one atom, else "dp.0", "dp.1", ...
  int ways = 1;
};

struct Axis {
  std::string name;
  int ways = 1;
  std::vector<int> atoms;  // indices into Mesh::atoms(), outermost first
  bool borrowed = false;
  Role role = Role::none;
};

// An axis that borrows no ranks, for the constructor of Mesh.
struct OwnAxis {
  std::string name;
  int ways = 1;
  Role role = Role::none;
};

// The coordinate of a rank on each atom.
using Coordinates = std::vector<int>;

class Mesh {
 public:
  Mesh() = default;  // one rank, no axes
  static constexpr int most_ranks = 1 << 24;

  // Makes the mesh of all combinations of coordinates on `axes`, outermost first. Throws Error
  // (plan) for a repeated name, ways < 1, or more ranks than most_ranks.
  explicit Mesh(const std::vector<OwnAxis>& axes);

  // Adds an axis of `ways` ranks that it borrows from the innermost ranks of the axes `from`: from
  // the first axis the largest factor of `ways` that it has, from the next one the factor that is
  // still missing, and so on (2 ways from dp 3 and tp 2 are tp's). Throws Error (plan), with the
  // possible ways, if the axes do not have all factors of `ways`.
  void borrow(const std::string& name, int ways, const std::vector<std::string>& from,
              Role role = Role::none);

  // The numbers of ways that borrow() accepts, ascending; if there are many, those around `near`.
  std::vector<int> borrowable(const std::vector<std::string>& from, int near) const;

  int size() const { return size_; }  // number of ranks
  const std::vector<Atom>& atoms() const { return atoms_; }
  const std::vector<Axis>& axes() const { return axes_; }  // in mesh order, borrowing ones last
  std::vector<std::string> names_of_axes() const;          // in the order of axes()
  bool has(const std::string& axis) const;
  const Axis& axis(const std::string& name) const;  // throws Error (plan) with the axes there are
  // The axes of a role, in mesh order, without those that borrow ranks.
  std::vector<Axis> with_role(Role role) const;

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  // The ranks that differ from `rank` on these atoms only, itself among them, row-major.
  std::vector<int> group(int rank, const std::vector<int>& atoms) const;
  // The index of `rank` in group(rank, atoms).
  int index_in_group(int rank, const std::vector<int>& atoms) const;
  int ways(const std::vector<int>& atoms) const;  // product of the atoms' ways
  // The axis that is exactly these atoms, or the atoms' names joined by "*".
  std::string name_of(const std::vector<int>& atoms) const;
  // "dp 2 x tp 4 = 8 ranks".
  std::string describe() const;

 private:
  // The atoms of these axes, each once, in the order in which borrow() takes them.
  std::vector<int> lenders(const std::vector<std::string>& from) const;
  // Splits an atom in two, of which the inner one has `inner` ways.
  void split(int atom, int inner);

  std::vector<Atom> atoms_;
  std::vector<Axis> axes_;
  int size_ = 1;
};

struct Range {
  std::int64_t offset = 0, size = 0;
};
// Part `index` of a dim of `size` elements that is cut into `ways` parts. The sizes of parts differ
// by at most one; the larger parts come first.
Range shard_range(std::int64_t size, int ways, int index);

}  // namespace mw
