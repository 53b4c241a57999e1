// Resolves recompute and offload policies to the ops of a graph that they choose.
#include "meshwright/engine/activations.h"

#include <fmt/format.h>

#include <set>

#include "meshwright/engine/text.h"

namespace mw {

bool in_layers(const Op& op, const Graph& graph) {
  return op.layer >= 0 && op.layer < graph.layers;
}

namespace {

std::vector<bool> choose_ops(const Graph& graph, const OpPredicate& takes) {
  std::vector<bool> chosen;
  for (const Op& op : graph.ops()) chosen.push_back(in_layers(op, graph) && takes(op));
  return chosen;
}

std::vector<bool> choose_ops(const Graph& graph, const std::string& key,
                             const std::vector<std::string>& names, Problems& problems) {
  std::set<std::string> used, kinds;
  std::vector<bool> chosen = choose_ops(graph, [&](const Op& op) {
    kinds.insert(op.kind());
    bool any = false;
    for (const std::string& name : names) {
      const std::string part = "." + name + ".";
      if (op.kind() != name && ("." + op.name + ".").find(part) == std::string::npos) continue;
      used.insert(name);
      any = true;
    }
    return any;
  });
  for (const std::string& name : names) {
    if (used.count(name) > 0) continue;
    problems.add(Stage::options, "option.choice", key,
                 fmt::format("{}: no op of a layer is called {}", key, quote(name)),
                 fmt::format("kinds are {}", join({kinds.begin(), kinds.end()})));
  }
  return chosen;
}

}  // namespace

Json RecomputePolicy::describe() const {
  Json json;
  switch (kind) {
    case Kind::none:
      json = "none";
      break;
    case Kind::selective:
      json = "selective";
      break;
    case Kind::full:
      json = Json{{"every", every}};
      break;
    case Kind::ops:
      json = Json{{"ops", ops}};
      break;
    case Kind::fit:
      json = Json{{"fit", fit}};
      break;
    case Kind::function:
      json = "function";
      break;
    case Kind::registered:
      json = settings;
      break;
    case Kind::fixed:
      json = fit > 0 ? Json{{"fit", fit}} : Json("chosen");
      if (settings.contains("stages")) json["stages"] = settings["stages"];
      break;
  }
  if (keep_collectives) return Json{{"what", json}, {"collectives", "keep"}};
  return gathers ? Json{{"what", json}, {"gathers", true}} : json;
}

RecomputeSet resolve(const RecomputePolicy& policy, const Graph& graph, Problems& problems) {
  RecomputeSet set = policy.set;
  if (policy.kind == RecomputePolicy::Kind::fixed) {
    set.ops.resize(graph.ops().size());
    return set;
  }
  set.every = policy.every;
  set.keep_moves = policy.keep_collectives;
  set.gathers = policy.gathers;
  switch (policy.kind) {
    case RecomputePolicy::Kind::selective:
      set.ops = choose_ops(graph, [](const Op& op) { return op.op_class() == OpClass::attention; });
      break;
    case RecomputePolicy::Kind::full:
      set.ops = choose_ops(graph, [](const Op&) { return true; });
      break;
    case RecomputePolicy::Kind::ops:
      set.ops = choose_ops(graph, "recompute.ops", policy.ops, problems);
      break;
    case RecomputePolicy::Kind::function:
    case RecomputePolicy::Kind::registered:
      set.ops = choose_ops(graph, policy.what);
      break;
    case RecomputePolicy::Kind::none:
    case RecomputePolicy::Kind::fit:
    case RecomputePolicy::Kind::fixed:
      set.ops = choose_ops(graph, [](const Op&) { return false; });
      break;
  }
  return set;
}

Json OffloadPolicy::describe() const {
  Json json;
  switch (kind) {
    case Kind::none:
      return "none";
    case Kind::full:
      json["what"] = "full";
      break;
    case Kind::layers:
      json["layers"] = layers;
      break;
    case Kind::ops:
      json["ops"] = ops;
      break;
    case Kind::function:
      json["what"] = "function";
      break;
    case Kind::fixed:
      return {{"tensors", set.tensors}, {"prefetch", set.prefetch}};
  }
  json["least"] = least;
  json["prefetch"] = prefetch;
  return json;
}

OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems) {
  OffloadSet set;
  if (policy.kind == OffloadPolicy::Kind::fixed) {
    set = policy.set;
    set.ops.resize(graph.ops().size());
    return set;
  }
  set.layers = policy.layers;
  set.least = policy.least;
  set.prefetch = policy.prefetch;
  switch (policy.kind) {
    case OffloadPolicy::Kind::none:
    case OffloadPolicy::Kind::fixed:
      break;
    case OffloadPolicy::Kind::full:
    case OffloadPolicy::Kind::layers:
      set.ops = choose_ops(graph, [](const Op&) { return true; });
      break;
    case OffloadPolicy::Kind::ops:
      set.ops = choose_ops(graph, "offload.ops", policy.ops, problems);
      break;
    case OffloadPolicy::Kind::function:
      set.ops = choose_ops(graph, policy.what);
      break;
  }
  if (policy.layers > graph.layers) {
    problems.add(
        Stage::options, "option.range", "offload.layers",
        fmt::format("offload.layers: {} of a model of {} layers", policy.layers, graph.layers),
        fmt::format("nearest: {}, which is all of them, or \"full\"", graph.layers));
  }
  return set;
}

}  // namespace mw
