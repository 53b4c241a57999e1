// Values for options that have none, and small experiments to try a thing in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/options.h"

namespace mw {

// A small value, within its range, for every option that must be given; for a `model`, sizes by the
// usual names of its options (layers, heads …). `unknown`: options for which no value can be
// chosen.
Json sample_options(const Options& options, bool model, std::vector<std::string>& unknown);

// An experiment with four layers of a Llama, or of a mixture of experts; eight sequences a step,
// AdamW, three steps.
Json small_experiment(bool experts = false);

// A JSON file of kit/ ("mixes.json"). Throws Error (environment) where it is missing.
Json kit_file(const std::string& name);

// Plan entries and keys that are added to an experiment to try it in a mix.
struct KitMix {
  std::string name;
  // plugin of the added entries; an experiment that has it is not tried in the mix
  std::string plugin;
  // plan entries before and after the experiment's own
  Json before = Json::array(), after = Json::array();
  Json keys = Json::object();  // keys of the experiment that the mix sets
};
// The mixes of kit/mixes.json: "mixes" are for everything, "optimizer" for optimizers too. Throws
// Error (environment) if the file is missing.
const std::vector<KitMix>& kit_mixes(const std::string& of = "mixes");
// A plan in which a thing of this kind ("scheduler", "hook") is used.
Json plan_with(const std::string& kind, const Json& thing);

// The experiment in the mix; nothing if its plan has the mix's plugin already.
std::optional<Json> beside(const Json& experiment, const KitMix& mix);

}  // namespace mw
