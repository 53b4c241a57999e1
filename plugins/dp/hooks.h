// The reduction hooks of this plugin, each in a file of its own, and their registrations.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "meshwright/reduction_hook.h"

namespace dp {

// Gradients cast to bf16, summed in fp32 and rounded once by the local backend, cast back: half the
// bytes of fp32.
class Bf16Hook final : public mw::ReductionHook {
 public:
  bool exact(const mw::BucketShape&) const override { return false; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override;
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape& bucket,
                                            at::TensorOptions options) const override;
};

// PowerSGD (Vogels, Karimireddy, Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression",
// algorithms 1 and 2): a matrix M of rows x cols is sent as P (rows x rank) and Q (cols x rank), M
// ~ P Q^T, by one step of subspace iteration that begins at the last step's Q; what is not sent is
// added to the next step's gradient. Parameters with several dims are matrices, cut where rows +
// cols is least; those that would not become smaller, and vectors, are sent as they are (all of
// them with `even_if_larger`, but vectors). Keeps a bucket's errors, as large as its matrices, and
// the Qs. P is all-reduced by start, Q by finish.
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
  std::int64_t rank_;
  bool even_if_larger_;
};

inline constexpr std::array<mw::Registration, 2> hooks = {
    mw::reduction_hook<Bf16Hook>("bf16", "gradients sent in bf16: half the bytes of fp32"),
    mw::reduction_hook<PowerSgdHook>(
        "powersgd",
        "two factors of few columns stand for each gradient matrix (Vogels et al. 2019)")};

}  // namespace dp
