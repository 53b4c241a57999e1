// The packing policy @NAME@: which documents lie in which row.
#include <algorithm>
#include <numeric>
#include <vector>

#include "meshwright/packing.h"
#include "meshwright/plugin.h"

namespace {

// The longest documents first, each to the row with the least work.
class @CLASS@ final : public mw::Packing {
 public:
  explicit @CLASS@(const mw::Values&) {}

  std::vector<std::vector<std::size_t>> rows(const mw::PackingRequest& request) const override {
    std::vector<std::size_t> order(request.lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return request.lengths[a] > request.lengths[b];
    });
    std::vector<std::vector<std::size_t>> rows(static_cast<std::size_t>(request.rows));
    std::vector<double> work(rows.size(), 0);
    for (const std::size_t document : order) {
      const auto row = static_cast<std::size_t>(
          std::min_element(work.begin(), work.end()) - work.begin());
      rows[row].push_back(document);
      work[row] += request.work[document];
    }
    return rows;
  }

  // A step's rows are dealt to microbatches and ranks by their work.
  bool balances() const override { return true; }
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "rows with equal work of attention", mw::packing<@CLASS@>())
