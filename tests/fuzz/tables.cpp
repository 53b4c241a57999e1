// Tables of a script: options of all that is built in, descriptions of clusters and of stacks, and
// experiments up to their plans.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "fuzz/readers.h"
#include "meshwright/engine/registry.h"
#include "meshwright/engine/text.h"
#include "predict/cluster.h"
#include "predict/cluster_parts.h"
#include "predict/stack.h"
#include "script/read_experiment.h"

namespace mw::fuzz {
namespace {

void read_options(Bytes input) {
  const Json table = lua_table(text_of(input));
  Problems problems;
  for (const Registration& one : registrations_of(built_in())) {
    const Values values = one.options().read(table, "table", problems);
    for (const Option& option : one.options().list())
      must(!option.fallback || values.has(option.name), "an option has lost its default");
  }
  experiment_options().read(table, "", problems);
  for (const auto& [name, keys] : cluster_keys()) keys->read(table, name, problems);
  for (const Problem& problem : problems.list()) json_text(json_of(problem));
  json_text(without_hidden(table));
  lua_text(table);
}

void read_description(Bytes input) {
  const Json table = lua_table(text_of(input));
  Problems of_stack, of_cluster;
  read_stack(table, "stack", of_stack);
  const Cluster cluster = read_cluster(table, "cluster", of_cluster);
  of_cluster.throw_if_any();
  const ClusterParts parts(cluster);
  must(!parts.all().empty(), "a cluster has no part");
  parts.of(0);
}

// Whether plans of it are made in no time: what is slow by intent is no fault.
bool is_small(const Json& value, double most) {
  if (value.is_number()) return std::abs(value.get<double>()) <= most;
  if (!value.is_structured()) return true;
  for (const auto& [key, item] : value.items()) {
    const bool counts = key == "layers" || key == "ways" || key == "chunks" || key == "batch" ||
                        key == "experts" || key == "slices" || key == "steps";
    if (!is_small(item, counts ? 8 : most)) return false;
  }
  return true;
}

void read_script_table(Bytes input) {
  const auto experiment = small_experiment(lua_table(text_of(input)), {});
  must(!experiment || experiment->plan != nullptr, "an experiment has no plan");
}

const AddReader registered_options({"options", read_options, 600});
const AddReader registered_descriptions({"clusters", read_description, 1500});
const AddReader registered_experiments({"experiments", read_script_table, 60});

}  // namespace

PluginRegistry& test_plugins() {
  static PluginRegistry plugins = [] {
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
    return PluginRegistry({program.parent_path().parent_path() / "lib/meshwright/plugins"});
  }();
  return plugins;
}

std::optional<Experiment> small_experiment(const Json& table, const CallFunction& call) {
  // Files are other readers' matter, and what a run would write is nobody's.
  for (const char* key : {"log", "checkpoint", "resume", "export", "weights", "evaluate"})
    if (table.is_object() && table.contains(key)) return std::nullopt;
  if (!table.is_object() || !is_small(table, 512)) return std::nullopt;
  double ranks = 1;
  if (const auto plan = table.find("plan"); plan != table.end() && plan->is_array()) {
    if (plan->size() > 4) return std::nullopt;
    for (const Json& entry : *plan) {
      if (entry.is_object() && entry.contains("ways") && entry["ways"].is_number())
        ranks *= std::max(1.0, std::abs(entry["ways"].get<double>()));
    }
  }
  if (ranks > 16) return std::nullopt;
  ReadContext context;
  context.catalog = &test_plugins();
  context.call = call;
  return read_experiment(table, context);
}

}  // namespace mw::fuzz
