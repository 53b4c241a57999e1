// Gathers what the folders register: models, ops, data, optimizers, schedules and policies.
#include "plugin/built_in.h"

#include <vector>

#include "input/data.h"
#include "input/lr_schedule.h"
#include "model/block_ops.h"
#include "model/kinds.h"
#include "optimizer/optimizer.h"
#include "plan/recompute_policy.h"
#include "script/microbatch.h"

namespace mw {

const PluginDescriptor& built_in() {
  static const std::vector<Registration> all = [] {
    std::vector<Registration> found;
    for (const auto& some :
         {built_in_models(), built_in_ops(), built_in_data(), built_in_optimizers(),
          built_in_lr_schedules(), built_in_microbatching(), built_in_recompute()})
      found.insert(found.end(), some.begin(), some.end());
    return found;
  }();
  static const PluginDescriptor descriptor =
      describe_plugin("meshwright", MESHWRIGHT_VERSION, "what is built in", all.data(), all.size());
  return descriptor;
}

}  // namespace mw
