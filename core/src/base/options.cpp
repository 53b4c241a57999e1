// Checks a script's table against declared options: types, ranges, choices and defaults, all
// problems at once, each with the nearest valid value.
#include "meshwright/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "meshwright/choice.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/registration.h"

namespace mw {
namespace {

std::string noun(const Option& option) {
  if (option.type == OptionType::choice) return "one of " + join_quoted(option.choices);
  static constexpr std::array nouns{"true or false",
                                    "an integer",
                                    "a number",
                                    "text",
                                    "a size in bytes such as 1048576 or \"8MiB\"",
                                    "a choice",
                                    "a table",
                                    "a list",
                                    "a function",
                                    "a value"};
  return nouns.at(static_cast<std::size_t>(option.type));
}

constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

std::string limit_text(const Option& option, const Json& limit) {
  if (option.type == OptionType::bytes) return format_bytes(limit.get<double>());
  return describe(limit);
}

// Gives a number whose declaration states no range the widest one that its type can have.
void give_range(Option& option) {
  if (option.type == OptionType::integer) {
    option.least = std::numeric_limits<std::int32_t>::min();
    option.most = std::numeric_limits<std::int32_t>::max();
  } else if (option.type == OptionType::bytes) {
    option.least = 0;
    option.most = most_bytes;
  }
}

// Compares two integers as integers, since beyond 2^53 a double no longer tells them apart.
bool less(const Json& a, const Json& b) {
  if (a.is_number_integer() && b.is_number_integer())
    return a.get<std::int64_t>() < b.get<std::int64_t>();
  return a.get<double>() < b.get<double>();
}

// A whole number is an integer however it was computed: 8 / 2 is 4.0 in Lua.
Json with_integers(Json given) {
  if (const auto whole = whole_number(given); whole && given.is_number_float()) return *whole;
  if (given.is_structured() && !is_function(given)) {
    for (auto& [key, item] : given.items()) item = with_integers(std::move(item));
  }
  return given;
}

// Reads one key; adds the problem and returns nothing if the value will not do.
class KeyReader {
 public:
  KeyReader(const Option& option, std::string path, Problems& problems)
      : option_(option), path_(std::move(path)), problems_(problems) {}

  std::optional<Json> read(const Json& given) const {
    switch (option_.type) {
      case OptionType::boolean:
        return given.is_boolean() ? given : wrong(given);
      case OptionType::integer:
        return read_integer(given);
      case OptionType::number:
        return read_number(given);
      case OptionType::text:
        return given.is_string() ? given : wrong(given);
      case OptionType::bytes:
        return read_bytes(given);
      case OptionType::choice:
        return read_choice(given);
      case OptionType::table:
        if (given.is_array() && given.empty()) return Json::object();
        return given.is_object() && !is_function(given) ? with_integers(given) : wrong(given);
      case OptionType::list:
        if (given.is_object() && given.empty()) return Json::array();
        return given.is_array() ? with_integers(given) : wrong(given);
      case OptionType::function:
        return is_function(given) ? given : wrong(given);
      case OptionType::any:
        break;
    }
    return with_integers(given);
  }

 private:
  std::optional<Json> wrong(const Json& given, std::string hint = "") const {
    if (hint.empty() && option_.type != OptionType::choice) hint = option_.doc;
    problems_.add(Stage::options,
                  option_.type == OptionType::choice ? "option.choice" : "option.type", path_,
                  fmt::format("{} must be {}; got {}", path_, noun(option_), describe(given)),
                  std::move(hint));
    return std::nullopt;
  }

  std::optional<Json> read_integer(const Json& given) const {
    if (!given.is_number()) return wrong(given, hint_for_number_as_text(given));
    if (const auto value = whole_number(given)) return in_range(*value, describe(given));
    const auto value = given.get<double>();
    // A whole number beyond 64 bits exceeds any limit, even if it equals the limit as a double.
    if (std::isfinite(value) && value == std::floor(value))
      return out_of_range(value < 0, describe(given));
    return wrong(given, std::isfinite(value)
                            ? fmt::format("nearest: {}", nearest_in_range(std::round(value)))
                            : "");
  }

  std::optional<Json> read_number(const Json& given) const {
    if (!given.is_number()) return wrong(given, hint_for_number_as_text(given));
    const auto value = given.get<double>();
    if (!std::isfinite(value)) return wrong(given);
    return in_range(value, describe(given));
  }

  std::optional<Json> read_bytes(const Json& given) const {
    if (given.is_string()) {
      const std::string text = given.get<std::string>();
      const auto bytes = parse_bytes(text);
      if (!bytes)
        return wrong(given, "units: B, KB, MB, GB, TB, PB, EB, KiB, MiB, GiB, TiB, PiB, EiB");
      return in_range(*bytes, quote(text));
    }
    return read_integer(given);
  }

  std::optional<Json> read_choice(const Json& given) const {
    if (!given.is_string()) return wrong(given);
    const std::string text = given.get<std::string>();
    if (std::find(option_.choices.begin(), option_.choices.end(), text) != option_.choices.end()) {
      return given;
    }
    return wrong(given, did_you_mean(text, option_.choices));
  }

  std::string hint_for_number_as_text(const Json& given) const {
    if (!given.is_string()) return "";
    const std::string text = given.get<std::string>();
    if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string::npos) return "";
    return "write the number without quotes";
  }

  std::string nearest_in_range(double value) const {
    const auto& least = option_.least;
    const auto& most = option_.most;
    if (least && value < least->get<double>()) return limit_text(option_, *least);
    if (most && value > most->get<double>()) return limit_text(option_, *most);
    return format_number(value);
  }

  // Returns the value if it is in range; else adds a problem.
  std::optional<Json> in_range(const Json& value, const std::string& shown) const {
    const auto& least = option_.least;
    const auto& most = option_.most;
    const bool below = least && less(value, *least);
    if (!below && (!most || !less(*most, value))) return value;
    return out_of_range(below, shown);
  }

  std::nullopt_t out_of_range(bool below, const std::string& shown) const {
    const auto& least = option_.least;
    const auto& most = option_.most;
    // If the option declares only one limit, the message for this limit does not name the other
    // one.
    Option undeclared;
    undeclared.type = option_.type;
    give_range(undeclared);
    std::string want;
    if (least && most && (below ? most != undeclared.most : least != undeclared.least)) {
      want =
          fmt::format("between {} and {}", limit_text(option_, *least), limit_text(option_, *most));
    } else if (below) {
      want = "at least " + limit_text(option_, *least);
    } else {
      want = "at most " + limit_text(option_, *most);
    }
    problems_.add(Stage::options, "option.range", path_,
                  fmt::format("{} must be {}; got {}", path_, want, shown),
                  "nearest: " + limit_text(option_, below ? *least : *most));
    return std::nullopt;
  }

  const Option& option_;
  std::string path_;
  Problems& problems_;
};

}  // namespace

#define MESHWRIGHT_ADD(kind)                                  \
  Options& Options::kind(std::string name, std::string doc) { \
    Option option;                                            \
    option.name = std::move(name);                            \
    option.type = OptionType::kind;                           \
    option.doc = std::move(doc);                              \
    give_range(option);                                       \
    options_.push_back(std::move(option));                    \
    return *this;                                             \
  }
MESHWRIGHT_ADD(boolean)
MESHWRIGHT_ADD(integer)
MESHWRIGHT_ADD(number)
MESHWRIGHT_ADD(text)
MESHWRIGHT_ADD(bytes)
MESHWRIGHT_ADD(table)
MESHWRIGHT_ADD(list)
MESHWRIGHT_ADD(function)
MESHWRIGHT_ADD(any)
#undef MESHWRIGHT_ADD

Options& Options::choice(std::string name, std::vector<std::string> choices, std::string doc) {
  any(std::move(name), std::move(doc));
  options_.back().type = OptionType::choice;
  options_.back().choices = std::move(choices);
  return *this;
}

// A modifier without a key before it is the declaring program's bug, not the user's.
static Option& last_of(std::vector<Option>& options) {
  if (options.empty()) throw std::logic_error("an option's modifier needs an option before it");
  return options.back();
}

Options& Options::fallback(Json value) {
  last_of(options_).fallback = std::move(value);
  return *this;
}

Options& Options::optional() {
  last_of(options_).optional = true;
  return *this;
}

Options& Options::range(Json least, Json most) {
  at_least(std::move(least));
  last_of(options_).most = std::move(most);
  return *this;
}

Options& Options::at_least(Json least) {
  last_of(options_).least = std::move(least);
  return *this;
}

Options& Options::unit(std::string unit) {
  last_of(options_).unit = std::move(unit);
  return *this;
}

Options& Options::names(Kind kind) {
  last_of(options_).names = kind;
  return *this;
}

Options& Options::beside_plan() {
  last_of(options_).beside_plan = true;
  return *this;
}

Options& Options::beside_run() {
  last_of(options_).beside_run = true;
  return may_change_on_resume();
}

Options& Options::of_run() {
  last_of(options_).of_run = true;
  return may_change_on_resume();
}

Options& Options::may_change_on_resume() {
  last_of(options_).may_change = true;
  return *this;
}

const Option* Options::find(const std::string& name) const {
  const auto found = std::find_if(options_.begin(), options_.end(),
                                  [&](const Option& option) { return option.name == name; });
  return found == options_.end() ? nullptr : &*found;
}

Options& Options::usual(std::function<bool(const Json& values)> is_usual) {
  last_of(options_).usual = std::move(is_usual);
  return *this;
}

Options& Options::searched() {
  last_of(options_).searched = true;
  return *this;
}

Options& Options::positional(std::string name) {
  positional_ = std::move(name);
  return *this;
}

std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX})
    return std::nullopt;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  if (number != std::floor(number) || !(number >= -0x1p63 && number < 0x1p63)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

int Values::int32(const std::string& key) const {
  const std::int64_t value = integer(key);
  if (value == static_cast<std::int32_t>(value)) return static_cast<std::int32_t>(value);
  throw Error(Stage::options, "option.range", key,
              fmt::format("{} = {} is more than 32 bits hold", key, value),
              fmt::format("nearest: {}", value < 0 ? INT32_MIN : INT32_MAX));
}

bool Values::is_function(const std::string& key) const {
  return has(key) && mw::is_function(at(key));
}

std::function<Json(const std::vector<Json>&)> Values::function(const std::string& key) const {
  const auto number = at(key).at(function_key).get<std::int64_t>();
  if (!reach_ || !reach_->call)
    throw std::logic_error("the function \"" + key + "\" has no script");
  return [reach = reach_, number](const std::vector<Json>& arguments) {
    return reach->call(number, arguments);
  };
}

Values Values::table(const std::string& key) const {
  Values inner(at(key), path(key));
  inner.set_reach(reach_);
  return inner;
}

Catalog& Values::catalog() const {
  if (!reach_ || reach_->catalog == nullptr) throw std::logic_error("values without a catalog");
  return *reach_->catalog;
}

std::string Values::find_file(const std::string& path) const {
  return reach_ ? mw::find_file(path, reach_->roots).string() : path;
}

NamedChoice needed_choice(const Json& given, const std::string& key, const char* what,
                          const char* hint) {
  if (auto choice = named_choice(given)) return *std::move(choice);
  throw Error(Stage::options, "option.value", key,
              fmt::format("{} is no {}", lua_text(given), what), hint);
}

std::optional<NamedChoice> named_choice(const Json& given) {
  if (given.is_string()) return NamedChoice{given.get<std::string>()};
  NamedChoice choice;
  Json unnamed = given.is_array() ? given : Json::array();
  if (given.is_object()) {
    choice.options = given;
    if (given.contains("kind")) {
      if (!given.at("kind").is_string()) return std::nullopt;
      choice.name = given.at("kind").get<std::string>();
      choice.options.erase("kind");
      return choice;
    }
    if (given.contains(unnamed_key)) unnamed = given.at(unnamed_key);
    if (!unnamed.is_array()) unnamed = Json::array({unnamed});
    choice.options.erase(unnamed_key);
  }
  if (unnamed.empty() || !unnamed.at(0).is_string()) return std::nullopt;
  choice.name = unnamed.at(0).get<std::string>();
  unnamed.erase(0);
  if (!unnamed.empty())
    choice.options[unnamed_key] = unnamed.size() == 1 ? Json(unnamed.at(0)) : unnamed;
  return choice;
}

Values Options::read(const Json& given, const std::string& path, Problems& problems) const {
  const auto path_of = [&](const std::string& key) {
    return path.empty() ? key : path + "." + key;
  };
  const std::string here = path.empty() ? "this table" : path;
  std::vector<std::string> known;
  for (const Option& option : options_) known.push_back(option.name);

  // Reads a value without a name, inside of a table or by itself: op { 2 } and op(2).
  const auto bare = [&](const Json& value) {
    const auto is_positional = [&](const Option& option) { return option.name == positional_; };
    const auto option = std::find_if(options_.begin(), options_.end(), is_positional);
    const bool list = option != options_.end() && option->type == OptionType::list;
    const bool alone = value.is_array() && value.size() == 1;
    if (alone && (!list || value.at(0).is_array())) return Json(value.at(0));
    return list && !value.is_structured() ? Json::array({value}) : value;
  };
  Json table = Json::object();
  const auto take_positional = [&](const Json& given_value) {
    const Json value = positional_.empty() ? given_value : bare(given_value);
    if (positional_.empty()) {
      problems.add(
          Stage::options, "option.unnamed", path,
          fmt::format("{} must be a table of named options; got {}", here, describe(value)),
          known.empty() ? "it takes no options" : "options: " + join(known));
    } else if (table.contains(positional_)) {
      problems.add(Stage::options, "option.twice", path_of(positional_),
                   fmt::format("{} is given twice: as {} and as {} without a name",
                               path_of(positional_), describe(table[positional_]), describe(value)),
                   "keep one of the two");
    } else {
      table[positional_] = value;
    }
  };
  if (given.is_object() && !is_function(given)) {
    for (const auto& [key, value] : given.items()) {
      if (!key.starts_with('$') && !value.is_null()) table[key] = value;
    }
    if (given.contains(unnamed_key)) take_positional(given.at(unnamed_key));
  } else if (!given.is_null() && !(given.is_array() && given.empty())) {
    take_positional(given);
  }

  for (const auto& [key, value] : table.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = did_you_mean(key, known);
    const std::string all = known.empty() ? "no options are known here" : "options: " + join(known);
    problems.add(Stage::options, "option.unknown", path_of(key),
                 fmt::format("{} is not a known option", path_of(key)),
                 near.empty() ? all : near + " " + all);
  }

  Json values = Json::object();
  for (const Option& option : options_) {
    const auto found = table.find(option.name);
    if (found != table.end()) {
      if (auto value = KeyReader(option, path_of(option.name), problems).read(*found)) {
        values[option.name] = std::move(*value);
        continue;
      }
    }
    // A refused value is replaced by its default, so that other values can still be checked.
    if (option.fallback) {
      Json fallback = *option.fallback;
      if (option.type == OptionType::bytes && fallback.is_string()) {
        fallback = parse_bytes(fallback.get<std::string>()).value();
      }
      values[option.name] = std::move(fallback);
    } else if (!option.optional && found == table.end()) {
      problems.add(Stage::options, "option.missing", path_of(option.name),
                   fmt::format("{} is missing", path_of(option.name)),
                   fmt::format("{}{}{}", noun(option), option.doc.empty() ? "" : ": ", option.doc));
    }
  }
  for (const Option& option : options_)
    if (option.usual && values.contains(option.name) && option.usual(values))
      values.erase(option.name);
  return Values(std::move(values), path);
}

namespace {

struct Called {
  const char *name, *noun;
};

// Names of kinds, by the kind's number; 0 is no kind.
constexpr std::array called{Called{"unknown", "unknown"},
                            Called{"strategy", "strategy"},
                            Called{"scheduler", "scheduler"},
                            Called{"communicator", "communicator"},
                            Called{"model", "model"},
                            Called{"op", "op"},
                            Called{"data", "data source"},
                            Called{"optimizer", "optimizer"},
                            Called{"recompute", "recompute policy"},
                            Called{"microbatch", "microbatch policy"},
                            Called{"hook", "reduction hook"},
                            Called{"cluster", "cluster"},
                            Called{"lr_schedule", "learning-rate schedule"},
                            Called{"weave", "weave"},
                            Called{"observer", "observer"},
                            Called{"device", "device"},
                            Called{"packing", "packing policy"}};
static_assert(called.size() == static_cast<std::size_t>(last_kind) + 1);

}  // namespace

const char* name_of(Kind kind) {
  return called.at(static_cast<std::size_t>(kind)).name;
}

const char* noun_of(Kind kind) {
  return called.at(static_cast<std::size_t>(kind)).noun;
}

std::string names_of(const Catalog& catalog, Kind kind, bool quoted) {
  std::vector<std::string> names;
  for (const Registration* registration : catalog.list(kind)) names.push_back(registration->name);
  return quoted ? join_quoted(names) : join(names);
}

}  // namespace mw
