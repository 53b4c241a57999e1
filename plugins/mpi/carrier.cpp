// Makes the sources of runs over MPI.
#include "carrier.h"

#include <fmt/format.h>

#include "meshwright/error.h"
#include "source.h"

namespace mpi {

std::unique_ptr<mw::CommunicatorSource> MpiCarrier::connect(
    const std::vector<std::vector<int>>& ranks, at::DeviceType device,
    std::chrono::milliseconds timeout) {
  if (device != at::DeviceType::CPU) {
    throw mw::Error(mw::Stage::environment, "process.device", "",
                    fmt::format("MPI carries tensors of the CPU, and ranks are to run on {}.",
                                at::DeviceTypeName(device, true)),
                    "Use device = \"cpu\", or the communicator of that device.");
  }
  return std::make_unique<Source>(engine_, ranks, timeout);
}

}  // namespace mpi
