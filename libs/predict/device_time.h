// Seconds of kernels on a device of a described type.
#pragma once

#include <cstdint>

#include "predict/cluster.h"

namespace mw {

// `batch` products of m x k by k x n, at `share` of the device's rate; `bits`: 8
// where operands are fp8.
double gemm_seconds(const DeviceType& device, Dtype dtype, double m, double n, double k,
                    double batch = 1, double share = 1, int bits = 0);
// Kernels that stream so many bytes through memory.
double stream_seconds(const DeviceType& device, double bytes, double kernels = 1);
// Flash attention of so many operations, causal ones counted once.
double flash_seconds(const DeviceType& device, Dtype dtype, int generation, double flops,
                     double kernels);
// What a phase takes whose kernels take the device so long and whose launches the host: nearly the
// longer of the two.
double phase_seconds(const DeviceType& device, double own, double host);

}  // namespace mw
