#include "simulate/speed.h"

#include <algorithm>

namespace mw {

Speed speed_of(const Device& device, int ranks, int element, int asked) {
  Speed speed{device.gemm(element), device.pointwise(element), device.bandwidth, device.op_overhead,
              1};
  if (!device.shared()) return speed;
  const int threads = device.threads_of(ranks, asked);
  const int busy = std::min(ranks * threads, device.cores);
  const double loaded = busy == device.cores ? device.all_cores : 1;
  speed.gemm.rate *= threads * loaded;
  // Elementwise kernels work in chunks that fit a cache, too small to part among threads.
  speed.pointwise *= loaded;
  speed.bandwidth *= loaded;
  speed.stretch = static_cast<double>(ranks * threads) / busy;
  return speed;
}

}  // namespace mw
