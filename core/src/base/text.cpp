// Text for people: joined lists, quotes, plurals, numbers of a few digits, aligned tables, and
// names made fit to print.
#include "meshwright/engine/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>

#include "meshwright/engine/mix.h"
#include "meshwright/engine/synonyms.h"
#include "meshwright/options.h"

namespace mw {

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string join_quoted(const std::vector<std::string>& parts, std::string_view separator) {
  std::vector<std::string> quoted;
  for (const std::string& part : parts) quoted.push_back(quote(part));
  return join(quoted, separator);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

namespace {

// The number of bytes of the UTF-8 character with which `text` begins; 0 if it begins with no valid
// character. Overlong forms, surrogates and code points above U+10FFFF are invalid.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = at(0);
  if (first < 0x80) return 1;
  const std::size_t bytes = first >= 0xf5   ? 0
                            : first >= 0xf0 ? 4
                            : first >= 0xe0 ? 3
                            : first >= 0xc2 ? 2
                                            : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = at(1);
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90);
  return wrong ? 0 : bytes;
}

// Whether a character is a control character beyond ASCII that some terminals obey like ESC: U+0080
// to U+009F, and those that change the direction of text, U+202A to U+202E and U+2066 to U+2069.
bool controls_terminal(std::string_view character) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 2) return at(0) == 0xc2 && at(1) < 0xa0;
  if (character.size() != 3 || at(0) != 0xe2) return false;
  return (at(1) == 0x80 && at(2) >= 0xaa && at(2) <= 0xae) ||
         (at(1) == 0x81 && at(2) >= 0xa6 && at(2) <= 0xa9);
}

std::string without_controls(std::string_view text, bool lines) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool layout = first == '\n' || first == '\t';
    if (layout && !lines) {
      out += first == '\n' ? "\\n" : "\\t";
    } else if (bytes == 0 || (first < 0x20 && !layout) || first == 0x7f) {
      out += fmt::format("\\x{:02x}", first);
    } else if (controls_terminal(text.substr(0, bytes))) {
      for (const char c : text.substr(0, bytes))
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

}  // namespace

std::string readable(std::string_view text) {
  return without_controls(text, /*lines=*/true);
}

std::string readable_line(std::string_view text) {
  return without_controls(text, /*lines=*/false);
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  if (near.empty()) return "";
  const Synonym* other = synonym_of(word, candidates);
  const std::string text = other == nullptr ? "" : other->text;
  if (text.empty()) return fmt::format("did you mean {}?", quote(near));
  return fmt::format("did you mean {}? {} is {}", quote(near), word, text);
}

std::string nearest_or_all(const std::string& word, const std::vector<std::string>& candidates) {
  if (std::string near = did_you_mean(word, candidates); !near.empty()) return near;
  constexpr std::size_t most_shown = 12;
  const std::size_t shown = std::min(candidates.size(), most_shown);
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(shown);
  const std::string more =
      shown == candidates.size() ? "" : fmt::format(", and {} more", candidates.size() - shown);
  return "there are: " + join({candidates.begin(), end}) + more;
}

std::string now_text() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string format_number(double value) {
  return fmt::format("{}", value);
}

std::string plural(std::int64_t count, std::string_view noun) {
  const char* ending = count == 1 ? "" : noun.ends_with("ch") || noun.ends_with("ss") ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, ending);
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out, line;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!line.empty() && display_width(line) + 1 + display_width(word) > width) {
      out += line + '\n' + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
  }
  return out + line;
}

TextTable::TextTable(std::vector<std::string> header, std::vector<std::size_t> right)
    : header_(std::move(header)), right_(std::move(right)) {
  for (std::string& cell : header_) cell = readable_line(cell);
}

void TextTable::add(std::vector<std::string> row) {
  row.resize(std::max(row.size(), header_.size()));
  for (std::string& cell : row) cell = readable_line(cell);
  rows_.push_back(std::move(row));
}

std::string TextTable::text(std::string_view indent) const {
  std::vector<std::size_t> widths;
  const auto measure = [&](const std::vector<std::string>& row) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  };
  measure(header_);
  for (const auto& row : rows_) measure(row);

  std::string out;
  const auto print = [&](const std::vector<std::string>& row) {
    std::string line(indent);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - display_width(row[i]), ' ');
      const bool right = std::find(right_.begin(), right_.end(), i) != right_.end();
      line += right ? pad + row[i] : row[i] + pad;
      if (i + 1 < row.size()) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  const bool titled =
      std::any_of(header_.begin(), header_.end(), [](const auto& cell) { return !cell.empty(); });
  if (titled) {
    print(header_);
    std::vector<std::string> rule;
    for (const std::size_t width : widths) rule.emplace_back(width, '-');
    print(rule);
  }
  for (const auto& row : rows_) print(row);
  return out;
}

std::string json_text(const Json& value, int indent) {
  std::string text = value.dump(indent, ' ', false, Json::error_handler_t::replace);
  // JSON does not escape DEL, the control characters U+0080 to U+009F, and those that change the
  // direction of text (U+202A to U+202E, U+2066 to U+2069), but terminals obey them.
  std::string out;
  std::size_t kept = 0;
  const auto byte = [&text](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    std::size_t length = 1;
    if (byte(i) == 0x7f) {
      code = 0x7f;
    } else if (byte(i) == 0xc2 && byte(i + 1) < 0xa0) {
      code = byte(i + 1);
      length = 2;
    } else if (byte(i) == 0xe2 &&
               ((byte(i + 1) == 0x80 && byte(i + 2) >= 0xaa && byte(i + 2) <= 0xae) ||
                (byte(i + 1) == 0x81 && byte(i + 2) >= 0xa6 && byte(i + 2) <= 0xa9))) {
      code = 0x2000 + (byte(i + 1) - 0x80) * 0x40 + (byte(i + 2) - 0x80);
      length = 3;
    }
    if (code == 0) continue;
    out.append(text, kept, i - kept);
    out += fmt::format("\\u{:04x}", code);
    kept = i + length;
    i = kept - 1;
  }
  if (kept == 0) return text;
  return out.append(text, kept);
}

bool is_function(const Json& value) {
  return value.is_object() && value.contains(function_key);
}

std::string describe(const Json& value) {
  if (value.is_null()) return "nil";
  if (value.is_string()) return quote(value.get<std::string>());
  if (value.is_number_float()) return format_number(value.get<double>());
  if (value.is_array())
    return value.empty() ? "an empty table" : fmt::format("a list of {}", value.size());
  if (is_function(value)) return "a function";
  if (value.is_object() && value.value("plugin", Json()).is_string())
    return "the strategy " + entry_text(value);
  if (value.is_object()) return value.empty() ? "an empty table" : "a table";
  return json_text(value);
}

std::string lua_text(const Json& value) {
  if (is_function(value)) return "function(…) … end";
  if (value.is_null()) return "nil";
  if (!value.is_structured()) return json_text(value);
  if (value.is_object() && value.value("kind", Json()) == "weave" && value.contains("order")) {
    Json given = value;
    given.erase("kind");
    return "mw.weave " + lua_text(given);
  }
  std::string inside;
  const auto add = [&](const std::string& entry) {
    inside += (inside.empty() ? " " : ", ") + entry;
  };
  const Json own = value.is_array() ? value : value.value(unnamed_key, Json::array());
  for (const Json& one : own.is_array() ? own : Json::array({own})) add(lua_text(one));
  for (const auto& [key, item] : value.items())
    if (value.is_object() && !key.starts_with("$")) add(key + " = " + lua_text(item));
  return "{" + inside + " }";
}

bool holds_function(const Json& value) {
  if (is_function(value)) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_function);
}

namespace {

// Names a value that contains a function: by the value's own name, or by the place where the
// function is defined.
std::string function_name(const Json& value) {
  if (is_function(value)) {
    const std::string place = value.value(defined_key, "");
    return "function@" + place.substr(place.rfind('/') + 1);
  }
  if (!value.is_structured()) return lua_text(value);
  std::string inside, name;
  for (const auto& [key, item] : value.items()) {
    const bool names = key == "kind" || key == "name" || key == unnamed_key;
    if (value.is_object() && names && item.is_string()) {
      if (name.empty() || key == "name") name = item.get<std::string>();
    } else if (!key.starts_with('$') && !is_function(item)) {
      if (!inside.empty()) inside += ", ";
      inside += (value.is_object() ? key + " = " : "") + function_name(item);
    }
  }
  return inside.empty() ? name : fmt::format("{}{{ {} }}", name, inside);
}

}  // namespace

std::string option_text(const std::string& key, const Json& value) {
  return key + " = " + (holds_function(value) ? function_name(value) : lua_text(value));
}

std::string entry_text(const std::string& name, const std::string& ways,
                       const std::string& options) {
  if (options.empty()) return fmt::format("{}({})", name, ways);
  return fmt::format("{} {{ {}{}{} }}", name, ways, ways.empty() ? "" : ", ", options);
}

namespace {

// Writes a plan's entry. `text(key, value)` writes one of its options.
template <class Text>
std::string entry_with(const Json& entry, const Text& text) {
  std::string ways, options;
  for (const char* key : {"ways", unnamed_key})
    if (ways.empty() && entry.contains(key)) ways = lua_text(entry.at(key));
  for (const auto& [key, value] : entry.items()) {
    if (key == "plugin" || key == "ways" || key.starts_with("$")) continue;
    options += (options.empty() ? "" : ", ") + text(key, value);
  }
  return entry_text(entry.at("plugin").get<std::string>(), ways, options);
}

}  // namespace

std::string entry_text(const Json& entry) {
  return entry_with(entry, [](const std::string& key, const Json& value) {
    return key + " = " + lua_text(value);
  });
}

std::string mix_text(const std::vector<std::string>& entries) {
  return entries.empty()       ? "one rank"
         : entries.size() == 1 ? entries.front()
                               : fmt::format("{{ {} }}", join(entries));
}

std::string written_mix(const Json& plan) {
  std::vector<std::string> entries;
  for (const Json& entry : plan.is_array() ? plan : Json::array({plan})) {
    if (!entry.is_object() || !entry.value("plugin", Json()).is_string()) return "";
    entries.push_back(entry_with(entry, option_text));
  }
  return mix_text(entries);
}

bool lies_in(const std::string& key, const std::string& table) {
  if (!key.starts_with(table)) return false;
  return table.empty() || key.size() == table.size() || key[table.size()] == '.' ||
         key[table.size()] == '[';
}

std::string key_in(const std::string& table, const std::string& key) {
  if (lies_in(key, table)) return key;
  return key.empty() ? table : table + (key.front() == '[' ? "" : ".") + key;
}

std::string place_of(const Json& root, const std::string& path) {
  std::string place;
  const Json* at = &root;
  std::size_t i = 0;
  while (true) {
    if (at->is_object() && at->contains(place_key) && at->at(place_key).is_string()) {
      place = at->at(place_key).get<std::string>();
    }
    if (i >= path.size()) return place;
    if (path[i] == '[') {
      std::size_t index = 0;
      const std::size_t start = ++i;
      while (i < path.size() && std::isdigit(static_cast<unsigned char>(path[i])) &&
             i - start < 9) {
        index = index * 10 + static_cast<std::size_t>(path[i++] - '0');
      }
      if (i >= path.size() || path[i] != ']' || i == start) return place;
      ++i;
      if (!at->is_array() || index < 1 || index > at->size()) return place;
      at = &(*at)[index - 1];
    } else {
      if (path[i] == '.') ++i;
      const std::size_t start = i;
      while (i < path.size() &&
             (std::isalnum(static_cast<unsigned char>(path[i])) || path[i] == '_'))
        ++i;
      if (i == start || !at->is_object()) return place;
      const std::string key = path.substr(start, i - start);
      auto found = at->find(key);
      if (found == at->end() && at->contains(strategy_key)) {
        at = &at->at(strategy_key);
        if (!at->is_object()) return place;
        if (at->contains(place_key) && at->at(place_key).is_string())
          place = at->at(place_key).get<std::string>();
        found = at->find(key);
      }
      if (found == at->end()) return place;
      at = &*found;
    }
  }
}

Json json_of(const Problem& problem) {
  Json json = {{"stage", name_of(problem.stage)},
               {"code", problem.code},
               {"key", problem.key},
               {"message", problem.message},
               {"hint", problem.hint},
               {"file", nullptr},
               {"line", nullptr}};
  // Splits a place such as "script.lua:12"; a setting of the command line has no line.
  const auto colon = problem.place.rfind(':');
  const std::string digits = colon == problem.place.npos ? "" : problem.place.substr(colon + 1);
  int line = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), line);
  if (!digits.empty() && error == std::errc() && end == digits.data() + digits.size()) {
    json["file"] = problem.place.substr(0, colon);
    json["line"] = line;
  }
  return json;
}

Json without_hidden(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(without_hidden(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  if (is_function(value)) {
    for (const char* key : {function_key, code_key}) {
      if (value.contains(key)) out[key] = value[key];
    }
    return out;
  }
  for (const auto& [key, item] : value.items()) {
    if (key == unnamed_key) out["value"] = without_hidden(item);
    if (!key.starts_with('$')) out[key] = without_hidden(item);
  }
  return out;
}

std::string version_line() {
  return fmt::format("meshwright {} (torch {})", MESHWRIGHT_VERSION, TORCH_VERSION);
}

}  // namespace mw
