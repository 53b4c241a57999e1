// MpiCarrier: its mpirun command, and a refusal of ranks that are not on CPUs.
#include "carrier.h"

#include <fmt/format.h>
#include <unistd.h>

#include "link.h"
#include "meshwright/error.h"

namespace mpi {

MpiCarrier::MpiCarrier() : LinkedCarrier("mpi", [] { return std::make_unique<MpiLink>(); }) {}

// Processes may be more than cores, and each may have threads. After a death the other processes
// have three seconds to say so.
std::string MpiCarrier::launcher(int processes) {
  return fmt::format(
      "mpirun -n {} --quiet --bind-to none --oversubscribe "
      "--mca odls_base_sigkill_timeout 3{}",
      processes, ::geteuid() == 0 ? " --allow-run-as-root" : "");
}

std::unique_ptr<mw::CommunicatorSource> MpiCarrier::connect(
    const std::vector<std::vector<int>>& ranks, const mw::Platform& platform,
    std::chrono::milliseconds timeout) {
  if (platform.type() != at::kCPU) {
    throw mw::Error(
        mw::Stage::environment, "process.device", "",
        fmt::format("MPI carries tensors of the CPU, and ranks are to run on {}.", platform.name()),
        "Use device = \"cpu\", or the communicator of that device.");
  }
  return LinkedCarrier::connect(ranks, platform, timeout);
}

}  // namespace mpi
