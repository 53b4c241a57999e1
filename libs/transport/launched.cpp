// Reads the variables by which mpirun, srun and torchrun number the processes they start.
#include "transport/launched.h"

#include <array>
#include <cstdlib>

namespace mw {
namespace {

struct KnownLauncher {
  const char* by;
  const char* processes;
  const char* process;
  const char* communicator;
  const char* besides;  // is there too; null: nothing else
};

// The first that fits: mpirun may itself run under Slurm. A step of srun's has
// SLURM_STEP_NUM_TASKS; what sbatch runs on the first node has not, though it has SLURM_NTASKS.
constexpr std::array launchers{
    KnownLauncher{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpi", nullptr},
    KnownLauncher{"mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "mpi", nullptr},
    KnownLauncher{"mpirun", "PMI_SIZE", "PMI_RANK", "mpi", nullptr},
    KnownLauncher{"torchrun", "WORLD_SIZE", "RANK", "nccl", "MASTER_ADDR"},
    KnownLauncher{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "mpi", nullptr},
};

std::optional<int> number(const char* text) {
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > 1 << 24) return std::nullopt;
  return static_cast<int>(value);
}

}  // namespace

std::optional<Launch> launched(const std::function<const char*(const char*)>& variable) {
  for (const KnownLauncher& launcher : launchers) {
    const auto processes = number(variable(launcher.processes));
    const auto process = number(variable(launcher.process));
    if (!processes || !process || *process >= *processes) continue;
    if (launcher.besides != nullptr && variable(launcher.besides) == nullptr) continue;
    if (*processes == 1) return std::nullopt;
    Launch launch{launcher.by, *processes, *process, launcher.communicator};
    if (launch.by == "mpirun" && variable("SLURM_STEP_NUM_TASKS") != nullptr &&
        variable("OMPI_COMM_WORLD_SIZE") == nullptr)
      launch.by = "srun";
    return launch;
  }
  return std::nullopt;
}

std::optional<Launch> launched() {
  return launched([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace mw
