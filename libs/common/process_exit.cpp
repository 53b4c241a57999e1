// Ends the process without taking its libraries down.
#include "common/process_exit.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace mw {

void exit_without_unloading() {
  // The sanitizers look at what is left when all is down.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
#endif
}

}  // namespace mw
