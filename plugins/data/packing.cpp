// Policies that lay documents into rows, which mw.pack names.
#include "meshwright/packing.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "meshwright/plugin.h"

namespace mw {
namespace {

using Rows = std::vector<std::vector<std::size_t>>;

// Documents lie where they are in the samples, one after the other.
class Sequential final : public Packing {
 public:
  explicit Sequential(const Values&) {}
  Rows rows(const PackingRequest& request) const override {
    Rows rows(static_cast<std::size_t>(request.rows));
    std::int64_t at = 0;
    for (std::size_t document = 0; document < request.lengths.size(); ++document) {
      rows[static_cast<std::size_t>(at / request.tokens)].push_back(document);
      at += request.lengths[document];
    }
    return rows;
  }
};

// Gives documents, the longest first, a row that has room for the whole of them; if none has, the
// row with the most room.
class LongestFirst : public Packing {
 public:
  Rows rows(const PackingRequest& request) const override {
    const std::vector<std::int64_t>& lengths = request.lengths;
    std::vector<std::size_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
    const auto count = static_cast<std::size_t>(request.rows);
    Rows rows(count);
    std::vector<std::int64_t> room(count, request.tokens);
    std::vector<double> work(count, 0);
    for (const std::size_t document : order) {
      std::optional<std::size_t> best;
      for (std::size_t row = 0; row < count; ++row) {
        const bool better = !best || (balances() && work[row] < work[*best]);
        if (room[row] >= lengths[document] && better) best = row;
      }
      const std::size_t row =
          best.value_or(std::max_element(room.begin(), room.end()) - room.begin());
      rows[row].push_back(document);
      room[row] = std::max<std::int64_t>(room[row] - lengths[document], 0);
      work[row] += request.work[document];
    }
    // Where ranks share a row in mirrored parts (zigzag), a long document at its end gives them
    // nearly equal work, and one at its beginning does not.
    for (std::vector<std::size_t>& row : rows) std::reverse(row.begin(), row.end());
    return rows;
  }
};

class Greedy final : public LongestFirst {
 public:
  explicit Greedy(const Values&) {}
};

class Balanced final : public LongestFirst {
 public:
  explicit Balanced(const Values&) {}
  bool balances() const override { return true; }
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    packing<Sequential>("sequential", "Documents lie as in the source."),
    packing<Greedy>("greedy", "The longest documents first, each in the first row that has room."),
    packing<Balanced>("balanced",
                      "The longest documents first, each in the row with the least work of "
                      "attention that has room."));

}  // namespace mw
