// Interns the names of dims, writes placements as text, and computes the range of a dim that a rank
// holds under a layout.
#include "meshwright/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// Interned names. A deque keeps references valid as it grows.
struct Names {
  std::shared_mutex mutex;
  std::deque<std::string> list{""};
  std::unordered_map<std::string, std::uint16_t> ids;
  // The names by id, for readers without the lock.
  std::array<std::atomic<const std::string*>, 1 << 16> by_id{};
  Names() { by_id[0] = &list.front(); }
};
Names& names() {
  static Names all;
  return all;
}

std::uint16_t intern(const std::string& name) {
  Names& all = names();
  {
    std::shared_lock lock(all.mutex);
    if (auto found = all.ids.find(name); found != all.ids.end()) return found->second;
  }
  std::unique_lock lock(all.mutex);
  if (all.list.size() > std::numeric_limits<std::uint16_t>::max() && !all.ids.contains(name))
    throw Error(Stage::plan, "dim.count", "",
                fmt::format("{} would be a further name of a dim, and this process has {}",
                            quote(name), all.list.size()),
                "make models with fewer names of dims in one process");
  auto [place, fresh] = all.ids.emplace(name, static_cast<std::uint16_t>(all.list.size()));
  if (fresh) {
    all.list.push_back(name);
    all.by_id[place->second] = &all.list.back();
  }
  return place->second;
}

// As above, with a cache by address for each thread: most names are string literals, which are
// looked up again and again.
std::uint16_t intern(const char* name) {
  struct NameOfPointer {
    const char* at = nullptr;
    std::uint16_t id = 0;
  };
  static thread_local std::array<NameOfPointer, 256> recent;
  NameOfPointer& known = recent[(reinterpret_cast<std::uintptr_t>(name) >> 2) % recent.size()];
  // The name must be compared too, since the memory at the address may have changed.
  if (known.at == name && *names().by_id[known.id].load() == name) return known.id;
  known = {name, intern(std::string(name))};
  return known.id;
}

}  // namespace

Dim::Dim(const char* name) : id_(intern(name)) {}
Dim::Dim(const std::string& name) : id_(intern(name)) {}

bool contains(const Dims& dims, Dim dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

std::vector<std::string> names_of(const Dims& dims) {
  std::vector<std::string> names;
  for (Dim dim : dims) names.push_back(dim.name());
  return names;
}

const std::string& Dim::name() const {
  return *names().by_id[id_].load();
}

std::string to_string(const Placement& placement) {
  if (placement.is_shard()) return "S(" + placement.dim.name() + ")";
  if (placement.is_partial()) return placement.reduction == Reduction::max ? "P(max)" : "P";
  return "R";
}

std::string to_string(const Layout& layout, const Mesh& mesh) {
  std::string text;
  for (std::size_t a = 0; a < layout.size(); ++a) {
    if (layout[a].is_replicate()) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", mesh.atoms()[a].name,
                        to_string(layout[a]));
  }
  return text.empty() ? "replicated" : text;
}

Range local_range(Dim dim, std::int64_t size, const Layout& layout, const Mesh& mesh,
                  const Coordinates& at) {
  Range range{0, size};
  for (std::size_t a = 0; a < layout.size(); ++a) {
    if (!layout[a].is_shard() || layout[a].dim != dim) continue;
    const Range part = shard_range(range.size, mesh.atoms()[a].ways, at[a]);
    range = {range.offset + part.offset, part.size};
  }
  return range;
}

std::vector<std::int64_t> local_sizes(Dim dim, std::int64_t size, const Layout& layout,
                                      const Mesh& mesh, const std::vector<int>& atoms,
                                      const Coordinates& at) {
  std::vector<std::int64_t> sizes;
  for (int rank : mesh.group(mesh.rank(at), atoms)) {
    sizes.push_back(local_range(dim, size, layout, mesh, mesh.coordinates(rank)).size);
  }
  return sizes;
}

std::vector<Range> parted_by_documents(const std::vector<std::int64_t>& documents,
                                       std::int64_t tokens, int ways) {
  std::vector<std::vector<Range>> of_rank(static_cast<std::size_t>(ways));
  std::int64_t next = 0;  // the rank that has the next token of those that are left over
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::int64_t begin = documents[d];
    const std::int64_t size = (d + 1 < documents.size() ? documents[d + 1] : tokens) - begin;
    const std::int64_t part = size / (2 * ways), left = size % (2 * ways);
    std::int64_t front = begin, back = begin + size;
    for (int place = 0; place < ways; ++place) {
      // A rank has another place in each document, because a small document gives the last place
      // the most work. Tokens that are left over go to the ranks in turn, over all documents.
      const auto rank = static_cast<int>((place + static_cast<std::int64_t>(d)) % ways);
      const std::int64_t turn = (rank - next + ways) % ways, more = (left - turn + ways - 1) / ways;
      const std::int64_t first = part + (more > 0 ? 1 : 0), last = part + (more > 1 ? 1 : 0);
      auto& ranges = of_rank[static_cast<std::size_t>(rank)];
      back -= last;
      if (first > 0) ranges.push_back({front, first});
      front += first;
      if (last > 0 && front == back) {  // the two parts of the last place are one
        ranges.back().size += last;
      } else if (last > 0) {
        ranges.push_back({back, last});
      }
    }
    next = (next + left) % ways;
  }
  std::vector<Range> order;
  for (const auto& ranges : of_rank) order.insert(order.end(), ranges.begin(), ranges.end());
  return order;
}

std::vector<Range> lying_at(const std::vector<Range>& order, Range part) {
  std::vector<Range> found;
  std::int64_t lies = 0;
  for (const Range& range : order) {
    const std::int64_t from = std::max(part.offset, lies);
    const std::int64_t to = std::min(part.offset + part.size, lies + range.size);
    if (from < to) {
      found.push_back({range.offset + from - lies, to - from});
    }
    lies += range.size;
  }
  return found;
}

}  // namespace mw
