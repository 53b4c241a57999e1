// Processes of mpirun's that run the cases of one test program together.
#pragma once

#include <cstdlib>
#include <exception>
#include <memory>

#include "launch/processes.h"
#include "meshwright/carrier.h"
#include "support/registered.h"

namespace mw::test {

// The processes that run this test program together, if MESHWRIGHT_TEST_JOINED is set; null: this
// process runs alone.
inline JoinedProcesses* joined() {
  struct Joined {
    Joined() {
      if (std::getenv("MESHWRIGHT_TEST_JOINED") == nullptr) return;
      processes = std::make_unique<JoinedProcesses>(
          make<Carrier>(registry().find(Kind::communicator, "mpi"), Values()));
    }
    ~Joined() {
      if (processes) processes->leave(nullptr, 0, [](const std::exception_ptr&) { return 1; });
    }
    std::unique_ptr<JoinedProcesses> processes;
  };
  static const Joined all;
  return all.processes.get();
}

}  // namespace mw::test
