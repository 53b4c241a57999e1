// How fast a rank computes, copies and communicates when others share its cores or memory.
#include "predict/speed.h"

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

double transfer_seconds(const Transfer& transfer, const Device& device, const Speed& speed,
                        int stage_atom) {
  if (transfer.ways < 2) return speed.overhead * speed.stretch;
  if (transfer.op == Collective::send || transfer.op == Collective::recv) {
    // Threads copy: read once, written once.
    const double bytes = static_cast<double>(transfer.payload);
    // All ranks of a ring copy at once.
    const double others = transfer.set.atoms.front() == stage_atom ? 1 : speed.stretch;
    const double shared = 2 * bytes / speed.bandwidth * others;
    return device.latency + (device.shared() ? shared : bytes / device.link);
  }
  const double steps = transfer.op == Collective::all_reduce ? 2 : 1;
  if (!device.shared()) {
    // Rings: (ways - 1) steps each way.
    return steps * (transfer.ways - 1) * device.latency +
           static_cast<double>(transfer.wire) / device.link;
  }
  // Shared memory: a rank reads each other's part once and writes its result once.
  const double bytes =
      static_cast<double>(transfer.payload) *
      (transfer.op == Collective::all_reduce || transfer.op == Collective::all_to_all
           ? 2.0
           : 1.0 + 1.0 / transfer.ways);
  // Every rank of the group has to come by; those that share a core one after the other.
  return (bytes / speed.bandwidth + device.latency) * speed.stretch;
}

}  // namespace mw
