// Tells experiments apart: hashes what decides a run's numbers.
#include "script/identity.h"

#include <fmt/format.h>

#include <vector>

#include "base/hash.h"
#include "base/json_text.h"

namespace mw {

std::string experiment_hash(const Experiment& experiment) {
  std::vector<std::string> plans = {experiment.plan->hash()};
  if (experiment.step_plans) {
    plans.clear();
    for (const auto& plan : experiment.step_plans->plans) plans.push_back(plan->hash());
  }
  const Json decides = {{"plans", plans},
                        {"data", experiment.data_settings},
                        {"tokens", experiment.data ? experiment.data->tokens() : 0},
                        {"weights", experiment.table.value("weights", "")},
                        {"seed", experiment.seed},
                        {"steps", experiment.steps},
                        {"threads", experiment.threads},
                        {"memory", experiment.memory},
                        {"check", experiment.check}};
  Fnv1a<std::uint64_t> hash;
  const std::string text = json_text(decides);
  hash.add(text.data(), text.size());
  return fmt::format("{:016x}", hash.value());
}

}  // namespace mw
