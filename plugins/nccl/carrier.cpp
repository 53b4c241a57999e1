// Joins the processes, and makes a Source for each run.
#include "carrier.h"

#include <fmt/format.h>

#include <cstdlib>

#include "meshwright/error.h"
#include "source.h"

namespace nccl {
namespace {

// Sets defaults of libtorch and CUDA. A communicator that fails is only to be taken down: how the
// run ends is the core's.
mw::Rendezvous ready() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  // No warning: a pair's communicator has one direction, and its stream can hold up nothing else.
  ::setenv("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false", /*overwrite=*/0);
  // The streams of a GPU share this many hardware queues, 8 by default; kernels that compute must
  // not queue behind a transfer that waits for its peer.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  return mw::rendezvous();
}

}  // namespace

NcclCarrier::NcclCarrier() : link_(ready()) {}

std::unique_ptr<mw::CommunicatorSource> NcclCarrier::connect(
    const std::vector<std::vector<int>>& ranks, const mw::Platform& platform,
    std::chrono::milliseconds timeout) {
  if (platform.type() != at::kCUDA) {
    throw mw::Error(
        mw::Stage::options, "device.nccl", "device",
        fmt::format("device: NCCL connects GPUs, and the ranks are on {}", platform.name()),
        "device = \"cuda\"; CPUs of several machines are connected by mpi (mpirun, srun)");
  }
  return std::make_unique<NcclSource>(link_, fmt::format("run{}", runs_++), ranks, platform,
                                      timeout);
}

}  // namespace nccl
