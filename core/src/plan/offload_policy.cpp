#include "plan/offload_policy.h"

#include <fmt/format.h>

#include <utility>

#include "base/json_text.h"
#include "base/text.h"

namespace mw {
namespace {

using Kind = OffloadPolicy::Kind;

constexpr const char* what_there_is =
    "\"none\", \"full\", { layers = n }, { ops = { \"attention\" } }, { least = \"64KiB\" }, or "
    "function(op) return true end";

const Options& table_options() {
  static const Options options =
      Options()
          .integer("layers", "the first layers of each stage's part of the model")
          .at_least(1)
          .optional()
          .list("ops",
                "kinds of ops, or parts of their names: \"attention\", \"mlp\", \"rms_norm\"")
          .optional()
          .bytes("least", "tensors of a rank that are smaller stay")
          .at_least(0)
          .fallback(0)
          .integer("prefetch", "layers of backward by which tensors are back ahead of their own")
          .range(0, 1000)
          .fallback(0);
  return options;
}

void read_table(const Json& given, OffloadPolicy& policy, Problems& problems) {
  Problems found;
  const Values values = table_options().read(given, "offload", found);
  for (const Problem& p : found.list()) problems.add(p.stage, p.message, p.hint);
  if (!found.empty()) return;
  if (values.has("layers") && values.has("ops")) {
    problems.add(Stage::options, "offload: layers and ops are two ways to choose; take one",
                 what_there_is);
    return;
  }
  policy.kind = Kind::full;
  policy.least = values.integer("least");
  policy.prefetch = static_cast<int>(values.integer("prefetch"));
  if (values.has("layers")) {
    policy.kind = Kind::layers;
    policy.layers = static_cast<int>(values.integer("layers"));
  }
  if (values.has("ops")) {
    policy.kind = Kind::ops;
    policy.ops = op_names("offload.ops", values.at("ops"), what_there_is, problems);
  }
}

}  // namespace

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
  }
  json["least"] = least;
  json["prefetch"] = prefetch;
  return json;
}

OffloadPolicy read_offload(const Json& given, std::shared_ptr<const ScriptReach> reach,
                           Problems& problems) {
  OffloadPolicy policy;
  if (is_function(given)) {
    policy.kind = Kind::function;
    policy.what = op_function("offload", given, std::move(reach));
    return policy;
  }
  if (given.is_object()) {
    read_table(given, policy, problems);
    return policy;
  }
  const std::string text = given.is_string() ? given.get<std::string>() : json_text(given);
  if (text == "full") {
    policy.kind = Kind::full;
  } else if (text != "none") {
    problems.add(Stage::options, fmt::format("offload: there is no {}", quote(text)),
                 what_there_is);
  }
  return policy;
}

OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems) {
  OffloadSet set;
  set.layers = policy.layers;
  set.least = policy.least;
  set.prefetch = policy.prefetch;
  switch (policy.kind) {
    case Kind::none:
      break;
    case Kind::full:
    case Kind::layers:
      set.ops = choose_ops(graph, [](const Op&) { return true; });
      break;
    case Kind::ops:
      set.ops = choose_ops(graph, "offload.ops", policy.ops, problems);
      break;
    case Kind::function:
      set.ops = choose_ops(graph, policy.what);
      break;
  }
  if (policy.layers > graph.layers) {
    problems.add(
        Stage::options,
        fmt::format("offload.layers: {} of a model of {} layers", policy.layers, graph.layers),
        fmt::format("nearest: {}, which is all of them, or \"full\"", graph.layers));
  }
  return set;
}

}  // namespace mw
