// The carrier over MPI: the processes that mpirun or srun started.
#pragma once

#include "meshwright/process_link.h"

namespace mpi {

class MpiCarrier final : public mw::LinkedCarrier {
 public:
  MpiCarrier();
  // Open MPI's words. Root is asked by it whether it means it.
  static std::string launcher(int processes);

  std::unique_ptr<mw::CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                  const mw::Platform& platform,
                                                  std::chrono::milliseconds timeout) override;
};

}  // namespace mpi
