// The key `microbatch`, as a script writes it: a size, a list, a policy, a function of the step.
#pragma once

#include <memory>

#include "meshwright/engine/plan.h"
#include "meshwright/microbatch.h"
#include "meshwright/options.h"

namespace mw {

// `given`: what the script wrote, or null. A policy that is made by name gets all of its options
// there.
MicrobatchPolicy read_microbatch(Json& given, const MicrobatchContext& context,
                                 const std::shared_ptr<const ScriptReach>& reach,
                                 Problems& problems);

}  // namespace mw
