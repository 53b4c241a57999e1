// The key `microbatch`, as a script writes it: a size, a list, a policy, a function of the step.
#pragma once

#include <memory>

#include "meshwright/engine/plan.h"
#include "meshwright/microbatch.h"
#include "meshwright/options.h"

namespace mw {

// `given`: what the script wrote; null: nothing. What is made by name has all of its options then.
MicrobatchPolicy read_microbatch(Json& given, const MicrobatchContext& context,
                                 const std::shared_ptr<const ScriptReach>& reach,
                                 Problems& problems);

}  // namespace mw
