// The reduction hooks of this plugin: dp offers them by name, and any other strategy may.
#pragma once

#include <cstdint>
#include <memory>

#include "meshwright/reduction_hook.h"

namespace dp {

// Sends gradients in bf16, half the bytes of fp32; the local backend sums in fp32 and rounds once.
class Bf16Hook final : public mw::ReductionHook {
 public:
  bool exact(const mw::BucketShape&) const override { return false; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override;
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape& bucket,
                                            at::TensorOptions options) const override;
};

// Sends gradients, and parameters that ZeRO gathers, as int8 with an fp32 scale for each block of
// 256 elements: the largest magnitude of a block is 127 (Wang et al. 2023, "ZeRO++", arXiv:
// 2306.10209). Gradients are not summed in int8: each rank sends every rank its part by an
// all-to-all, and the parts are summed in fp32 once they have come. Where ranks need the whole sum,
// parts of it are quantised anew and gathered.
class Int8Hook final : public mw::ReductionHook {
 public:
  bool exact(const mw::BucketShape&) const override { return false; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override;
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape& bucket,
                                            at::TensorOptions options) const override;
  bool gathers() const override { return true; }
  mw::ReductionCost gather_cost(const mw::BucketShape& bucket) const override;
  std::unique_ptr<mw::BucketGather> make_gather(const mw::BucketShape& bucket,
                                                at::TensorOptions options) const override;
};

// PowerSGD (Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression",
// algorithms 1 and 2): a matrix M of rows x cols is sent as P (rows x rank) and Q (cols x rank), M
// ~ P Q^T, by one step of subspace iteration that begins at the last step's Q. The error of that is
// added to the next step's gradient. Parameters with several dims are matrices, cut where rows +
// cols is least. Vectors are sent as they are, and so are matrices that would not become smaller
// (unless `even_if_larger`). The hook keeps a bucket's errors, as large as its matrices, and the
// Qs. start() all-reduces P, finish() all-reduces Q.
class PowerSgdHook final : public mw::ReductionHook {
 public:
  static mw::Options options();
  explicit PowerSgdHook(const mw::Values& values);
  void check(const mw::BucketShape& bucket) const override;
  bool exact(const mw::BucketShape& bucket) const override;
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override;
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape& bucket,
                                            at::TensorOptions options) const override;

 private:
  const std::int64_t rank_;
  const bool even_if_larger_;
};

}  // namespace dp
