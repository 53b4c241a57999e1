// What the author of a strategy asks of a model and of a plan: dims, ops and parameters, and who
// holds what.
#pragma once

#include <string>
#include <vector>

#include "app/output.h"
#include "meshwright/graph.h"
#include "plan/plan.h"
#include "plugin/registry.h"

namespace mw {

// "layers.3.q" -> "layers.*.q"; other names as they are.
std::string of_any_layer(const std::string& name);

// A model's dims, ops and parameters; what layers have alike is said once.
Json model_json(const Graph& graph, const std::string& name);
std::string model_text(const Graph& graph, const std::string& name);

// Each parameter's placement and its shape on each class of ranks.
Json placements_json(const Plan& plan);
std::string placements_text(const Plan& plan);

// `plugins show --model NAME`: of options that are required and not set, a small example's sizes.
int show_model(PluginRegistry& plugins, const std::string& name,
               const std::vector<std::string>& settings, Output& output);

}  // namespace mw
