// Elementwise expressions, and reductions of rows, as one kernel in one pass over memory, for
// devices whose platform compiles texts of CUDA C++ (Platform::compile).
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "expression.h"
#include "kernel.h"
#include "meshwright/platform.h"

namespace mw::kernel {

// One number for each row along the last dim, from an expression of the operands and of the
// reductions before this one.
struct RowReduction {
  enum class Kind : std::uint8_t { sum, mean, max } kind;
  int node;
};

// What a kernel's text depends on beside the expressions. `types` and `packed` have an entry for
// each operand, then one for each target.
struct FusedForm {
  std::vector<int> roots;
  std::vector<bool> added;            // whether a root is added to what its target holds
  std::vector<at::ScalarType> types;  // of tensors; Undefined: an operand that is not read
  std::vector<bool> packed;  // tensors whose elements along the last dim are adjacent in memory
  int column = -1;           // the root that is summed over rows; -1: none
  int dims = 1;
  int pack = 1;       // how many adjacent elements of the last dim a thread treats together
  bool wide = false;  // indices of 64 bits
  // Whether the kernel computes in fp64, as it does if any tensor has that type; else in fp32.
  bool in_double() const {
    return std::find(types.begin(), types.end(), at::kDouble) != types.end();
  }
  auto operator<=>(const FusedForm&) const = default;
};

// Expressions of so many operands that broadcast against each other. In the expressions, places
// after those of the operands stand for the reductions. A root that depends on reductions alone
// is one number for each row, and its target's last dim has size 1.
class Fused {
 public:
  // Whether the calling thread's rank computes on a platform of the tensor's device, which may
  // compile kernels.
  static bool serves(const at::Tensor& tensor);

  Fused(Expressions f, int operands, std::vector<RowReduction> reductions = {});

  // How many blocks sum over rows that have so many packs of elements: enough for the GPUs of
  // today, and so few that all their sums together are small beside the rows.
  static std::int64_t summing_blocks(std::int64_t packs, std::int64_t rows);
  // A root that is summed over the rows. run() makes `sums`, in fp32 at least: each of its rows is
  // the sum of the rows of one block, and their sum is the root's.
  struct ColumnSums {
    int root = -1;
    at::Tensor sums;
  };

  // Queues one kernel that computes the roots whose targets are defined. A target may lie on an
  // operand of its shape and strides. Returns false, and does nothing, where there is no such
  // kernel: on a platform that compiles none, or for tensors that it cannot treat. `columns`: where
  // a root depends on a reduction, another root may be summed in the same pass.
  bool run(const std::vector<int>& roots, const std::vector<Target>& to,
           std::vector<at::Tensor> operands, ColumnSums* columns = nullptr) const;

  // The kernel's text. Its parameter is a structure of 64-bit words: the tensors' addresses, the
  // number of elements or rows, the sizes, each tensor's strides, in packs where it is packed, and
  // the address of sums over rows.
  std::string text(const FusedForm& form) const;

  const Expressions& f() const { return f_; }

 private:
  // For each row reduction, whether one of the roots reads its result.
  std::vector<bool> needed(const std::vector<int>& roots) const;
  // Drops the operands that are not read, and fills in the types. Returns false if there is a
  // tensor that kernels cannot treat.
  bool read(std::vector<at::Tensor>& tensors, FusedForm& form,
            const std::vector<bool>& needed) const;
  const DeviceKernel* kernel(const FusedForm& form, at::Device device) const;

  Expressions f_;
  const int operands_;
  const std::vector<RowReduction> reductions_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<FusedForm, at::DeviceIndex>, const DeviceKernel*> known_;
};

}  // namespace mw::kernel
