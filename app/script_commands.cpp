// The commands that run scripts: run, plan, verify, prove, compare and the prompt.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "app/app_host.h"
#include "app/chrome_trace.h"
#include "app/commands.h"
#include "app/line_editor.h"
#include "app/stuck_end.h"
#include "common/json_file.h"
#include "common/output_file.h"
#include "lua/script.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/json_text.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/text.h"
#include "meshwright/engine/version.h"
#include "predict/calibration.h"
#include "report/page.h"
#include "report/plan_page.h"

namespace mw {
namespace {

// `train_as`: what each mw.train is.
ScriptOptions script_options(const ScriptArguments& arguments, const std::string& train_as,
                             Output& output) {
  ScriptOptions options;
  const auto quoted = [](const std::string& text) { return json_text(Json(text)); };
  const auto add = [&](const std::string& setting, const std::string& given) {
    options.settings.push_back(setting);
    options.given_as[setting] = given;
  };
  if (!arguments.cluster.empty()) {
    const bool nodes = arguments.nodes > 0;
    add(fmt::format("cluster=mw.cluster({}{})", quoted(arguments.cluster),
                    nodes ? fmt::format(", {{ nodes = {} }}", arguments.nodes) : ""),
        "--cluster " + arguments.cluster +
            (nodes ? fmt::format(" --nodes {}", arguments.nodes) : ""));
  }
  if (!arguments.stack.empty())
    add(fmt::format("stack=mw.stack({})", quoted(arguments.stack)), "--stack " + arguments.stack);
  // After what they may change a key of.
  options.settings.insert(options.settings.end(), arguments.settings.begin(),
                          arguments.settings.end());
  options.words = arguments.words;
  options.train_as = train_as;
  options.library = lua_library();
  options.say = [&output](const std::string& text) { output.note(text); };
  return options;
}

// What a script may call instead of mw.train, under a command that turns that into a verb: each
// does what was asked for.
bool did_what_was_asked(const AppHost& host, const std::string& train_as) {
  static const std::map<std::string, std::vector<std::string>> likes = {
      {"plan", {"search", "goodput"}}, {"verify", {"compare"}}};
  if (host.called(train_as)) return true;
  const auto found = likes.find(train_as);
  return found != likes.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const std::string& verb) { return host.called(verb); });
}

// Under `plan`, `verify` and `prove` that is what was asked for; a script that is run may do as it
// likes, but silence would leave people wondering.
void look_for_results(const AppHost& host, const std::string& script, const std::string& train_as,
                      Output& output) {
  if (train_as == "train") {
    if (host.called_any()) return;
    output.note(fmt::format("{}: nothing was trained: {}", script,
                            host.tried().empty() ? "the script calls no verb, such as mw.train"
                                                 : host.failure_of(host.tried().front()) + "; " +
                                                       what_to_do_with_caught));
    return;
  }
  if (did_what_was_asked(host, train_as)) return;
  const std::string nothing = script + ": nothing was " +
                              (train_as == "plan"     ? "planned"
                               : train_as == "verify" ? "verified"
                               : train_as == "prove"  ? "proved"
                               : train_as == "search" ? "searched"
                                                      : "computed") +
                              ": ";
  for (const std::string& verb : host.tried()) {
    if (!host.called(verb) && (verb == "train" || verb == train_as))
      host.refuse_caught(nothing, verb);
  }
  throw Error(Stage::script, "script.no-verb", "",
              nothing + "the script calls neither mw.train nor mw." + train_as,
              "give a script that calls mw.train { … }");
}

// The command `sweep` is for scripts that make one.
void look_for_sweeps(const AppHost& host, const std::string& script, std::size_t made) {
  if (made > 0) return;
  const std::string nothing = script + ": nothing was swept: ";
  if (std::count(host.tried().begin(), host.tried().end(), "sweep") > 0)
    host.refuse_caught(nothing, "sweep");
  throw Error(Stage::script, "script.no-verb", "", nothing + "the script does not call mw.sweep",
              "give a script that calls mw.sweep { … }");
}

// The command line of a job's script, behind its own script.
std::vector<std::string> words_of(const ScriptArguments& arguments) {
  std::vector<std::string> words;
  const auto add = [&](const std::string& option, const Json& value) {
    words.push_back(option);
    words.push_back(value.is_string() ? value.get<std::string>() : json_text(value));
  };
  for (const std::string& setting : arguments.settings) add("--set", setting);
  for (const std::string& folder : arguments.plugin_path) add("--plugin-path", folder);
  if (arguments.force) words.emplace_back("--force");
  for (const char* key : {"only", "retry", "time", "memory"}) {
    if (!arguments.go.contains(key)) continue;
    const Json& value = arguments.go[key];
    for (const Json& one : value.is_array() ? value : Json::array({value}))
      add(std::string("--") + key, one);
  }
  if (!arguments.words.empty()) words.emplace_back("--");
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  return words;
}

AppHost::Sweeping sweeping_of(const ScriptArguments& arguments) {
  return {arguments.go,
          {{"settings", arguments.settings},
           {"plugin_path", arguments.plugin_path},
           {"words", arguments.words},
           {"go", arguments.go},
           {"force", arguments.force}},
          words_of(arguments)};
}

// The first process alone has standard input.
ScriptText of_first(Processes* processes, const std::string& script,
                    const std::function<ScriptText()>& text_of) {
  if (processes == nullptr || script != "-") return text_of();
  ScriptText text = processes->first() ? text_of() : ScriptText{};
  const std::string bytes = processes->broadcast(
      "the script", pack(text.text, text.name, text.is_file, text.folder.string()));
  std::string folder;
  Unpacker unpacker(bytes);
  unpacker(text.text, text.name, text.is_file, folder);
  text.folder = folder;
  return text;
}

// With all that the arguments say, and `text` in place of what stands in the script's file now.
int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output,
               const std::optional<CellOrder>& cell, const std::function<ScriptText()>& text_of,
               bool sweeps) {
  stop_on_signals();
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
  if (arguments.go.contains("print")) output.keep_stdout();  // for the job script
  PluginRegistry plugins(PluginRegistry::search_path(arguments.plugin_path));
  AppHost host(output, plugins);
  const bool joins = train_as != "plan" && train_as != "prove" && train_as != "search" && !sweeps;
  Joined joined(joins ? arguments.processes : ProcessArguments{0, "threads", {}}, plugins, output);
  host.set_processes(joined.processes());
  Script script(host, script_options(arguments, train_as, output));
  const auto show_rest = [&] {
    for (const std::string& text : script.unprinted()) output.text(text);
  };
  if (arguments.program) host.show_programs();
  if (arguments.placements) host.show_placements();
  if (arguments.must_fit) host.must_fit();
  if (arguments.full) host.show_plans_whole();
  if (arguments.strict) host.strict();
  if (train_as == "prove") host.prove_plans();
  if (arguments.model) host.show_models();
  if (!arguments.html.empty()) host.keep_pages();
  if (!arguments.plan_trace.empty()) host.keep_traces();
  if (!arguments.logits.empty()) host.write_logits(arguments.logits);
  if (arguments.force) host.force();
  host.set_sweeping(sweeping_of(arguments));
  if (cell) host.set_cell(*cell);
  if (!arguments.attempt.empty()) host.set_attempt(Attempt(arguments.attempt));
  return joined.run([&] {
    try {
      const ScriptText text = of_first(joined.processes(), arguments.script, text_of);
      host.set_script(text);
      script.run(text);
      if (sweeps) look_for_sweeps(host, arguments.script, script.run_sweeps());
    } catch (...) {
      show_rest();
      throw;
    }
    show_rest();
    if (!sweeps) look_for_results(host, arguments.script, train_as, output);
    if (!arguments.html.empty()) {
      write_page("--html", arguments.html, plans_html(arguments.script, host.pages()));
      output.note(fmt::format("{}: written", arguments.html));
    }
    if (!arguments.plan_trace.empty()) {
      write_output("--trace", arguments.plan_trace,
                   chrome_trace(host.traces(), {{"script", arguments.script}}));
      output.note(
          fmt::format("{}: written; https://ui.perfetto.dev opens it", arguments.plan_trace));
    }
    return host.exit_code();
  });
}

}  // namespace

int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output) {
  if (const std::string& why = this_calibration().why; !why.empty()) output.note(why);
  return run_script(
      arguments, train_as, output, std::nullopt, [&] { return read_script(arguments.script); },
      /*sweeps=*/false);
}

int run_sweeps(const ScriptArguments& arguments, Output& output) {
  return run_script(
      arguments, "train", output, std::nullopt, [&] { return read_script(arguments.script); },
      /*sweeps=*/true);
}

int run_sweep_cell(const std::string& file, Output& output) {
  const Json order = read_json(file);
  if (!order.is_object()) {
    throw Error(Stage::script, "file.format", "", file + ": this is no cell of a sweep",
                "meshwright sweep SCRIPT makes them");
  }
  ScriptArguments arguments;
  arguments.script = order.value("script", "");
  arguments.settings = order.value("settings", arguments.settings);
  arguments.plugin_path = order.value("plugin_path", arguments.plugin_path);
  arguments.words = order.value("words", arguments.words);
  arguments.go = order.value("go", arguments.go);
  arguments.force = order.value("force", false);
  const CellOrder cell{order.value("sweep", ""), order.value("name", ""), order.value("hash", ""),
                       order.value("folder", "")};
  const int code = run_script(
      arguments, "train", output, cell,
      [&] {
        // As it stood when the sweep began: it may have been edited since.
        ScriptText text = read_script(cell.folder + "/script.lua");
        const std::filesystem::path script(arguments.script);
        std::error_code error;
        text.name = arguments.script;
        text.is_file = std::filesystem::is_regular_file(script, error);
        text.folder = text.is_file && script.has_parent_path() ? script.parent_path() : ".";
        return text;
      },
      /*sweeps=*/true);
  if (code != 0) return code;
  throw Error(Stage::script, "sweep.changed", "",
              fmt::format("the script does not come to the sweep {} when it is run again",
                          quote(cell.sweep)),
              "a sweep's script must make the same cells whenever it is run");
}

// Each mw.train is one of the two experiments: of two scripts, or of one.
int run_compared(const ScriptArguments& arguments, Output& output) {
  stop_on_signals();
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
  PluginRegistry plugins(PluginRegistry::search_path(arguments.plugin_path));
  AppHost host(output, plugins);
  if (arguments.force) host.force();
  Joined joined(arguments.processes, plugins, output);
  host.set_processes(joined.processes());
  const ScriptOptions options = script_options(arguments, "compare", output);
  std::vector<std::unique_ptr<Script>> scripts;  // the first's functions are called to the end
  return joined.run([&] {
    for (const std::string& file : arguments.scripts) {
      const ScriptText text = of_first(joined.processes(), file, [&] { return read_script(file); });
      host.set_script(text);
      scripts.push_back(std::make_unique<Script>(host, options));
      scripts.back()->run(text);
    }
    host.check_compared();
    for (const auto& script : scripts) {
      for (const std::string& text : script->unprinted()) output.text(text);
    }
    return host.exit_code();
  });
}

int bench_prediction(const ScriptArguments& arguments, Output&) {
  ScriptArguments script = arguments;
  script.script = (lua_library().parent_path() / "reference/prediction.lua").string();
  Output output(/*json=*/false, /*quiet=*/true);
  return run_script(script, "plan", output);
}

int run_repl(const ScriptArguments& arguments, Output& output) {
  stop_on_signals();
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
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
