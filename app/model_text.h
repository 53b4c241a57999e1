// What the author of a strategy asks of a model: its dims, ops and parameters.
#pragma once

#include <string>
#include <vector>

#include "app/output.h"
#include "meshwright/engine/registry.h"
#include "meshwright/graph.h"

namespace mw {

// A model's dims, ops and parameters; what layers have alike is said once.
Json model_json(const Graph& graph, const std::string& name);

// `plugins show --model NAME`: of options that are required and not set, a small example's sizes.
int show_model(PluginRegistry& plugins, const std::string& name,
               const std::vector<std::string>& settings, Output& output);

}  // namespace mw
