// The device mesh: named axes over ranks. Ranks are counted row-major, so the last axis is
// adjacent. An axis may borrow ranks of other axes (ep takes dp's ranks): borrowing splits axes
// into *atoms*, the finest factors that every axis is made of. Placements are kept per atom.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mw {

// What the ranks of an axis split. Strategies find each other's axes by it, whatever the names:
// data: sequences of the batch, so that each rank has tokens of its own; sequence: the tokens of a
// sequence; model: the dims of layers, over the same tokens; experts; layers: the stages.
enum class Role : std::uint8_t { none, data, model, sequence, experts, layers };
const char* name_of(Role role);                        // "data"
std::optional<Role> role_of(const std::string& name);  // nothing for "none"
const std::vector<std::string>& names_of_roles();      // all but "none"

// A factor of the mesh that no axis cuts further.
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

// An axis with ranks of its own, as a mesh is made of them.
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

  // The product of `axes`, outermost first. Throws Error (plan) on a repeated name, ways < 1, or
  // more ranks than most_ranks.
  explicit Mesh(const std::vector<OwnAxis>& axes);

  // Adds an axis of `ways` that takes the innermost ranks of the axes named in `from`: of the first
  // as many as `ways` can be made of, of the next as many as are then missing, and so on (dp 3, tp
  // 2: 2 ways are tp's). Throws Error (plan) with the ways that are possible unless `ways`
  // divides the product.
  void borrow(const std::string& name, int ways, const std::vector<std::string>& from,
              Role role = Role::none);

  // The ways that borrow() takes, ascending; where they are many, those around `near`.
  std::vector<int> borrowable(const std::vector<std::string>& from, int near) const;

  int size() const { return size_; }  // ranks
  const std::vector<Atom>& atoms() const { return atoms_; }
  const std::vector<Axis>& axes() const { return axes_; }  // mesh order, borrowed ones last
  std::vector<std::string> names_of_axes() const;          // in that order
  bool has(const std::string& axis) const;
  const Axis& axis(const std::string& name) const;  // throws Error (plan) with the axes there are
  // The axes with ranks of their own that have the role, in mesh order.
  std::vector<Axis> with_role(Role role) const;

  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& coordinates) const;
  // The ranks that differ from `rank` on these atoms only, itself among them, row-major.
  std::vector<int> group(int rank, const std::vector<int>& atoms) const;
  // Index of `rank` in that group.
  int index_in_group(int rank, const std::vector<int>& atoms) const;
  int ways(const std::vector<int>& atoms) const;  // product
  // The axis that is exactly these atoms, or the atoms' names joined by "*".
  std::string name_of(const std::vector<int>& atoms) const;
  // "dp 2 x tp 4 = 8 ranks".
  std::string describe() const;

 private:
  // The atoms of these axes, each once, in the order in which they lend.
  std::vector<int> lenders(const std::vector<std::string>& from) const;
  // Splits an atom in two, of which the inner one has `inner` ways.
  void split(int atom, int inner);

  std::vector<Atom> atoms_;
  std::vector<Axis> axes_;
  int size_ = 1;
};

// The part of a dim of `size` that part `index` of `ways` holds: sizes differ by at most one, the
// larger parts first.
struct Range {
  std::int64_t offset = 0, size = 0;
};
Range shard_range(std::int64_t size, int ways, int index);

}  // namespace mw
