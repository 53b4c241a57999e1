// Prices a rank's instructions and transfers by what a calibration has measured of them.
#pragma once

#include <memory>

#include "predict/calibration.h"
#include "predict/machine.h"

namespace mw {

// `threads`: of the rank's ops. `turns`: how many ranks take turns on a core; 0: what its thread
// spends of a core is asked for, whoever else has one meanwhile.
std::unique_ptr<RankMachine> on_calibrated_cores(const Program& program,
                                                 std::shared_ptr<const Calibration> calibration,
                                                 int threads, double turns);

}  // namespace mw
