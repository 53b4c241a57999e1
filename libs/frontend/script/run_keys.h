// Keys of an experiment that say what a run writes and where it begins: trace, checkpoint, resume.
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/options.h"
#include "script/experiment.h"

namespace mw {

const Options& checkpoint_options();
const Options& resume_options();

// Sorted; the third and the last of `steps` if the experiment has no such key. The first two steps
// warm up; where there are fewer, the last alone.
std::vector<std::int64_t> read_trace(const Json& given, std::int64_t steps, Problems& problems);

// `checkpoint` and `resume`, null where they are not given. The path as it is written.
Checkpointing read_checkpointing(const Json& checkpoint, const Json& resume, Problems& problems);

}  // namespace mw
