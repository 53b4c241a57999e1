// The communicators that ship, and how those are built that need a library.
#include "app/communicators.h"

#include <array>

namespace mw {

std::span<const ShippedCommunicator> shipped_communicators() {
  static constexpr std::array all{
      ShippedCommunicator{by_itself, "ranks are threads of one process; several each run by itself",
                          nullptr},
      ShippedCommunicator{"mpi", "ranks in several processes, that mpirun or srun started",
                          "install OpenMPI, then ./meshwright build"},
      ShippedCommunicator{"nccl",
                          "ranks on GPUs, in processes that torchrun, srun or mpirun started",
                          "./meshwright build --preset cuda"}};
  return all;
}

}  // namespace mw
