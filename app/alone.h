// What the machine takes for the work of a run when nothing else runs: each matrix product of its
// steps alone, and copies of many sizes. The limit that an account of a step is held to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/run.h"
#include "record/rows.h"

namespace mw {

// Whether the instruction computes a product: an op whose work is one, or attention.
bool is_product(const Program& program, const Instruction& i);

// An instruction's product: "linear dgrad", and its operands' local shapes, "512x128, 352x128".
struct ProductName {
  std::string name, shape;
  double flops = 0;  // what tells blocks of attention apart that have like operands
  friend auto operator<=>(const ProductName&, const ProductName&) = default;
};
ProductName product_of(const RankView& view, const Instruction& i);

// Measures before the first step, with the threads and the device of a rank, while others wait.
class AloneTimes : public RunObserver {
 public:
  // The plans outlive this; each rank's products are looked for in all of them.
  explicit AloneTimes(std::vector<const Plan*> plans);
  ~AloneTimes() override;

  void begin(RankRun& rank) override;
  std::string name() const override { return "account"; }

  // Seconds of one call, in the process of rank 0 once it has begun; NaN: it cannot be made alone.
  double product_seconds(const ProductName& product) const;
  // Seconds in which a rank reads and writes so many bytes, over and over, while all ranks do.
  double copy_seconds(double bytes) const;
  const std::vector<BandwidthRow>& bandwidths() const { return bandwidths_; }

 private:
  struct Product;
  void find_products(const Plan& plan);
  void measure_copies(RankRun& rank);

  const std::vector<const Plan*> plans_;
  std::vector<Product> products_;
  std::map<ProductName, double> seconds_;
  std::vector<BandwidthRow> bandwidths_;
};

}  // namespace mw
