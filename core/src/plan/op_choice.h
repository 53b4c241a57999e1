// How a script chooses among a model's ops, for policies over activations: by names or by a
// function. Only ops of layers can be chosen, not the embedding, nor the head and the loss.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/options.h"

namespace mw {

using OpPredicate = std::function<bool(const Op&)>;

bool in_layers(const Op& op, const Graph& graph);

// The Lua function that a script gave as option `key`, called with { name, kind, layer }. Where it
// returns neither a boolean nor nil, the predicate throws Error (options).
OpPredicate op_function(const std::string& key, const Json& given,
                        std::shared_ptr<const ScriptReach> reach);

// A list of names, of option `key`. Adds a problem with `hint` if it is not that.
std::vector<std::string> op_names(const std::string& key, const Json& given,
                                  const std::string& hint, Problems& problems);

// For each op of the graph, whether it is of a layer and the predicate takes it.
std::vector<bool> choose_ops(const Graph& graph, const OpPredicate& takes);
// ... or one of the names is its kind or a part of its name between dots ("attention", "mlp"). Adds
// a problem for each name that fits nothing, with the kinds that there are.
std::vector<bool> choose_ops(const Graph& graph, const std::string& key,
                             const std::vector<std::string>& names, Problems& problems);

}  // namespace mw
