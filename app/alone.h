// Measures what a run's work takes on this machine when nothing else runs: each matrix product of
// its steps, and copies of many sizes. Accounts of steps are compared with these seconds.
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

// Whether the instruction runs an op that is a matrix product or attention.
bool is_product(const Program& program, const Instruction& i);

// The name of an instruction's product, "linear dgrad", and the local shapes of its first two
// operands, "512x128, 352x128".
struct ProductName {
  std::string name, shape;
  double flops = 0;  // tells apart attention blocks whose operands have the same shapes
  friend auto operator<=>(const ProductName&, const ProductName&) = default;
};
ProductName product_of(const RankView& view, const Instruction& i);

// Measures before the first step, with the threads and the device of a rank. Products are measured
// on rank 0, while the other ranks wait.
class AloneTimes : public RunObserver {
 public:
  // The plans outlive this. The products of all their ranks are measured.
  explicit AloneTimes(std::vector<const Plan*> plans);
  ~AloneTimes() override;

  void begin(RankRun& rank) override;
  std::string name() const override { return "account"; }

  // Seconds of one call of the product; NaN if it was not measured or cannot be run alone. Known in
  // the process of rank 0, after begin().
  double product_seconds(const ProductName& product) const;
  // Seconds in which a rank reads and writes so many bytes in all, over and over, while the other
  // ranks do so too.
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
