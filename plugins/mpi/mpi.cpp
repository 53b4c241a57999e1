// Registers the carrier over MPI.
#include "carrier.h"
#include "meshwright/plugin.h"

MESHWRIGHT_PLUGIN("mpi", "1.0.0", "ranks in several processes, that mpirun or srun started",
                  mw::communicator<mpi::MpiCarrier>())
