// Reads what is asked of mw.what_if: which values are changed, and to what.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/what_if.h"
#include "lua/settings.h"
#include "meshwright/choice.h"
#include "meshwright/engine/text.h"
#include "predict/cluster.h"
#include "predict/stack.h"
#include "script/registered_keys.h"

namespace mw {
namespace {

bool is_numeric(OptionType type) {
  return type == OptionType::integer || type == OptionType::number || type == OptionType::bytes;
}

// A declared key of clusters or stacks that a knob can change, with the knob's name for it.
struct DeclaredKnob {
  std::string name, path;
  const Option* option;
};
const std::vector<DeclaredKnob>& declared_knobs() {
  static const std::vector<DeclaredKnob> all = [] {
    std::vector<DeclaredKnob> found;
    const auto add = [&](const std::string& prefix, const std::string& root, const Options& keys) {
      for (const Option& option : keys.list()) {
        if (is_numeric(option.type) || option.type == OptionType::boolean)
          found.push_back({prefix + option.name, root + prefix + option.name, &option});
      }
    };
    for (const auto& [table, keys] : cluster_keys()) {
      if (table.find('[') == std::string::npos)
        add(table.empty() ? "" : table + ".", "cluster.", *keys);
    }
    add("stack.", "", stack_keys());
    return found;
  }();
  return all;
}

// Options whose values are one number, text or switch.
bool is_single(const Option& option) {
  return option.type != OptionType::table && option.type != OptionType::list &&
         option.type != OptionType::function;
}

// The options of what the experiment has under one of its keys; null: none are known.
const Options* options_under(const std::string& key, const Json& experiment, Catalog& catalog) {
  if (!experiment.contains(key) || is_function(experiment[key])) return nullptr;
  if (key == "evaluate") return &evaluate_options();
  for (const auto& [made, kind] : registered_keys) {
    if (key != made) continue;
    const auto chosen = named_choice(experiment[key]);
    if (!chosen) return nullptr;
    try {
      return &catalog.find(kind, chosen->name).options();
    } catch (const Error&) {  // reading the experiment reports it
      return nullptr;
    }
  }
  return nullptr;
}

// Whether the knob's number is a whole one.
bool is_whole(const Knob& knob) {
  return knob.declared != nullptr && is_numeric(knob.declared->type)
             ? knob.declared->type != OptionType::number
             : knob.now.is_number_integer();
}

// The value under a path of dots; null if there is none.
Json value_under(const Json& table, const std::string& path) {
  const Json* at = &table;
  for (std::size_t from = 0; from <= path.size();) {
    const std::size_t dot = std::min(path.find('.', from), path.size());
    const std::string step = path.substr(from, dot - from);
    if (!at->is_object() || !at->contains(step)) return nullptr;
    at = &(*at)[step];
    from = dot + 1;
  }
  return *at;
}

class KnobReader {
 public:
  KnobReader(const Json& experiment, Catalog& catalog, Problems& problems)
      : experiment_(experiment), catalog_(catalog), problems_(problems) {}

  std::optional<Knob> read(const std::string& given, const Json& values) {
    Knob knob;
    knob.name = without_spaces(given);
    if (knob.name.ends_with(" x")) {
      knob.factor = true;
      knob.name = without_spaces(knob.name.substr(0, knob.name.size() - 2));
    } else if (knob.name.ends_with('=')) {
      knob.name = without_spaces(knob.name.substr(0, knob.name.size() - 1));
    }
    if (!find(knob)) return std::nullopt;
    if (!values.is_array() || values.empty()) {
      no_value(knob, fmt::format("got {}", describe(values)),
               "a number, or a list of them: { 0.5, 2 }");
      return std::nullopt;
    }
    for (const Json& value : values) {
      if (auto made = value_of(knob, value)) knob.values.push_back(std::move(*made));
    }
    return knob;
  }

 private:
  void no_knob(const Knob& knob, const std::string& why, const std::string& hint) {
    problems_.add(Stage::options, "what-if.knob", knob.name, fmt::format("{}: {}", knob.name, why),
                  hint);
  }
  void no_value(const Knob& knob, const std::string& why, const std::string& hint) {
    problems_.add(Stage::options, "what-if.value", knob.name, fmt::format("{}: {}", knob.name, why),
                  hint);
  }

  bool has(const char* key) const {
    return experiment_.contains(key) && experiment_[key].is_object();
  }

  // Fills in the knob's path and present value. Adds a problem and returns false if it is no knob.
  bool find(Knob& knob) {
    const std::string cluster = "cluster.";
    const std::string name =
        knob.name.starts_with(cluster) ? knob.name.substr(cluster.size()) : knob.name;
    for (const DeclaredKnob& one : declared_knobs()) {
      if (one.name == name) {
        knob.path = one.path;
        knob.declared = one.option;
      }
    }
    if (knob.declared != nullptr) return find_declared(knob);
    knob.path = knob.name;
    if (knob.name == "sequence" && !experiment_.contains("sequence")) knob.path = "data.sequence";
    if (knob.path.find('[') != std::string::npos) return !knob.factor || no_factor(knob);
    knob.declared = declared_at(knob.path);
    take_value(knob);
    const bool single = knob.declared != nullptr && is_single(*knob.declared);
    const bool written = knob.now.is_primitive() && !knob.now.is_null();
    return single || written || unknown(knob);
  }

  // The option that the experiment, or what it names, declares for the path; null: neither does.
  const Option* declared_at(const std::string& path) const {
    const std::size_t dot = path.find('.');
    if (dot == std::string::npos) return experiment_options().find(path);
    const Options* options = options_under(path.substr(0, dot), experiment_, catalog_);
    return options == nullptr ? nullptr : options->find(path.substr(dot + 1));
  }

  // Fills in the knob's present value: as it is written, or else the default.
  void take_value(Knob& knob) const {
    knob.now = value_under(experiment_, knob.path);
    if (knob.now.is_null() && knob.declared != nullptr && knob.declared->fallback)
      knob.now = *knob.declared->fallback;
    if (!knob.now.is_string() || !knob.in_bytes()) return;
    if (const auto bytes = parse_bytes(knob.now.get<std::string>())) knob.now = *bytes;
  }

  bool find_declared(Knob& knob) {
    const char* const root = knob.path.starts_with("stack.") ? "stack" : "cluster";
    if (!has(root)) {
      no_knob(knob, fmt::format("the experiment names no {}", root),
              root == std::string("stack")
                  ? "--stack NAME, or stack = mw.stack \"megatron-core\""
                  : "--cluster NAME, or cluster = mw.cluster(\"selene\", { nodes = 8 })");
      return false;
    }
    take_value(knob);
    if (!knob.factor || (knob.now.is_number() && knob.now.get<double>() != 0)) return true;
    no_knob(knob,
            knob.now.is_number()
                ? "is 0, and a factor leaves it so"
                : fmt::format("the {} says none, and there is nothing to multiply", root),
            fmt::format("give a value: [\"{0}\"] = {{ … }}, or --what-if '{0}=…'", knob.name));
    return false;
  }

  bool no_factor(const Knob& knob) {
    no_knob(knob, "an entry of a list takes values, and no factor",
            fmt::format("--what-if '{}=2,4'", knob.name));
    return false;
  }

  bool unknown(const Knob& knob) {
    std::vector<std::string> known;
    for (const DeclaredKnob& one : declared_knobs()) known.push_back(one.name);
    for (const Option& option : experiment_options().list()) {
      if (is_single(option)) known.push_back(option.name);
      const Options* inner = options_under(option.name, experiment_, catalog_);
      for (const Option& own : inner == nullptr ? std::vector<Option>() : inner->list())
        if (is_single(own)) known.push_back(option.name + "." + own.name);
    }
    // Keys whose last word was given are proposed first.
    std::vector<std::string> same;
    for (const std::string& one : known) {
      if (one.substr(one.rfind('.') + 1) == knob.name) same.push_back(one);
    }
    const std::string near = did_you_mean(knob.name, known);
    const std::string root = knob.path.substr(0, knob.path.find('.'));
    const bool left_out = root != knob.path && !experiment_.contains(root) &&
                          experiment_options().find(root) != nullptr;
    const bool table = knob.declared != nullptr;
    if (left_out || table) {
      no_knob(knob,
              table ? "it has no single value to change"
                    : fmt::format("the experiment leaves out {}, whose key it is", quote(root)),
              table ? fmt::format("change a key in it: {}.KEY", knob.path)
                    : fmt::format("write {} in the script, with its keys", root));
      return false;
    }
    no_knob(knob, "there is no such value to change",
            !same.empty() ? "did you mean " + join_quoted(same, " or ") + "?"
            : !near.empty()
                ? near
                : "for example network.nic, node.bandwidth, device.memory, "
                  "device.peak16, host.link, nodes, batch, sequence, model.layers, "
                  "stack.host; docs/description_keys.md has all of clusters and stacks");
    return false;
  }

  std::optional<Knob::Value> value_of(const Knob& knob, const Json& given) {
    if (!knob.factor) {
      if (given.is_number() || given.is_string() || given.is_boolean())
        return Knob::Value{"= " + (given.is_string() ? given.get<std::string>() : describe(given)),
                           given};
      no_value(knob, fmt::format("got {}", describe(given)), "a number or a text");
      return std::nullopt;
    }
    if (!given.is_number() || !(given.get<double>() > 0) || !std::isfinite(given.get<double>())) {
      no_value(knob, fmt::format("x: got {}", describe(given)),
               "a factor above 0, for example 0.5 or 2");
      return std::nullopt;
    }
    if (!knob.now.is_number()) {
      no_value(knob,
               knob.now.is_null()
                   ? "has no value here that a factor could multiply"
                   : fmt::format("is {}, which no factor multiplies", describe(knob.now)),
               fmt::format("give a value: --what-if '{}=…'", knob.name));
      return std::nullopt;
    }
    return times(knob, given.get<double>());
  }

  // The knob's value times the factor. Adds a problem if that must be whole and is not.
  std::optional<Knob::Value> times(const Knob& knob, double factor) {
    const double made = knob.now.get<double>() * factor;
    const std::string text = "x " + format_number(factor);
    if (!is_whole(knob)) return Knob::Value{text, made};
    const double rounded = std::round(made);
    if (!knob.in_bytes() && std::abs(made - rounded) > 1e-9 * made) {
      no_value(knob,
               fmt::format("{} times {} is {}, and it is a whole number", factor,
                           describe(knob.now), format_number(made)),
               fmt::format("nearest: [\"{}\"] = {}", knob.name, std::max(1.0, rounded)));
      return std::nullopt;
    }
    return Knob::Value{text, static_cast<std::int64_t>(rounded)};
  }

  const Json& experiment_;
  Catalog& catalog_;
  Problems& problems_;
};

}  // namespace

Json read_what_ifs(const std::vector<std::string>& texts) {
  Json asked = Json::array();
  Problems problems;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    const std::string knob = without_spaces(text.substr(0, equals));
    Json values = Json::array();
    for (std::size_t from = equals; from != std::string::npos && from < text.size();) {
      const std::size_t comma = std::min(text.find(',', from + 1), text.size());
      const std::string one = without_spaces(text.substr(from + 1, comma - from - 1));
      Json value;
      if (!one.empty() && read_plainly(one, value)) values.push_back(value);
      if (!one.empty() && value.is_null()) values.push_back(one);
      from = comma;
    }
    if (knob.empty() || values.empty()) {
      problems.add(Stage::options, "what-if.form", "--what-if",
                   fmt::format("--what-if {} is not of the form knob=value,value", quote(text)),
                   "for example --what-if 'node.bandwidth x=0.5,2' or --what-if batch=512,1024");
      continue;
    }
    asked.push_back({knob, values});
  }
  problems.throw_if_any();
  return asked;
}

std::vector<Knob> knobs_of(const Json& asked, const Json& experiment, Catalog& catalog) {
  Problems problems;
  KnobReader reader(experiment, catalog, problems);
  std::vector<Knob> knobs;
  for (const Json& one : asked) {
    if (auto knob = reader.read(one.at(0).get<std::string>(), one.at(1)))
      knobs.push_back(std::move(*knob));
  }
  problems.throw_if_any();
  return knobs;
}

std::optional<Json> tenth_more(const Knob& knob) {
  const bool real = knob.in_bytes() || !is_whole(knob);
  if (!real || !knob.now.is_number() || knob.now.get<double>() <= 0) return std::nullopt;
  const double more = 1.1 * knob.now.get<double>();
  if (knob.in_bytes()) return static_cast<std::int64_t>(more);
  if (knob.declared != nullptr && knob.declared->most && more > knob.declared->most->get<double>())
    return std::nullopt;
  return more;
}

}  // namespace mw
