// Reads the table of mw.search: an experiment without a plan, and what the search may choose.
#include "script/read_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "meshwright/engine/text.h"
#include "predict/cluster_machine.h"
#include "script/priced_for.h"
#include "script/read_activations.h"

namespace mw {
namespace {

// The values of a key that takes one value or a list of them.
std::vector<Json> values_of(const Values& values, const char* key, std::vector<Json> otherwise) {
  if (!values.has(key) || values.at(key).is_null()) return otherwise;
  const Json& given = values.at(key);
  if (!given.is_array()) return {given};
  return {given.begin(), given.end()};
}

std::vector<std::string> names_of(const Values& values, const char* key,
                                  const std::vector<std::string>& known, bool may_be_none,
                                  Problems& problems) {
  std::vector<std::string> names;
  if (!values.has(key) || values.at(key).is_null()) return known;
  if (values.at(key).empty() && !may_be_none) {
    problems.add(Stage::options, "option.value", key, fmt::format("{}: got an empty list", key),
                 "leave it out, or name some of " + join(known));
  }
  int place = 0;
  for (const Json& one : values.at(key)) {
    ++place;
    // mw.plugins gives tables that know their name.
    const Json name = one.is_object() && one.contains("plugin") ? one.at("plugin") : one;
    const std::string path = fmt::format("{}[{}]", key, place);
    if (one.is_object()) {
      for (const auto& [option, value] : one.items()) {
        if (option == "plugin" || (option.starts_with("$") && option != unnamed_key)) continue;
        problems.add(
            Stage::options, "option.value", path,
            fmt::format("{}: {} has options, which the search chooses", path, lua_text(name)),
            fmt::format("write its name alone: {} = {{ \"dp\", \"tp\" }}", key));
        break;
      }
    }
    if (name.is_string() &&
        std::find(known.begin(), known.end(), name.get<std::string>()) != known.end()) {
      names.push_back(name.get<std::string>());
      continue;
    }
    problems.add(Stage::options, "option.value", path,
                 fmt::format("{}: got {}", path, describe(name)),
                 nearest_or_all(name.is_string() ? name.get<std::string>() : "", known));
  }
  return names;
}

std::vector<std::string> names_in(Catalog& catalog, Kind kind) {
  std::vector<std::string> names;
  for (const Registration* one : catalog.all(kind)) names.emplace_back(one->name);
  return names;
}

std::unique_ptr<Scheduler> scheduler_of(Catalog& catalog, const std::string& name) {
  const Registration& found = catalog.find(Kind::scheduler, name);
  Problems problems;
  const Values values = found.options().read(Json::object(), "", problems);
  problems.throw_if_any();
  return make<Scheduler>(found, values);
}

Json base_table(const Json& table) {
  Json base = Json::object();
  for (const Option& option : experiment_options().list()) {
    const std::string& key = option.name;
    if (option.searched && table.contains(key) && !table.at(key).is_null())
      base[key] = table.at(key);
  }
  if (table.contains(place_key)) base[place_key] = table.at(place_key);
  if (!base.contains("data")) base["data"] = {{"kind", "synthetic"}};
  if (!base.contains("optimizer")) base["optimizer"] = {{"kind", "adamw"}, {"lr", 1e-4}};
  base["plan"] = Json::array();
  base["steps"] = 1;
  return base;
}

void read_choices(const Values& values, const ReadContext& context, SearchRequest& request,
                  Problems& problems) {
  request.strategies = names_of(values, "strategies", names_in(*context.catalog, Kind::strategy),
                                /*may_be_none=*/false, problems);
  // Loads the strategies' plugins, which bring schedulers too.
  for (const std::string& name : request.strategies) context.catalog->find(Kind::strategy, name);
  request.schedules = names_of(values, "schedules", names_in(*context.catalog, Kind::scheduler),
                               /*may_be_none=*/true, problems);
  for (const Json& size : values_of(values, "microbatch", {})) {
    const auto number = whole_number(size);
    if (number && *number >= 1) {
      request.microbatches.push_back(*number);
      continue;
    }
    problems.add(Stage::options, "option.value", "microbatch",
                 fmt::format("microbatch: got {}", describe(size)),
                 "a number of sequences, or a list of those to choose from: { 1, 2, 4 }");
  }
  const auto reach =
      std::make_shared<ScriptReach>(ScriptReach{context.call, context.roots, context.catalog});
  for (const Json& one : values_of(values, "recompute", {"none", "selective", "full"}))
    request.recompute.push_back(
        {without_hidden(one), read_recompute(
                                  one, reach, [&] { return memory_limit(values, 0); }, problems)});
  for (const Json& one : values_of(values, "offload", {"none"}))
    request.offload.push_back({without_hidden(one), read_offload(one, reach, problems)});
}

// Makes the search's model with another number of layers; null if its table gives no such number.
std::function<std::shared_ptr<const Model>(std::int64_t)> layered(const Json& base,
                                                                  const ReadContext& context) {
  if (!base.contains("model") || !base["model"].is_object() || !base["model"].contains("layers") ||
      !base["model"]["layers"].is_number_integer())
    return nullptr;
  return [base, &context](std::int64_t layers) -> std::shared_ptr<const Model> {
    Json table = base;
    table["model"]["layers"] = layers;
    table["batch"] = 1;
    for (const char* key : {"cluster", "stack", "memory"}) table.erase(key);
    try {
      const Experiment made = read_experiment(table, context);
      return made.plan->graph->layers == layers ? made.plan->request.model : nullptr;
    } catch (const Error&) {  // the model cannot have so few layers
      return nullptr;
    }
  };
}

}  // namespace

const Options& search_options() {
  static const Options options = [] {
    Options own;
    own.integer("best", "plans to return")
        .range(1, 100)
        .fallback(5)
        .integer("checked", "candidates that are planned whole, the best by the closed form")
        .range(1, 1000)
        .fallback(24)
        .boolean("unsupported",
                 "the software of the stack need not be able to run what is proposed")
        .fallback(false)
        .integer("ranks", "that each plan has; the cluster's devices if left out")
        .at_least(1)
        .optional()
        .list("strategies",
              "names of those that may stand in a plan; all of the plugin path if left out")
        .optional()
        .list("schedules", "of stages: { \"1f1b\" }; all that are registered if left out")
        .optional()
        .any("microbatch",
             "sequences, or a list to choose from; powers of two up to 64 if left out")
        .optional()
        .any("recompute",
             "as an experiment's, or a list to choose from; none, selective and full if left out")
        .optional()
        .any("offload", "as an experiment's, or a list to choose from; none if left out")
        .optional();
    for (const Option& option : experiment_options().list()) {
      if (own.find(option.name) != nullptr) continue;
      own.any(option.name,
              option.searched ? option.doc : "a training's: the search does not look at it")
          .optional();
    }
    return own;
  }();
  return options;
}

ReadSearch read_search(const Json& table, const ReadContext& context) {
  Problems problems;
  const Values values = search_options().read(table, "", problems);
  ReadSearch read;
  SearchRequest& request = read.request;
  if (!table.contains("cluster") || table["cluster"].is_null()) {
    problems.add(Stage::options, "search.cluster", "cluster",
                 "cluster is missing: a search is for described hardware",
                 "cluster = mw.cluster(\"dgx-h100\", { nodes = 8 }), or --cluster and --nodes");
  }
  read_choices(values, context, request, problems);
  const Json base = base_table(table);
  Experiment experiment;
  try {
    experiment = read_experiment(base, context);
  } catch (const Error& error) {
    problems.add(error);
  }
  problems.throw_if_any();
  request.base = experiment.plan;
  request.source = experiment.strategies;
  request.asked_memory = experiment.memory;
  read.machine = read_machine(experiment.cluster, experiment.stack, problems);
  problems.throw_if_any();
  request.machine = read.machine.get();
  const std::int64_t devices = read.machine->cluster().devices();
  const std::int64_t ranks = values.has("ranks") ? values.integer("ranks") : devices;
  if (ranks > devices || ranks > Mesh::most_ranks) {
    problems.add(
        Stage::options, "option.range", "ranks",
        fmt::format("ranks: {} on {} devices", ranks, devices),
        fmt::format("nearest: ranks = {}", std::min<std::int64_t>(devices, Mesh::most_ranks)));
    problems.throw_if_any();
  }
  request.ranks = static_cast<int>(ranks);
  request.memory = read.machine->most_memory();
  if (request.asked_memory > 0) request.memory = std::min(request.memory, request.asked_memory);
  for (RecomputeChoice& choice : request.recompute) {
    const bool said = choice.written.is_object() && choice.written.contains("fit");
    if (said && choice.policy.fit > request.memory) {
      const auto bytes = [](std::int64_t count) {
        return format_bytes(static_cast<double>(count));
      };
      problems.add(Stage::options, "option.range", "recompute.fit",
                   fmt::format("recompute.fit: {} are more than the {} that a rank may hold",
                               bytes(choice.policy.fit), bytes(request.memory)),
                   "nearest: recompute = \"fit\", which takes what there is");
    }
    choice.policy.fit = std::min(choice.policy.fit, request.memory);
  }
  problems.throw_if_any();
  request.unsupported = values.flag("unsupported");
  request.best = values.int32("best");
  request.checked = values.int32("checked");
  request.with_layers = layered(base, context);
  Catalog* catalog = context.catalog;
  request.options_of = [catalog](const std::string& name) -> const Options& {
    return catalog->find(Kind::strategy, name).options();
  };
  request.schedule = [catalog](const std::string& name, const ScheduleRequest& order) {
    return scheduler_of(*catalog, name)->make(order);
  };
  request.chunks_of = [catalog](const std::string& name) {
    return scheduler_of(*catalog, name)->fixed_chunks();
  };
  return read;
}

}  // namespace mw
