// When processes of this machine were started.
#pragma once

#include <optional>

namespace mw {

// Clock ticks from the machine's boot to a process' start; none if it is not there, or has ended
// and nobody has asked how.
std::optional<unsigned long long> process_start(int process);

}  // namespace mw
