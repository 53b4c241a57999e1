// Prints a model's dims, ops and parameters, which rules of strategies speak of.
#include "app/model_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "lua/settings.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/model.h"
#include "report/placements.h"

namespace mw {

namespace {

// "0-3", "0, 2", "".
std::string ranges_of(const std::set<int>& layers, int all) {
  std::string text;
  for (auto at = layers.begin(); at != layers.end();) {
    const int first = *at;
    int last = first;
    for (++at; at != layers.end() && *at == last + 1; ++at) last = *at;
    text += (text.empty() ? "" : ", ") +
            (first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
  }
  return text == fmt::format("0-{}", all - 1) ? "all" : text;
}

std::string tail(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

// Entries that layers have alike, each once, in the order of the first.
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
    entry["whole"] = Json::array();  // rope needs head_dim of two operands
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

// Kinds of ops that have the dim; `whole`: of those that need it whole, or that do not.
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

std::string in_brackets(const Json& names) {
  std::vector<std::string> list = names.get<std::vector<std::string>>();
  return "(" + join(list) + ")";
}

std::string operands(const Json& list) {
  std::string text;
  for (const Json& one : list) {
    const std::string name = one.value("name", "");
    text +=
        (text.empty() ? "" : ", ") + (name.empty() ? "" : name + " ") + in_brackets(one["dims"]);
  }
  return text;
}

std::string layers_text(const Json& entry, int layers) {
  return ranges_of(entry["layers"].get<std::set<int>>(), layers);
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

std::string model_text(const Graph& graph, const std::string& name) {
  const Json json = model_json(graph, name);
  TextTable dims({"dim", "size", "parts", "from", "may be cut in", "whole in"}, {1});
  for (const Json& dim : json["dims"]) {
    const std::string like =
        dim["like"].is_null() ? "" : fmt::format(", as {}", dim["like"].get<std::string>());
    dims.add({dim["name"], std::to_string(dim["size"].get<std::int64_t>()),
              (dim["even"].get<bool>() ? "even" : "any") + like, dim["from"],
              join(dim["cut_in"].get<std::vector<std::string>>()),
              join(dim["whole_in"].get<std::vector<std::string>>())});
  }
  TextTable ops({"op", "kind", "layers", "takes", "makes", "needs whole"});
  for (const Json& op : json["ops"]) {
    ops.add({op["name"], op["kind"], layers_text(op, graph.layers), operands(op["inputs"]),
             operands(op["outputs"]), join(op["whole"].get<std::vector<std::string>>())});
  }
  TextTable parameters({"parameter", "dims", "shape", "elements", "layers", "init"}, {3});
  for (const Json& one : json["parameters"]) {
    std::string init = one["init"];
    if (one.contains("std")) init += fmt::format(" {}", format_number(one["std"].get<double>()));
    parameters.add(
        {one["name"], in_brackets(one["dims"]),
         fmt::format("{}", fmt::join(one["shape"].get<std::vector<std::int64_t>>(), " x ")),
         std::to_string(one["elements"].get<std::int64_t>()), layers_text(one, graph.layers),
         init});
  }
  return fmt::format("{}: {}, {} elements of parameters\n\n{}\n{}\n{}", name,
                     plural(graph.layers, "layer"), graph.parameter_count(), dims.text("  "),
                     ops.text("  "), parameters.text("  "));
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
  output.result(model_json(graph, model->name()));
  if (output.json()) return 0;
  std::string text = model_text(graph, model->name());
  if (!made_up.empty())
    text += fmt::format("\nSizes of an example: {}; others with --set\n", join(made_up));
  output.text(text);
  return 0;
}

}  // namespace mw
