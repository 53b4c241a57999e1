// Reads the annotations line by line into functions and tables, and lays them out.
#include "app/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr std::size_t help_width = 96;
constexpr std::size_t widest_name = 26;
constexpr std::size_t most_shown = 24;  // keys of a parameter that are listed with the function

// Takes the beginning off the text, if it begins so.
bool take(std::string& text, const std::string& beginning) {
  if (!text.starts_with(beginning)) return false;
  text.erase(0, beginning.size());
  return true;
}

// Splits off what stands before the next blank that no bracket holds: a type may have blanks, as in
// "fun(step: integer): number" and "table<string, any>".
std::string take_word(std::string& text) {
  int depth = 0;
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '(' || c == '<' || c == '{' || c == '[') ++depth;
    if (c == ')' || c == '>' || c == '}' || c == ']') --depth;
    const bool goes_on = at > 0 && text[at - 1] == ':';
    if (c == ' ' && depth <= 0 && !goes_on) break;
  }
  std::string word = text.substr(0, at);
  text.erase(0, std::min(at + 1, text.size()));
  return word;
}

std::string plain_type(std::string type) {
  for (std::size_t at; (at = type.find("meshwright.")) != std::string::npos;)
    type.erase(at, std::string("meshwright.").size());
  return type;
}

// The text in lines, all but the first of them indented.
std::string in_lines(const std::string& text, std::size_t indent) {
  return wrapped(text, help_width - indent, indent);
}

}  // namespace

HelpText::HelpText(const std::string& types) {
  std::istringstream lines(types);
  std::vector<std::string> comments;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("---")) {
      comments.push_back(line.substr(3));
      continue;
    }
    read(comments, line);
    comments.clear();
  }
  read(comments, "");
}

// What stands above a line of code, or above a blank one: a class, or a function's declaration.
void HelpText::read(const std::vector<std::string>& comments, const std::string& code) {
  std::string about;
  Function function;
  Class* open = nullptr;
  for (std::string text : comments) {
    if (take(text, "@class meshwright.")) {
      const std::string name = text.substr(0, text.find(':'));
      open = &classes_[name];
      if (name.size() < text.size()) open->base = plain_type(text.substr(name.size() + 2));
      open->about += std::exchange(about, "");
    } else if (take(text, "@field ") || take(text, "@param ")) {
      Field field;
      field.name = take_word(text);
      field.optional = field.name.ends_with('?');
      if (field.optional) field.name.pop_back();
      field.type = plain_type(take_word(text));
      field.about = text;
      if (open != nullptr && field.name != "[1]") open->fields.push_back(field);
      if (open == nullptr) function.parameters.push_back(field);
    } else if (take(text, "@return ")) {
      function.returns = plain_type(text);
    } else if (!text.starts_with('@')) {
      about += (about.empty() ? "" : " ") + text;
    }
  }
  std::string name = code;
  if (!take(name, "function mw.")) return;
  function.signature = "mw." + name.substr(0, name.rfind(" end"));
  function.about = about;
  functions_[name.substr(0, name.find('('))] = function;
}

// The keys of a type such as "Experiment" or "llama|integer"; null if none are known.
const HelpText::Class* HelpText::class_of(const std::string& type) const {
  const auto found = classes_.find(type.substr(0, type.find('|')));
  return found == classes_.end() || found->second.fields.empty() ? nullptr : &found->second;
}

std::string HelpText::class_text(const std::string& name, const Class& described) const {
  std::string text;
  if (!described.about.empty()) text += in_lines(described.about, 0) + "\n";
  std::size_t widest = 0;
  for (const Field& field : described.fields)
    widest = std::max(widest, std::min(widest_name, field.name.size()));
  for (const Field& field : described.fields) {
    const std::string about = fmt::format("{}{}{}", field.optional ? "" : "required; ", field.type,
                                          field.about.empty() ? "" : ": " + field.about);
    text += fmt::format("  {:<{}}  {}\n", field.name, widest, in_lines(about, widest + 4));
  }
  if (const Class* base = described.base.empty() ? nullptr : class_of(described.base)) {
    const auto is_new = [&](const Field& field) {
      return std::none_of(described.fields.begin(), described.fields.end(),
                          [&](const Field& own) { return own.name == field.name; });
    };
    if (std::any_of(base->fields.begin(), base->fields.end(), is_new))
      text += class_text(described.base, *base);
  }
  return text.empty() ? name + "\n" : text;
}

std::string HelpText::function_text(const Function& function) const {
  std::string text = function.signature + "\n";
  if (!function.about.empty()) text += "  " + in_lines(function.about, 2) + "\n";
  for (const Field& parameter : function.parameters) {
    const std::string about =
        fmt::format("{}{}: {}{}{}", parameter.name, parameter.optional ? " (may be left out)" : "",
                    parameter.type, parameter.about.empty() ? "" : ", ", parameter.about);
    text += "  " + in_lines(about, 4) + "\n";
    const Class* keys = class_of(parameter.type);
    if (keys == nullptr) continue;
    const std::string type = parameter.type.substr(0, parameter.type.find('|'));
    text += keys->fields.size() <= most_shown
                ? class_text(type, *keys)
                : fmt::format("    its {} keys: help {}\n", keys->fields.size(), quote(type));
  }
  if (!function.returns.empty()) text += "  " + in_lines("returns " + function.returns, 4) + "\n";
  return text;
}

// All keys of this name: "Experiment.schedule  …".
std::string HelpText::keys_called(const std::string& name) const {
  const std::size_t dot = name.rfind('.');
  const std::string table = dot == std::string::npos ? "" : name.substr(0, dot);
  const std::string key = dot == std::string::npos ? name : name.substr(dot + 1);
  std::string text;
  for (const auto& [owner, described] : classes_) {
    const bool wanted = table.empty() || owner == table || owner == "plugin." + table ||
                        (table == "mw" && owner == key);
    if (!wanted) continue;
    for (const Field& field : described.fields) {
      if (field.name != key) continue;
      const std::string about = field.about.empty() ? "" : ": " + field.about;
      text += fmt::format("{}.{}\n  {}\n", owner, key, in_lines(field.type + about, 2));
    }
  }
  return text;
}

std::vector<std::string> HelpText::names() const {
  std::vector<std::string> all;
  for (const auto& [name, function] : functions_) all.push_back(name);
  for (const auto& [name, described] : classes_) {
    all.push_back(name);
    if (name.starts_with("make.")) all.push_back(name.substr(5));
    for (const Field& field : described.fields) all.push_back(field.name);
  }
  return all;
}

std::string HelpText::overview() const {
  std::vector<std::string> functions, plugins;
  for (const auto& [name, function] : functions_) functions.push_back("mw." + name);
  for (const auto& [name, described] : classes_)
    if (name.starts_with("make.")) plugins.push_back(name.substr(5));
  return in_lines(
             "help(x): x is a function (help(mw.train)), a value that a function has returned, or "
             "a name between quotes: a plugin (help \"tp\"), a key (help \"steps\", help "
             "\"llama.layers\").",
             2) +
         "\n" +
         fmt::format("functions: {}\nplugins: {}", in_lines(join(functions), 2),
                     in_lines(join(plugins), 2));
}

std::string HelpText::of(const std::string& given) const {
  if (given.empty()) return overview();
  std::string name = given;
  take(name, "mw.");
  take(name, "meshwright.");
  if (name.ends_with(" result") && name.size() > 7) {
    name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
    name = name.substr(0, name.size() - 7) + "Result";
  }
  std::string text;
  if (const auto found = functions_.find(name); found != functions_.end())
    text += function_text(found->second);
  else if (const auto made = classes_.find("make." + name); made != classes_.end()) {
    text += class_text(name, made->second);
    if (const Class* options = class_of("plugin." + name))
      text += fmt::format("{} {{ … }} takes\n", name) + class_text(name, *options);
  } else if (const auto table = classes_.find(name); table != classes_.end()) {
    text += class_text(name, table->second);
  }
  if (const std::string keys = keys_called(name); !keys.empty())
    text += (text.empty() ? "" : "\nkeys of that name\n") + keys;
  if (!text.empty()) return text;
  const std::string near = did_you_mean(name, names());
  throw Error(Stage::script, "help.unknown", "",
              fmt::format("help: nothing is called {}", quote(given)),
              near.empty() ? "help() says what there is" : near);
}

}  // namespace mw
