// Declares the keys of a script's table. Validation, `plugins show` and the Lua type file all read
// the same declaration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

enum class Kind : std::uint32_t;  // registration.h

// The type of an option's value. `bytes` takes an integer or text such as "8MiB"; `table`, `list`
// and `function` are passed on unchecked; `any` accepts every value, which its reader checks.
enum class OptionType { boolean, integer, number, text, bytes, choice, table, list, function, any };

struct Option {
  std::string name;
  OptionType type = OptionType::any;
  std::string doc;
  std::optional<Json> fallback;  // absent: the key is required, unless `optional`
  bool optional = false;         // may be left out, and then has no value
  // Inclusive range: integers for integers and bytes, reals for numbers.
  std::optional<Json> least, most;
  std::vector<std::string> choices;  // the allowed values, for the type `choice`
  std::string unit;                  // "bytes", "sequences", ... for people
  // For the type `any`: the kind of registrations that a value may name (choice.h). A strategy gets
  // such a value as the name, or as { kind = …, … } with the options that are not the defaults.
  std::optional<Kind> names;
  // Whether the key's value is the default that follows from the other values of the table. The key
  // then reads as if it were left out.
  std::function<bool(const Json& values)> usual;
  // Properties of keys of mw.train.
  bool beside_plan = false;  // the plan does not depend on the key
  bool beside_run = false;   // the run does not read the key
  bool of_run = false;       // not part of the experiment: two runs of one may differ in the key
  bool may_change = false;   // may change when a run resumes from a checkpoint
  bool searched = false;     // mw.search reads the key too, as a step depends on it under any plan
};

// Reads a whole number: 8, or 8.0, which is how Lua computes 16 / 2. Returns nothing for any other
// value, or outside of [-2^63, 2^63).
std::optional<std::int64_t> whole_number(const Json& value);

class Catalog;  // registration.h

// Gives access to what the values of a script refer to: its functions, files with relative paths,
// and registrations of plugins.
struct ScriptReach {
  std::function<Json(std::int64_t, const std::vector<Json>&)> call;  // calls a function by number
  std::vector<std::filesystem::path> roots;  // folders in which relative paths are looked up
  Catalog* catalog = nullptr;
};

// The checked values of one table. It has every key with a value or a default; values of the type
// `bytes` are integers.
class Values {
 public:
  Values() = default;
  explicit Values(Json json, std::string path = "")
      : json_(std::move(json)), path_(std::move(path)) {}
  bool has(const std::string& key) const { return json_.contains(key); }
  const Json& at(const std::string& key) const { return json_.at(key); }
  std::int64_t integer(const std::string& key) const { return json_.at(key).get<std::int64_t>(); }
  // The value of an integer as an int. Throws Error (options) if it does not fit into 32 bits,
  // which is possible only if a larger range was declared.
  int int32(const std::string& key) const;
  double number(const std::string& key) const { return json_.at(key).get<double>(); }
  bool flag(const std::string& key) const { return json_.at(key).get<bool>(); }
  std::string text(const std::string& key) const { return json_.at(key).get<std::string>(); }
  const Json& json() const { return json_; }

  bool is_function(const std::string& key) const;
  // Returns the script's function for a call from C++. Its errors are thrown with the script's file
  // and line. It must be called on the thread that runs the script, so not by ranks.
  std::function<Json(const std::vector<Json>&)> function(const std::string& key) const;
  // The full path of a key in the script: "plan[2].ways". Needed to read an inner table, as in
  // options.read(values.at("adamw"), values.path("adamw"), problems).
  std::string path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  // The table under a key, with unchecked values and callable functions.
  Values table(const std::string& key) const;
  // Finds the file that a script means by `path`; returns `path` itself if there is none.
  std::string find_file(const std::string& path) const;
  // All registrations, so that a plugin can use those of others. Throws if no script is being read.
  Catalog& catalog() const;
  void set_reach(std::shared_ptr<const ScriptReach> reach) { reach_ = std::move(reach); }
  const std::shared_ptr<const ScriptReach>& reach() const { return reach_; }

 private:
  Json json_ = Json::object();
  std::string path_;
  std::shared_ptr<const ScriptReach> reach_;
};

class Options {
 public:
  // Each of these adds a key and returns *this, so that a declaration reads as a list. A key is
  // required, unless a modifier below changes that; modifiers act on the key added last. Default
  // ranges: 32 bits for integers, 0 to 1 EiB for bytes, finite for numbers.
  Options& boolean(std::string name, std::string doc);
  Options& integer(std::string name, std::string doc);
  Options& number(std::string name, std::string doc);
  Options& text(std::string name, std::string doc);
  Options& bytes(std::string name, std::string doc);
  Options& choice(std::string name, std::vector<std::string> choices, std::string doc);
  Options& table(std::string name, std::string doc);
  Options& list(std::string name, std::string doc);
  Options& function(std::string name, std::string doc);
  Options& any(std::string name, std::string doc);

  Options& fallback(Json value);          // the default
  Options& optional();                    // may be absent
  Options& range(Json least, Json most);  // inclusive
  Options& at_least(Json least);
  Options& unit(std::string unit);
  Options& names(Kind kind);
  Options& usual(std::function<bool(const Json& values)> is_usual);
  // Set the flags of Option with these names; beside_run() and of_run() also set may_change.
  Options& beside_plan();
  Options& beside_run();
  Options& of_run();
  Options& may_change_on_resume();
  Options& searched();
  // The key that a bare value stands for: with `positional("ways")`, 4 reads as { ways = 4 }.
  Options& positional(std::string name);

  const std::vector<Option>& list() const { return options_; }
  const std::string& positional() const { return positional_; }
  const Option* find(const std::string& name) const;  // null: there is no key of that name

  // Checks `given` (an object, or a bare value if there is a positional key; null reads as {}).
  // Every unknown key (with the nearest known one), missing key, wrong type, value out of range
  // and wrong choice becomes a Problem of stage `options` whose message starts with the key path,
  // e.g. "plan[2].ways". Returns what could be read.
  Values read(const Json& given, const std::string& path, Problems& problems) const;

 private:
  std::vector<Option> options_;
  std::string positional_;
};

// Parses a size: "8MiB", "1.5 GB", "512" (bytes). Returns nothing if the text is no size.
// KiB/MiB/GiB/TiB are 1024-based, KB/MB/GB/TB 1000-based.
std::optional<std::int64_t> parse_bytes(const std::string& text);
// Writes a size: 1536 is "1.5 KiB".
std::string format_bytes(double bytes);
// The candidate with the least edit distance to `word`; empty if no candidate is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace mw
