// Values for options that have none, and small experiments to try a thing in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "meshwright/json.h"
#include "meshwright/options.h"

namespace mw {

// A value for every option that must be given, small and within its range; a `model`'s by what such
// options are called in models (layers, heads …). `unknown`: those that only their author knows.
Json sample_options(const Options& options, bool model, std::vector<std::string>& unknown);

// Four layers of a Llama, or of a mixture of experts; eight sequences a step, AdamW, three steps.
Json small_experiment(bool experts = false);

// A JSON file of kit/ ("mixes.json"). Throws Error (environment) where it is missing.
Json kit_file(const std::string& name);

// What an experiment is tried beside.
struct KitMix {
  std::string name;    // for people
  std::string plugin;  // that it brings; left out where a plan has it already
  Json before = Json::array(), after = Json::array();  // entries of the plan around its own
  Json keys = Json::object();                          // of the experiment
};
// Those of kit/mixes.json: "mixes" for all, "optimizer" besides. Throws Error (environment) where
// the file is missing.
const std::vector<KitMix>& kit_mixes(const std::string& of = "mixes");
// A plan in which a thing of this kind ("scheduler", "hook") is used.
Json plan_with(const std::string& kind, const Json& thing);

// The experiment beside the mix; nothing if its plan has that plugin already.
std::optional<Json> beside(const Json& experiment, const KitMix& mix);

}  // namespace mw
