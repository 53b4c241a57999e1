// Reads the variables by which mpirun, srun and torchrun number the processes they start.
#include "transport/launched.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "meshwright/error.h"

namespace mw {
namespace {

struct KnownLauncher {
  const char* by;
  const char* processes;
  const char* process;
  const char* communicator;
  const char* besides;  // another variable that the launcher sets; null: none
};

// In order of precedence, as mpirun may itself run under Slurm. srun sets SLURM_STEP_NUM_TASKS for
// the processes of a step; what sbatch runs on the first node has only SLURM_NTASKS.
constexpr std::array launchers{
    KnownLauncher{"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpi", nullptr},
    KnownLauncher{"mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "mpi", nullptr},
    KnownLauncher{"mpirun", "PMI_SIZE", "PMI_RANK", "mpi", nullptr},
    KnownLauncher{"torchrun", "WORLD_SIZE", "RANK", "nccl", "MASTER_ADDR"},
    KnownLauncher{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "mpi", nullptr},
};

// Launchers that are known only to be refused: nothing here can join processes by their variables
// alone.
constexpr std::array other_launchers{
    KnownLauncher{"Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", nullptr, nullptr},
    KnownLauncher{"jsrun", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK", nullptr, nullptr},
    KnownLauncher{"PMIx", "PMIX_SIZE", "PMIX_RANK", nullptr, nullptr},
    KnownLauncher{"Cray PALS", "PMI_SIZE", "PALS_RANKID", nullptr, nullptr},
};

std::optional<int> number(const char* text) {
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != '\0' || value < 0 || value > 1 << 24) return std::nullopt;
  return static_cast<int>(value);
}

std::string said_by(const KnownLauncher& launcher, const Environment& variable) {
  std::string said;
  for (const char* name : {launcher.processes, launcher.process, launcher.besides}) {
    if (name == nullptr) continue;
    const char* value = variable(name);
    said += fmt::format("{}{} is {}", said.empty() ? "" : ", ", name,
                        value == nullptr ? "not set" : fmt::format("\"{}\"", value));
  }
  return said;
}

// Throws if this process is one of several: it would train beside the others, into the same files.
void refuse_one_of_several(const KnownLauncher& launcher, const Environment& variable) {
  const char* size = variable(launcher.processes);
  const auto processes = number(size), process = number(variable(launcher.process));
  const bool unclear = size != nullptr && *size != '\0' && !processes;
  if (!unclear && processes.value_or(0) < 2 && process.value_or(0) < 1) return;
  throw Error(
      Stage::environment, "launch.address", "",
      fmt::format("this process seems to be one of several that {} has started, and it "
                  "cannot join the others: {}",
                  launcher.by, said_by(launcher, variable)),
      "start the processes by mpirun, srun or torchrun; for a process by itself unset these "
      "variables, or write --communicator threads");
}

}  // namespace

std::optional<Launch> launched(const Environment& variable) {
  std::optional<Launch> first;
  const KnownLauncher* first_launcher = nullptr;
  for (const KnownLauncher& launcher : launchers) {
    const auto processes = number(variable(launcher.processes));
    const auto process = number(variable(launcher.process));
    if (!processes || !process || *process >= *processes) continue;
    if (launcher.besides != nullptr && variable(launcher.besides) == nullptr) continue;
    // the one process of this launcher may have run another launcher
    if (*processes == 1) continue;
    if (first && (launcher.by == std::string_view("srun") ||
                  (first->processes == *processes && first->process == *process)))
      continue;  // srun may start another launcher once on each machine
    if (first) {
      throw Error(Stage::environment, "launch.address", "",
                  fmt::format("two launchers number this process, and differ: {}; {}",
                              said_by(*first_launcher, variable), said_by(launcher, variable)),
                  "start the processes by one launcher, or unset the variables of the other one");
    }
    first = Launch{launcher.by, *processes, *process, launcher.communicator};
    first_launcher = &launcher;
    if (first->by == "mpirun" && variable("SLURM_STEP_NUM_TASKS") != nullptr &&
        variable("OMPI_COMM_WORLD_SIZE") == nullptr)
      first->by = "srun";
  }
  return first;
}

void refuse_lone_member(const Environment& variable) {
  if (launched(variable)) return;
  for (const KnownLauncher& launcher : launchers) refuse_one_of_several(launcher, variable);
  for (const KnownLauncher& launcher : other_launchers) refuse_one_of_several(launcher, variable);
}

const char* own_variable(const char* name) {
  return std::getenv(name);
}

}  // namespace mw
