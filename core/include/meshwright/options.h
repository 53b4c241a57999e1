// One declaration of a table's keys feeds validation, `plugins show`, and the Lua type file.
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

// What a key may hold. `bytes` takes an integer or text such as "8MiB"; `table`, `list` and
// `function` are handed on as they are; `any` accepts every kind (the reader checks).
enum class OptionType { boolean, integer, number, text, bytes, choice, table, list, function, any };

struct Option {
  std::string name;
  OptionType type = OptionType::any;
  std::string doc;
  std::optional<Json> fallback;  // absent: the key is required, unless `optional`
  bool optional = false;         // may be left out and then has no value
  // Inclusive range: integers for integers and bytes, reals for numbers.
  std::optional<Json> least, most;
  std::vector<std::string> choices;  // of `choice`
  std::string unit;                  // "bytes", "sequences", ... for people
  // A key of the type `any` may name one of this kind (choice.h). A strategy gets such a choice as
  // its name, or as { kind = …, … } with the options that are not the usual ones.
  std::optional<Kind> names;
  // Whether a value is the default that follows from the table's other values. Such a key reads as
  // one that is left out.
  std::function<bool(const Json& values)> usual;
  // What a key of mw.train has no part in.
  bool beside_plan = false;  // the plan: one that was made with another value serves as well
  bool beside_run = false;   // the run, which does not look at it
  bool of_run = false;       // the experiment: two runs of one may differ in it
  bool may_change = false;   // what a run that goes on from a checkpoint must have alike
  bool searched = false;     // mw.search reads it too: a step depends on it, whatever its plan is
};

// A whole number as a script may have it: 8, or 8.0, as Lua's 16 / 2 is. Nothing if it is none, or
// not in [-2^63, 2^63).
std::optional<std::int64_t> whole_number(const Json& value);

class Catalog;  // registration.h

// What a script's values may refer to: its functions, files named relative to it, and what plugins
// register.
struct ScriptReach {
  std::function<Json(std::int64_t, const std::vector<Json>&)> call;
  std::vector<std::filesystem::path> roots;  // where relative paths are looked for
  Catalog* catalog = nullptr;
};

// The checked values of one table: every key with a value or a default is there, bytes as integers.
class Values {
 public:
  Values() = default;
  explicit Values(Json json, std::string path = "")
      : json_(std::move(json)), path_(std::move(path)) {}
  bool has(const std::string& key) const { return json_.contains(key); }
  const Json& at(const std::string& key) const { return json_.at(key); }
  std::int64_t integer(const std::string& key) const { return json_.at(key).get<std::int64_t>(); }
  // An integer whose range is within 32 bits, as it is where none was declared. Throws Error
  // (options) for one that is not.
  int int32(const std::string& key) const;
  double number(const std::string& key) const { return json_.at(key).get<double>(); }
  bool flag(const std::string& key) const { return json_.at(key).get<bool>(); }
  std::string text(const std::string& key) const { return json_.at(key).get<std::string>(); }
  const Json& json() const { return json_; }

  bool is_function(const std::string& key) const;
  // Calls the script's function; its errors are thrown with the script's file and line. On the
  // thread that runs the script, so from no rank.
  std::function<Json(const std::vector<Json>&)> function(const std::string& key) const;
  // Where the script has the key: "plan[2].ways". For tables within, whose options are read by who
  // has them: options.read(values.at("adamw"), values.path("adamw"), problems).
  std::string path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  // The table under a key: its values unchecked, its functions callable.
  Values table(const std::string& key) const;
  // The file that a script means by `path`; `path` itself if there is none.
  std::string find_file(const std::string& path) const;
  // What is registered, of any kind: a plugin may take things of others. There is none where no
  // script is read; it throws then.
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
  // Each adds a key and returns *this, so that a declaration reads as a list. A key is required
  // until one of the modifiers below, which act on the key added last, says otherwise. No number is
  // without a range: an integer's is that of 32 bits, sizes go from 0 to 1 EiB, numbers are finite.
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
  // These set the flags of the same names; what is of the run may change as well.
  Options& beside_plan();
  Options& beside_run();
  Options& of_run();
  Options& may_change_on_resume();
  Options& searched();
  // The key that a bare value stands for: with `positional("ways")`, 4 reads as { ways = 4 }.
  Options& positional(std::string name);

  const std::vector<Option>& list() const { return options_; }
  const std::string& positional() const { return positional_; }
  const Option* find(const std::string& name) const;  // null: there is none of the name

  // Checks `given` (an object, or a bare value if there is a positional key; null reads as {}).
  // Every unknown key (with the nearest known one), missing key, wrong type, value out of range
  // and wrong choice becomes a Problem of stage `options` whose message starts with the key path,
  // e.g. "plan[2].ways". Returns what could be read.
  Values read(const Json& given, const std::string& path, Problems& problems) const;

 private:
  std::vector<Option> options_;
  std::string positional_;
};

// "8MiB", "1.5 GB", "512" -> bytes; nothing if it is no size.
// KiB/MiB/GiB/TiB are 1024-based, KB/MB/GB/TB 1000-based.
std::optional<std::int64_t> parse_bytes(const std::string& text);
// 1536 -> "1.5 KiB".
std::string format_bytes(double bytes);
// The candidate with the least edit distance to `word`; empty if none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace mw
