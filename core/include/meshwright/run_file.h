// What a plugin may ask of a run file.
#pragma once

#include <string>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// The works' times that a run measured: of each virtual stage the median over ranks, microbatches
// and the steps after the first two, from the run file's /actions. Where the run did not split its
// backward, I and W are half of B each. `stage_of`: the stage of each virtual stage. Throws Error
// (options) if the file is no run file, or not of a run with this placement.
std::vector<WorkTimes> measured_times(const std::string& run_file,
                                      const std::vector<int>& stage_of);

// What reads them is the program's, as the kernel knows no file of its runs: until it is handed
// over here, measured_times throws Error (environment, "run-file.reader").
using TimesReader = std::vector<WorkTimes>(const std::string& run_file,
                                           const std::vector<int>& stage_of);
void read_measured_times_by(TimesReader* reader);

}  // namespace mw
