// The access of plugins to run files.
#pragma once

#include <string>
#include <vector>

#include "meshwright/schedule.h"

namespace mw {

// The times of a schedule's actions as a run measured them: for each virtual stage the median over
// ranks, microbatches and all steps but the first two, from /actions of the run file. If the run
// did not split its backward, I and W are half of B each. `stage_of`: the stage of each virtual
// stage. Throws Error (options) if the file is no run file, or its run had another placement.
std::vector<WorkTimes> measured_times(const std::string& run_file,
                                      const std::vector<int>& stage_of);

// Sets the function that reads the times, since the core itself cannot read run files. Without it,
// measured_times throws Error (environment, "run-file.reader").
using TimesReader = std::vector<WorkTimes>(const std::string& run_file,
                                           const std::vector<int>& stage_of);
void read_measured_times_by(TimesReader* reader);

}  // namespace mw
