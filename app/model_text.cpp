// Prints a model's dims, ops and parameters, which rules of strategies speak of.
#include "app/model_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "app/texts.h"
#include "draw/placements.h"
#include "lua/settings.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/model.h"

namespace mw {

namespace {

std::string tail(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// Collects entries and merges equal ones of several layers, in the order of the first.
class Alike {
 public:
  explicit Alike(int layers) : layers_(layers) {}
  void add(Json entry, int layer) {
    const std::string key = json_text(entry);
    const auto [at, fresh] = where_.emplace(key, entries_.size());
    if (fresh) entries_.push_back({std::move(entry), {}, 0});
    Entry& known = entries_[at->second];
    ++known.count;
    if (layer >= 0 && layer < layers_) known.layers.insert(layer);
  }
  Json json() const {
    Json list = Json::array();
    for (const Entry& entry : entries_) {
      list.push_back(entry.json);
      list.back()["layers"] = entry.layers;
      list.back()["count"] = entry.count;
    }
    return list;
  }

 private:
  struct Entry {
    Json json;
    std::set<int> layers;
    std::int64_t count;
  };
  int layers_;
  std::vector<Entry> entries_;
  std::map<std::string, std::size_t> where_;
};

Json ops_json(const Graph& graph) {
  Alike ops(graph.layers);
  for (const Op& op : graph.ops()) {
    Json entry = {{"name", of_any_layer(op.name)}, {"kind", op.kind()}};
    entry["inputs"] = entry["outputs"] = Json::array();
    for (const Use& use : op.inputs) {
      const Value& value = graph.value(use.value);
      const bool made = value.source == Value::Source::op;
      entry["inputs"].push_back(
          {{"name", made ? "" : tail(value.name)}, {"dims", names_of(use.dims)}});
    }
    for (const Dims& dims : op.output_dims) entry["outputs"].push_back({{"dims", names_of(dims)}});
    // without duplicates: rope needs head_dim whole in two operands
    entry["whole"] = Json::array();
    for (const auto& name : names_of(op.whole)) {
      if (std::find(entry["whole"].begin(), entry["whole"].end(), name) == entry["whole"].end())
        entry["whole"].push_back(name);
    }
    ops.add(std::move(entry), op.layer);
  }
  return ops.json();
}

int layer_of(const std::string& name) {
  int layer = -1;
  if (of_any_layer(name) != name) layer = std::stoi(name.substr(std::string("layers.").size()));
  return layer;
}

Json parameters_json(const Graph& graph) {
  Alike parameters(graph.layers);
  for (int index : graph.parameters()) {
    const Value& value = graph.value(index);
    Json shape = Json::array();
    for (Dim dim : value.dims) shape.push_back(graph.size(dim));
    static constexpr const char* kinds[] = {"normal", "ones", "zeros"};
    Json entry = {{"name", of_any_layer(value.name)},
                  {"dims", names_of(value.dims)},
                  {"shape", shape},
                  {"elements", graph.count(index)},
                  {"init", kinds[static_cast<int>(value.init.kind)]}};
    if (value.init.kind == Init::Kind::normal) entry["std"] = value.init.std;
    parameters.add(std::move(entry), layer_of(value.name));
  }
  return parameters.json();
}

// Kinds of ops that have the dim: those that need it whole if `whole`, else those that do not.
std::vector<std::string> kinds_with(const Graph& graph, Dim dim, bool whole) {
  std::set<std::string> kinds;
  for (const Op& op : graph.ops()) {
    if (op.has(dim) && contains(op.whole, dim) == whole) kinds.insert(op.kind());
  }
  return {kinds.begin(), kinds.end()};
}

Json dims_json(const Graph& graph) {
  Json list = Json::array();
  for (const auto& [dim, info] : graph.dims()) {
    const auto cut = kinds_with(graph, dim, false), whole = kinds_with(graph, dim, true);
    if (cut.empty() && whole.empty()) continue;
    list.push_back({{"name", dim.name()},
                    {"size", info.size},
                    {"even", info.even},
                    {"like", info.like.valid() ? Json(info.like.name()) : Json()},
                    {"from", info.from},
                    {"cut_in", cut},
                    {"whole_in", whole}});
  }
  return list;
}

Json given_settings(const std::vector<std::string>& settings) {
  Json given = Json::object();
  for (const std::string& text : settings) {
    const Setting setting = parse_setting(text);
    Json value;
    if (!read_plainly(setting.text, value)) {
      throw Error(Stage::options, "set.value", setting.key,
                  fmt::format("{} is no number and no word", setting.text),
                  "sizes of a model are numbers: --set hidden=64");
    }
    const std::string prefix = "model.";
    given[setting.key.starts_with(prefix) ? setting.key.substr(prefix.size()) : setting.key] =
        value;
  }
  return given;
}

}  // namespace

Json model_json(const Graph& graph, const std::string& name) {
  return {{"kind", "model"},
          {"name", name},
          {"layers", graph.layers},
          {"elements", graph.parameter_count()},
          {"dims", dims_json(graph)},
          {"ops", ops_json(graph)},
          {"parameters", parameters_json(graph)}};
}

int show_model(PluginRegistry& plugins, const std::string& name,
               const std::vector<std::string>& settings, Output& output) {
  static const std::map<std::string, std::int64_t> examples{
      {"layers", 2},  {"hidden", 64}, {"heads", 4}, {"ffn", 176},
      {"vocab", 256}, {"experts", 8}, {"top_k", 2}};
  Json table = given_settings(settings);
  std::vector<std::string> made_up;
  for (const Option& option : plugins.find(Kind::model, name, "--model").options().list()) {
    const auto example = examples.find(option.name);
    if (option.fallback || option.optional || table.contains(option.name) ||
        example == examples.end())
      continue;
    table[option.name] = example->second;
    made_up.push_back(fmt::format("{} = {}", option.name, example->second));
  }
  table["kind"] = name;
  Problems problems;
  const auto reach = std::make_shared<ScriptReach>(ScriptReach{nullptr, {}, &plugins});
  std::shared_ptr<const Model> model;
  if (const auto chosen = choose(Kind::model, table, "model", reach, "", problems))
    model = make_chosen<Model>(*chosen, problems);
  problems.throw_if_any();
  const std::int64_t batch = 1, sequence = 128;
  const Graph graph = model->build(batch, sequence, batch * sequence);
  const Json json = model_json(graph, model->name());
  output.result(json);
  if (output.json()) return 0;
  std::string text = from_library("model", json);
  if (!made_up.empty())
    text += fmt::format("\nSizes of an example: {}; others with --set\n", join(made_up));
  output.text(text);
  return 0;
}

}  // namespace mw
