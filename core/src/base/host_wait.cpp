// Keeps, for each thread, why it waits for its accelerator.
#include "meshwright/engine/host_wait.h"

namespace mw {
namespace {
thread_local const char* waits_for = nullptr;
}

HostWait::HostWait(const char* why) : before_(waits_for) {
  waits_for = why;
}

HostWait::~HostWait() {
  waits_for = before_;
}

const char* HostWait::current() {
  return waits_for;
}

}  // namespace mw
