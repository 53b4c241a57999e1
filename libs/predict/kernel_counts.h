// The kernels of a step: how many a rank starts, and what they move through memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/engine/rank_view.h"
#include "meshwright/json.h"

namespace mw {

// What the kernels of one name do in a step on one rank.
struct KernelUse {
  std::int64_t kernels = 0;  // kernels that are started; a library's call counts as one
  double bytes = 0;          // bytes read and written in the rank's memory
  double flops = 0;          // executed floating-point operations
  double largest = 0;        // bytes of each op's largest operand or result, summed up
};

// By name, in the order of the program: of an op "rms_norm forward", else of the work ("update").
using KernelUses = std::vector<std::pair<std::string, KernelUse>>;

// The kernels of a rank's step. On CPUs, an op may treat its rows in parts, and then starts more.
KernelUses forecast_kernels(const RankView& rank);

// A row for each name and one for all: kernels, bytes, as passes over the largest of an op's
// operands and results too, and FLOPs.
std::string kernels_table(const KernelUses& uses);
Json kernels_json(const KernelUses& uses);

}  // namespace mw
