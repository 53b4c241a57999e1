// What the author of a strategy asks of a model: its dims, ops and parameters.
#pragma once

#include <string>
#include <vector>

#include "app/output.h"
#include "meshwright/engine/registry.h"
#include "meshwright/graph.h"

namespace mw {

// A model's dims, ops and parameters; entries that layers have alike appear once.
Json model_json(const Graph& graph, const std::string& name);

// The command `plugins show --model NAME`. Required options that are not set get the sizes of a
// small example.
int show_model(PluginRegistry& plugins, const std::string& name,
               const std::vector<std::string>& settings, Output& output);

}  // namespace mw
