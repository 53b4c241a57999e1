// Reads the axes of a grid, and reports all that is wrong with them before anything is planned.
#include "app/sweep/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "app/sweep/grid.h"
#include "app/sweep/label.h"
#include "meshwright/engine/text.h"
#include "script/read_experiment.h"

namespace mw {
namespace {

std::string first_step(const std::string& key) {
  return key.substr(0, key.find_first_of(".["));
}

std::vector<std::string> experiment_keys() {
  std::vector<std::string> keys;
  for (const Option& option : experiment_options().list()) keys.push_back(option.name);
  return keys;
}

bool is_made_table(const Json& value) {
  return value.is_object() && (value.contains("plugin") || value.contains("kind"));
}

bool is_bundle(const Json& value) {
  return value.is_object() && !value.empty() && !is_made_table(value) && !is_function(value);
}

// Keys that a sweep sets itself in each cell.
constexpr const char* not_here[] = {"log", "name", "overwrite"};

void check_key(const std::string& key, const std::string& path, Problems& problems) {
  if (!is_experiment_key(key)) {
    problems.add(Stage::options, "option.unknown", path,
                 fmt::format("{}: an experiment has no key {}", path, quote(first_step(key))),
                 did_you_mean(first_step(key), experiment_keys()));
  } else if (std::find(std::begin(not_here), std::end(not_here), key) != std::end(not_here)) {
    problems.add(Stage::options, "sweep.own", path,
                 fmt::format("{}: each cell sets this key itself", path),
                 "leave it out: cells are named after their values, and their files lie in "
                 "runs/NAME");
  }
}

class AxisReader {
 public:
  AxisReader(std::string key, std::string path, Problems& problems)
      : key_(std::move(key)), path_(std::move(path)), problems_(problems) {}

  // Reads a list of values or a table of named ones.
  std::vector<AxisValue> read(const Json& given) {
    std::vector<AxisValue> values;
    if (!given.is_structured() || is_made_table(given)) {
      refuse("", fmt::format("{} is one value, {}", path_, value_label(given)),
             "an axis is a list of values, in braces: { … }");
      return values;
    }
    if (given.empty()) {
      refuse("", fmt::format("{} has no values", path_), "give it some, or leave the axis out");
      return values;
    }
    if (given.is_array()) {
      for (std::size_t i = 0; i < given.size(); ++i)
        values.push_back(read_value(given[i], fmt::format("{}[{}]", path_, i + 1)));
      name(values);
    } else if (given.contains(unnamed_key)) {
      refuse("", fmt::format("only some of the values of {} have names", path_),
             "name all of them or none");
    } else {
      for (const auto& [label, value] : given.items()) {
        if (label.starts_with('$')) continue;
        values.push_back(read_value(value, path_ + "." + label));
        values.back().label = label;
        values.back().named = true;
      }
    }
    find_twins(values);
    return values;
  }

 private:
  void refuse(const std::string& at, const std::string& message, const std::string& hint) {
    problems_.add(Stage::options, "sweep.axis", path_ + at, message, hint);
  }

  AxisValue read_value(const Json& value, const std::string& path) {
    AxisValue read;
    read.sets = Json::object();
    if (is_experiment_key(key_)) {
      read.value = value;
      read.sets[key_] = value;
      return read;
    }
    if (!is_bundle(value)) {
      if (!unknown_said_) {
        problems_.add(
            Stage::options, "option.unknown", path_,
            fmt::format("{}: an experiment has no key {}", path_, quote(first_step(key_))),
            unknown_hint());
      }
      unknown_said_ = true;
      return read;
    }
    for (const auto& [key, item] : value.items()) {
      if (key == "name" && item.is_string()) {
        read.label = item.get<std::string>();
        read.named = true;
      } else if (key == "over") {
        read.over = item;
        check_grid(item, problems_, path + ".over");
      } else if (!key.starts_with('$')) {
        check_key(key, path + "." + key, problems_);
        read.sets[key] = item;
      }
    }
    return read;
  }

  std::string unknown_hint() const {
    const std::string near = did_you_mean(first_step(key_), experiment_keys());
    return near.empty() ? "an axis of another name has tables of several keys: { plan = …, "
                          "microbatch = … }"
                        : near;
  }

  // Labels the values that the script did not name.
  void name(std::vector<AxisValue>& values) const {
    std::vector<Json> raw;
    for (const AxisValue& value : values)
      raw.push_back(value.named               ? Json(value.label)
                    : is_experiment_key(key_) ? value.value
                                              : value.sets);
    const auto labels = value_labels(raw);
    for (std::size_t i = 0; i < values.size(); ++i) values[i].label = labels[i];
  }

  void find_twins(const std::vector<AxisValue>& values) {
    std::map<std::string, std::size_t> seen;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::string text =
          json_text(without_hidden(values[i].sets)) + json_text(without_hidden(values[i].over));
      const auto [twin, fresh] = seen.emplace(text, i);
      if (fresh || values[i].sets.empty()) continue;
      const std::string at = fmt::format("[{}]", i + 1);
      refuse(at,
             fmt::format("{}{} is the same as {}[{}]: {}", path_, at, path_, twin->second + 1,
                         values[i].label),
             "leave it out; repeats = 2 runs each cell twice");
    }
  }

  std::string key_, path_;
  Problems& problems_;
  bool unknown_said_ = false;
};

// Checks a table { key = values } of a grid. `path`: the table's place, as problems name it.
void check_table(const Json& table, const std::string& path, Problems& problems) {
  for (const auto& [key, values] : table.items()) {
    if (key.starts_with('$')) continue;
    const std::string at = path + "." + key;
    if (is_experiment_key(key)) check_key(key, at, problems);
    if (!is_function(values)) AxisReader(key, at, problems).read(values);
  }
}

}  // namespace

bool is_experiment_key(const std::string& key) {
  const auto keys = experiment_keys();
  return std::find(keys.begin(), keys.end(), first_step(key)) != keys.end();
}

std::vector<AxisValue> read_axis(const std::string& key, const Json& given, const std::string& path,
                                 Problems& problems) {
  return AxisReader(key, path, problems).read(given);
}

std::string axis_that_sets(const Json& over, const std::string& key) {
  const auto meets = [&](const std::string& other) {
    return lies_in(key, other) || lies_in(other, key);
  };
  for (const Json& table : over.is_array() ? over : Json::array({over})) {
    if (!table.is_object()) continue;
    for (const auto& [name, values] : table.items()) {
      if (name.starts_with('$')) continue;
      if (is_experiment_key(name) && meets(name)) return name;
      if (is_experiment_key(name) || !values.is_structured() || is_function(values)) continue;
      for (const auto& [label, value] : values.items()) {
        if (!is_bundle(value)) continue;
        for (const auto& [own, item] : value.items()) {
          if (meets(own)) return name;
          if (own != "over") continue;
          if (std::string inner = axis_that_sets(item, key); !inner.empty()) return inner;
        }
      }
    }
  }
  return "";
}

void check_grid(const Json& over, Problems& problems, const std::string& path) {
  const bool list = over.is_array() && !over.empty();
  if (!list && (!over.is_object() || over.empty() || is_function(over) || is_made_table(over) ||
                over.contains(unnamed_key))) {
    problems.add(Stage::options, "sweep.axis", path,
                 over.is_structured() && over.empty()
                     ? path + ": there is no axis"
                     : fmt::format("{}: got {}", path, describe(over)),
                 "for example over = { recompute = { \"none\", \"full\" }, seed = { 1, 2, 3 } }");
    return;
  }
  if (!list) return check_table(over, path, problems);
  for (std::size_t i = 0; i < over.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i + 1);
    if (is_bundle(over[i])) {
      check_table(over[i], at, problems);
    } else {
      problems.add(Stage::options, "sweep.axis", at,
                   fmt::format("{}: got {}", at, describe(over[i])),
                   "each entry of a list is a grid: { key = { values }, … }");
    }
  }
}

void check_base(const Json& base, Problems& problems) {
  for (const auto& [key, value] : base.items()) {
    if (!key.starts_with('$')) check_key(key, "base." + key, problems);
  }
}

}  // namespace mw
