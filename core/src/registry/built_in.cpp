// Gathers what the folders register: models, ops, data, optimizers, schedules and policies.
#include "meshwright/engine/built_in.h"

#include <vector>

#include "plan/recompute_policy.h"
#include "plugins/data/data.h"
#include "plugins/models/block_ops.h"
#include "plugins/models/kinds.h"
#include "plugins/optimizers/optimizer.h"
#include "plugins/policies/lr_schedule.h"
#include "plugins/policies/microbatch.h"

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
