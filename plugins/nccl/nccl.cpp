// Registers the carrier over NCCL.
#include "carrier.h"
#include "meshwright/plugin.h"

MESHWRIGHT_PLUGIN("nccl", "1.0.0",
                  "ranks on GPUs, in processes that torchrun, srun or mpirun started",
                  mw::communicator<nccl::NcclCarrier>())
