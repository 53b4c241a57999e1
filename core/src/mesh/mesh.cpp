// Builds the device mesh: coordinates of ranks, groups along axes, and the split of axes into
// atoms where one axis borrows ranks of another.
#include "meshwright/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/divisors.h"
#include "meshwright/error.h"

namespace mw {

namespace {

// The axes as text, "dp 2 x tp 4", without the axes that borrow ranks.
std::string product(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& a : axes) {
    if (!a.borrowed) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", a.name, a.ways);
  }
  return text;
}

// The divisors of `size`; if there are many, only those around `value`.
std::vector<int> near_divisors(int size, int value) {
  std::vector<int> all;
  for (std::int64_t d : divisors(size)) all.push_back(static_cast<int>(d));
  constexpr std::ptrdiff_t most = 16;
  const auto next = std::upper_bound(all.begin(), all.end(), value);
  const auto last = std::min(all.end() - next, most / 2);
  all.erase(next + last, all.end());
  if (const auto count = std::ssize(all); count > most) all.erase(all.begin(), all.end() - most);
  return all;
}

constexpr std::array<const char*, 6> role_names = {"none",     "data",    "model",
                                                   "sequence", "experts", "layers"};

}  // namespace

const char* name_of(Role role) {
  return role_names.at(static_cast<std::size_t>(role));
}

std::optional<Role> role_of(const std::string& name) {
  for (std::size_t r = 1; r < role_names.size(); ++r) {
    if (name == role_names[r]) return static_cast<Role>(r);
  }
  return std::nullopt;
}

const std::vector<std::string>& names_of_roles() {
  static const std::vector<std::string> names(role_names.begin() + 1, role_names.end());
  return names;
}

Mesh::Mesh(const std::vector<OwnAxis>& axes) {
  Problems problems;
  double ranks = 1;  // a double, which no product of ints overflows
  for (const auto& [name, ways, role] : axes) {
    if (ways < 1) {
      problems.add(Stage::plan, "axis.ways", "", fmt::format("axis {} has {} ways", name, ways),
                   "an axis has at least 1");
    }
    if (has(name)) {
      problems.add(Stage::plan, "axis.twice", "", fmt::format("two axes are named {}", name),
                   "each strategy needs an axis of its own");
      continue;
    }
    const int atom = static_cast<int>(atoms_.size());
    atoms_.push_back({name, std::max(ways, 1)});
    axes_.push_back({name, std::max(ways, 1), {atom}, false, role});
    ranks *= std::max(ways, 1);
  }
  if (ranks > most_ranks) {
    problems.add(Stage::plan, "plan.ranks", "",
                 fmt::format("plan: {} = {:.0f} ranks; a mesh has {} at most", product(axes_),
                             ranks, most_ranks),
                 "use fewer ways");
  }
  problems.throw_if_any();
  size_ = static_cast<int>(ranks);
}

std::vector<std::string> Mesh::names_of_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) names.push_back(axis.name);
  return names;
}

bool Mesh::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == axis; });
}

const Axis& Mesh::axis(const std::string& name) const {
  std::string known;
  for (const Axis& a : axes_) {
    if (a.name == name) return a;
    known += (known.empty() ? "" : ", ") + a.name;
  }
  throw Error(Stage::plan, "axis.unknown", "", fmt::format("the mesh has no axis {}", name),
              known.empty() ? "it has no axes" : "its axes are " + known);
}

std::vector<Axis> Mesh::with_role(Role role) const {
  std::vector<Axis> found;
  std::copy_if(axes_.begin(), axes_.end(), std::back_inserter(found),
               [&](const Axis& axis) { return axis.role == role && !axis.borrowed; });
  return found;
}

void Mesh::split(int atom, int inner) {
  atoms_[atom].ways /= inner;
  atoms_.insert(atoms_.begin() + atom + 1, Atom{"", inner});
  for (Axis& a : axes_) {
    std::vector<int> moved;
    for (int other : a.atoms) {
      moved.push_back(other > atom ? other + 1 : other);
      if (other == atom) moved.push_back(atom + 1);
    }
    a.atoms = moved;
  }
}

std::vector<int> Mesh::lenders(const std::vector<std::string>& from) const {
  std::vector<int> lenders;
  for (const std::string& axis_name : from) {
    const std::vector<int>& atoms = axis(axis_name).atoms;
    std::copy_if(atoms.rbegin(), atoms.rend(), std::back_inserter(lenders), [&](int atom) {
      return std::find(lenders.begin(), lenders.end(), atom) == lenders.end();
    });
  }
  return lenders;
}

std::vector<int> Mesh::borrowable(const std::vector<std::string>& from, int near) const {
  return near_divisors(ways(lenders(from)), near);
}

void Mesh::borrow(const std::string& name, int ways, const std::vector<std::string>& from,
                  Role role) {
  if (has(name))
    throw Error(Stage::plan, "axis.twice", "", fmt::format("two axes are named {}", name));
  std::vector<int> lenders = this->lenders(from);
  // Each atom lends its greatest common divisor with the factor that is still missing. This finds a
  // solution if there is one, since the first atoms lend as many factors of each prime as they can.
  int left = ways;
  std::vector<int> lent;  // the ways that each atom lends, innermost
  for (int atom : lenders) {
    lent.push_back(std::gcd(atoms_[atom].ways, left));
    left /= lent.back();
  }
  if (left != 1 || ways < 1) {
    std::string lender_names = fmt::format("{}", fmt::join(from, ", "));
    throw Error(Stage::plan, "axis.cannot-borrow", "ways",
                fmt::format("{}({}) cannot borrow ranks of {} ({} ranks)", name, ways, lender_names,
                            this->ways(lenders)),
                fmt::format("possible: {}", fmt::join(borrowable(from, ways), ", ")));
  }
  std::vector<int> taken;
  for (std::size_t l = 0; l < lenders.size(); ++l) {
    if (lent[l] == 1) continue;
    const int atom = lenders[l];
    if (lent[l] == atoms_[atom].ways) {
      taken.push_back(atom);
      continue;
    }
    split(atom, lent[l]);
    for (std::vector<int>* list : {&lenders, &taken}) {
      for (int& other : *list) other = other > atom ? other + 1 : other;
    }
    taken.push_back(atom + 1);
  }
  std::sort(taken.begin(), taken.end());
  axes_.push_back({name, ways, taken, true, role});
  for (const Axis& a : axes_) {  // names the atoms "dp", or "dp.0", "dp.1" if the axis has several
    if (a.borrowed) continue;
    for (std::size_t i = 0; i < a.atoms.size(); ++i) {
      atoms_[a.atoms[i]].name = a.atoms.size() == 1 ? a.name : fmt::format("{}.{}", a.name, i);
    }
  }
}

Coordinates Mesh::coordinates(int rank) const {
  Coordinates at(atoms_.size());
  for (std::size_t i = atoms_.size(); i-- > 0;) {
    at[i] = rank % atoms_[i].ways;
    rank /= atoms_[i].ways;
  }
  return at;
}

int Mesh::rank(const Coordinates& coordinates) const {
  int rank = 0;
  for (std::size_t i = 0; i < atoms_.size(); ++i) rank = rank * atoms_[i].ways + coordinates[i];
  return rank;
}

std::vector<int> Mesh::group(int rank, const std::vector<int>& atoms) const {
  Coordinates at = coordinates(rank);
  std::vector<int> sorted = atoms;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> ranks;
  const int count = ways(sorted);
  for (int k = 0; k < count; ++k) {
    int rest = k;
    for (std::size_t i = sorted.size(); i-- > 0;) {
      at[sorted[i]] = rest % atoms_[sorted[i]].ways;
      rest /= atoms_[sorted[i]].ways;
    }
    ranks.push_back(this->rank(at));
  }
  return ranks;
}

int Mesh::index_in_group(int rank, const std::vector<int>& atoms) const {
  std::vector<int> sorted = atoms;
  std::sort(sorted.begin(), sorted.end());
  const Coordinates at = coordinates(rank);
  int index = 0;
  for (int atom : sorted) index = index * atoms_[atom].ways + at[atom];
  return index;
}

int Mesh::ways(const std::vector<int>& atoms) const {
  return std::accumulate(atoms.begin(), atoms.end(), 1,
                         [&](int n, int atom) { return n * atoms_[atom].ways; });
}

std::string Mesh::name_of(const std::vector<int>& atoms) const {
  std::vector<int> sorted = atoms;
  std::sort(sorted.begin(), sorted.end());
  for (const Axis& a : axes_) {
    if (a.atoms == sorted) return a.name;
  }
  std::string name;
  for (int atom : sorted) name += (name.empty() ? "" : "*") + atoms_[atom].name;
  return name.empty() ? "none" : name;
}

std::string Mesh::describe() const {
  std::string text = product(axes_);
  if (text.empty()) return "1 rank";
  text += fmt::format(" = {} rank{}", size_, size_ == 1 ? "" : "s");
  for (const Axis& a : axes_) {
    if (a.borrowed) text += fmt::format(", {} {} borrowed", a.name, a.ways);
  }
  return text;
}

Range shard_range(std::int64_t size, int ways, int index) {
  const std::int64_t part = size / ways, rest = size % ways;
  return {index * part + std::min<std::int64_t>(index, rest), part + (index < rest ? 1 : 0)};
}

}  // namespace mw
