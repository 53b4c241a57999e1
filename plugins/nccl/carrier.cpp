// Makes a Source for each run.
#include "carrier.h"

#include <fmt/format.h>

#include "meshwright/error.h"

namespace nccl {

std::unique_ptr<mw::CommunicatorSource> NcclCarrier::connect(
    const std::vector<std::vector<int>>& ranks, const mw::Platform& platform,
    std::chrono::milliseconds timeout) {
  if (platform.type() != library_.type()) {
    throw mw::Error(
        mw::Stage::options, "device.nccl", "device",
        fmt::format("device: NCCL connects GPUs, and the ranks are on {}", platform.name()),
        "device = \"cuda\"; CPUs of several machines are connected by mpi (mpirun, srun)");
  }
  return std::make_unique<NcclSource>(library_, link_, fmt::format("run{}", runs_++), ranks,
                                      platform, timeout);
}

}  // namespace nccl
