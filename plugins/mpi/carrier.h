// The carrier over MPI: the processes that mpirun or srun started.
#pragma once

#include "meshwright/process_link.h"

namespace mpi {

class MpiCarrier final : public mw::LinkedCarrier {
 public:
  MpiCarrier();
  // The command of Open MPI, which asks root for --allow-run-as-root.
  static std::string launcher(int processes);

  std::unique_ptr<mw::CommunicatorSource> connect(const std::vector<std::vector<int>>& ranks,
                                                  const mw::Platform& platform,
                                                  std::chrono::milliseconds timeout) override;
};

}  // namespace mpi
