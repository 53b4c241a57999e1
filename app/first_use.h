// The short measurement of this machine that its first prediction waits for, where nobody has
// calibrated it.
#pragma once

#include <functional>
#include <string>

#include "predict/machine.h"

namespace mw {

// Sets what tells people that the machine is measured. Without this call they are told nothing.
void tell_first_use(std::function<void(const std::string&)> say);

// Returns this_machine(), once it is measured. The first call measures for some seconds if there is
// neither a calibration nor an earlier such measurement, in a process of its own; where that fails
// the machine is priced by its roofline. MESHWRIGHT_FIRST_USE=off in the environment leaves it out.
// Throws Stopped.
const Machine& measured_machine();

}  // namespace mw
