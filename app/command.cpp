// Keeps the commands that have registered themselves, and adds the options that several of them
// have.
#include "app/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace mw {
namespace {

std::vector<Command*>& registered() {
  static std::vector<Command*> all;
  return all;
}

}  // namespace

Command::Command(About about) : about_(std::move(about)) {
  std::vector<Command*>& all = registered();
  all.insert(std::upper_bound(
                 all.begin(), all.end(), about_.place,
                 [](int place, const Command* other) { return place < other->about().place; }),
             this);
}

const std::vector<Command*>& all_commands() {
  return registered();
}

CommandOf<Arguments> command_group(Command::About about) {
  return {std::move(about), [](CLI::App& group, Arguments&) { group.require_subcommand(1); },
          [](const Arguments&, Output&) { return 0; }};
}

PluginRegistry registry_of(const Arguments& arguments) {
  return PluginRegistry(PluginRegistry::search_path(arguments.plugin_path));
}

CLI::Validator number_in(double least, double most) {
  const auto check = [least, most](std::string& text) -> std::string {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    const bool whole = error == std::errc() && rest == end;
    if (whole && number >= least && number <= most) return "";  // false for NaN
    return fmt::format("Value {} not in range [{} - {}]", text, least, most);
  };
  return {check, CLI::Range(least, most).get_description(), "number"};
}

void add_json(CLI::App& command, Arguments& arguments) {
  command.add_flag("--json", arguments.json,
                   "one JSON object a line on stdout; people's text on stderr");
}

void add_quiet(CLI::App& command, Arguments& arguments) {
  command.add_flag("--quiet", arguments.quiet,
                   "no text but errors and what the script prints; --json's lines stay");
}

void add_settings(CLI::App& command, Arguments& arguments) {
  command
      .add_option(
          "--set", arguments.settings,
          "change a key of the experiment: steps=5, model.layers=2, plan[2].ways=4, or "
          "observers[+]=… for a further entry of a list; the value is a number, a word or a Lua "
          "expression; may be repeated")
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
}

void add_common(CLI::App& command, Arguments& arguments, bool json) {
  command
      .add_option("--plugin-path", arguments.plugin_path,
                  "a folder of plugins, searched first; may be repeated")
      ->allow_extra_args(false)
      ->type_name("FOLDER");
  if (json) add_json(command, arguments);
}

}  // namespace mw
