// Processes of this program on this machine, which mpirun starts for it.
#pragma once

#include <string>
#include <vector>

namespace mw {

// Starts `processes` copies of the program with these words by mpirun, waits, and returns what
// they ended with: their exit code, 1 where a signal ended one of them. SIGINT, SIGTERM, SIGHUP and
// SIGUSR1 go to the copies, which end after the step under way; mpirun itself would give them a
// fixed time, and take all of it. Throws Error (environment) if mpirun cannot be started.
int run_by_mpirun(int processes, const std::vector<std::string>& words);

}  // namespace mw
