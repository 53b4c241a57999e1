// Reads a script's `offload` key: which activations go to host memory, from which size on, how
// early they come back.
#include "plan/offload_policy.h"

#include <fmt/format.h>

#include <utility>

#include "meshwright/engine/json_text.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr const char* offload_forms =
    "\"none\", \"full\", { layers = n }, { ops = { \"attention\" } }, { least = \"64KiB\" }, or "
    "function(op) return true end";

const Options& offload_options() {
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
  const Values values = offload_options().read(given, "offload", found);
  problems.add(found);
  if (!found.empty()) return;
  if (values.has("layers") && values.has("ops")) {
    problems.add(Stage::options, "option.conflict", "offload",
                 "offload: layers and ops are two ways to choose; take one", offload_forms);
    return;
  }
  policy.kind = OffloadPolicy::Kind::full;
  policy.least = values.integer("least");
  policy.prefetch = values.int32("prefetch");
  if (values.has("layers")) {
    policy.kind = OffloadPolicy::Kind::layers;
    policy.layers = values.int32("layers");
  }
  if (values.has("ops")) {
    policy.kind = OffloadPolicy::Kind::ops;
    policy.ops = op_names("offload.ops", values.at("ops"), offload_forms, problems);
  }
}

}  // namespace

Json OffloadPolicy::describe() const {
  Json json;
  switch (kind) {
    case OffloadPolicy::Kind::none:
      return "none";
    case OffloadPolicy::Kind::full:
      json["what"] = "full";
      break;
    case OffloadPolicy::Kind::layers:
      json["layers"] = layers;
      break;
    case OffloadPolicy::Kind::ops:
      json["ops"] = ops;
      break;
    case OffloadPolicy::Kind::function:
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
    policy.kind = OffloadPolicy::Kind::function;
    policy.what = op_function("offload", given, std::move(reach));
    return policy;
  }
  if (given.is_object()) {
    read_table(given, policy, problems);
    return policy;
  }
  const std::string text = given.is_string() ? given.get<std::string>() : json_text(given);
  if (text == "full") {
    policy.kind = OffloadPolicy::Kind::full;
  } else if (text != "none") {
    problems.add(Stage::options, "option.choice", "offload",
                 fmt::format("offload: there is no {}", quote(text)), offload_forms);
  }
  return policy;
}

OffloadSet resolve(const OffloadPolicy& policy, const Graph& graph, Problems& problems) {
  OffloadSet set;
  set.layers = policy.layers;
  set.least = policy.least;
  set.prefetch = policy.prefetch;
  switch (policy.kind) {
    case OffloadPolicy::Kind::none:
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
