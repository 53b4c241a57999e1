// The commands that run scripts: run, plan, verify, compare and the prompt.
#include <fmt/format.h>

#include <unistd.h>
#include <iostream>
#include <memory>
#include <optional>

#include "app/app_host.h"
#include "app/commands.h"
#include "app/line_editor.h"
#include "base/interrupt.h"
#include "base/version.h"
#include "lua/script.h"
#include "report/page.h"
#include "report/plan_page.h"

namespace mw {
namespace {

// `train_as`: what each mw.train is.
ScriptOptions script_options(const ScriptArguments& arguments, const std::string& train_as,
                             Output& output) {
  ScriptOptions options;
  options.settings = arguments.settings;
  options.words = arguments.words;
  options.train_as = train_as;
  options.library = lua_library();
  options.say = [&output](const std::string& text) { output.note(text); };
  return options;
}

// Under `plan` and `verify` that is what was asked for; a script that is run may do as it likes,
// but silence would leave people wondering.
void look_for_results(const AppHost& host, const std::string& script, const std::string& train_as,
                      Output& output) {
  if (train_as == "train") {
    if (!host.called_any())
      output.note(script + ": nothing was trained: the script calls no verb, such as mw.train");
    return;
  }
  if (host.called(train_as)) return;
  throw Error(Stage::script, "script.no-verb", "",
              script + ": nothing was " + (train_as == "plan" ? "planned" : "verified") +
                  ": the script calls neither mw.train nor mw." + train_as,
              "give a script that calls mw.train { … }");
}

}  // namespace

int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output) {
  stop_on_signals();
  PluginRegistry plugins(PluginRegistry::search_path(arguments.plugin_path));
  AppHost host(output, plugins);
  Script script(host, script_options(arguments, train_as, output));
  const auto show_rest = [&] {
    for (const std::string& text : script.unprinted()) output.text(text);
  };
  if (arguments.program) host.show_programs();
  if (arguments.placements) host.show_placements();
  if (arguments.model) host.show_models();
  if (!arguments.html.empty()) host.keep_pages();
  if (arguments.force) host.force();
  try {
    const ScriptText text = read_script(arguments.script);
    host.set_script(text);
    script.run(text);
  } catch (...) {
    show_rest();
    throw;
  }
  show_rest();
  look_for_results(host, arguments.script, train_as, output);
  if (!arguments.html.empty()) {
    write_page("--html", arguments.html, plans_html(arguments.script, host.pages()));
    output.note(fmt::format("{}: written", arguments.html));
  }
  return host.exit_code();
}

// Each mw.train is one of the two experiments: of two scripts, or of one.
int run_compared(const ScriptArguments& arguments, Output& output) {
  stop_on_signals();
  PluginRegistry plugins(PluginRegistry::search_path(arguments.plugin_path));
  AppHost host(output, plugins);
  if (arguments.force) host.force();
  const ScriptOptions options = script_options(arguments, "compare", output);
  std::vector<std::unique_ptr<Script>> scripts;  // the first's functions are called to the end
  for (const std::string& file : arguments.scripts) {
    const ScriptText text = read_script(file);
    host.set_script(text);
    scripts.push_back(std::make_unique<Script>(host, options));
    scripts.back()->run(text);
  }
  host.check_compared();
  for (const auto& script : scripts) {
    for (const std::string& text : script->unprinted()) output.text(text);
  }
  return host.exit_code();
}

int run_repl(const ScriptArguments& arguments, Output& output) {
  stop_on_signals();
  PluginRegistry plugins(PluginRegistry::search_path(arguments.plugin_path));
  AppHost host(output, plugins);
  Script script(host, script_options(arguments, "train", output));
  Prompt prompt;
  prompt.print = [&output](const std::string& text) { output.text(text); };
  prompt.error = [&output](const Error& error) { output.error(error); };
  if (::isatty(STDIN_FILENO) == 0) {
    prompt.read = [](const std::string&) -> std::optional<std::string> {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    };
    script.repl(prompt);
  } else {
    output.text(version_line() +
                ", mw is loaded; Tab completes, Ctrl-C ends a line or a run, Ctrl-D ends");
    LineEditor editor(history_file(),
                      [&script](const std::string& before) { return script.complete(before); });
    prompt.read = [&editor](const std::string& text) { return editor.read(text); };
    script.repl(prompt);
    output.text("");
  }
  return stop_requested() ? exit_interrupted : 0;
}

}  // namespace mw
