// The commands that run a script with each mw.train as one verb: run, plan, search, verify, prove,
// logits; and compare, which runs two.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>

#include "app/chrome_trace.h"
#include "app/first_use.h"
#include "app/script_command.h"
#include "app/stuck_end.h"
#include "app/what_if.h"
#include "common/files.h"
#include "common/process.h"
#include "draw/page.h"
#include "draw/plan_page.h"
#include "draw/search_page.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "predict/calibration.h"
#include "transport/launched.h"

namespace mw {

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
  // --set comes after --cluster and --stack, of which it may change a key.
  options.settings.insert(options.settings.end(), arguments.settings.begin(),
                          arguments.settings.end());
  options.words = arguments.words;
  options.train_as = train_as;
  options.sandboxed = arguments.sandbox.lua_memory();
  options.library = lua_library();
  options.say = [&output](const std::string& text) { output.note(text); };
  return options;
}

namespace {

// Whether a verb gave a result that the command asked for: `train_as`, or one that counts as well.
bool did_what_was_asked(const AppHost& host, const std::string& train_as) {
  static const std::map<std::string, std::vector<std::string>> likes = {
      {"plan", {"search", "goodput", "what_if"}}, {"verify", {"compare"}}};
  if (host.called(train_as)) return true;
  const auto found = likes.find(train_as);
  return found != likes.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const std::string& verb) { return host.called(verb); });
}

// Throws Error if the script gave no result of the command's verb. Under `run`, only notes that
// nothing was trained.
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

// Reads the script; from standard input in the first process, which sends it to the others.
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

// The files to write of all that was planned: a page, a trace and a drawing.
std::vector<OutputFile> files_of(const ScriptArguments& arguments) {
  return {{"--html", arguments.html, OutputKind::page},
          {"--trace", arguments.plan_trace, OutputKind::trace},
          {"--braids-svg", arguments.braids_svg, OutputKind::drawing}};
}

void write_of_plans(const ScriptArguments& arguments, const std::string& train_as,
                    const AppHost& host, Output& output) {
  if (!arguments.html.empty()) {
    write_output(files_of(arguments)[0], train_as == "search"
                                             ? searches_html(arguments.script, host.searches())
                                             : plans_html(arguments.script, host.pages()));
    output.note(fmt::format("{}: written", arguments.html));
  }
  if (!arguments.plan_trace.empty()) {
    write_output(files_of(arguments)[1],
                 chrome_trace(host.traces(), {{"script", arguments.script}}));
    output.note(fmt::format("{}: written; https://ui.perfetto.dev opens it", arguments.plan_trace));
  }
  if (!arguments.braids_svg.empty()) {
    write_output(files_of(arguments)[2], braids_svg(host.braids(), arguments.script));
    output.note(fmt::format("{}: written", arguments.braids_svg));
  }
}

// `sweep`: null, or the run is for the script's sweeps.
int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output,
               const SweepRun* sweep) {
  stop_on_signals();
  check_outputs(files_of(arguments), {{"the script", arguments.script}});
  // notes that this start began, for whoever starts the script again
  const Attempt attempt(arguments.attempt);
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
  if (arguments.go.contains("print")) output.keep_stdout();  // stdout is for the job script alone
  PluginRegistry plugins = registry_of(arguments);
  HostOptions options = arguments.host;
  options.proves_plans = train_as == "prove";
  options.sweeps = sweep != nullptr;
  options.pages = !arguments.html.empty();
  options.traces = !arguments.plan_trace.empty();
  options.braids = options.braids || !arguments.braids_svg.empty();
  options.what_if = read_what_ifs(arguments.what_ifs);
  AppHost host(output, plugins, std::move(options));
  const bool joins =
      train_as != "plan" && train_as != "prove" && train_as != "search" && sweep == nullptr;
  Joined joined(joins ? arguments.processes : ProcessArguments{0, "threads", {}}, plugins, output);
  host.set_processes(joined.processes());
  Script script(host, script_options(arguments, train_as, output));
  const auto show_rest = [&] {
    for (const std::string& text : script.unprinted()) output.text(text);
  };
  host.set_sweeping(sweeping_of(arguments));
  if (sweep != nullptr && sweep->cell) host.set_cell(*sweep->cell);
  if (!arguments.attempt.empty()) host.set_attempt(attempt);
  const auto text_of = [&] {
    return sweep != nullptr ? sweep->text() : read_script(arguments.script);
  };
  return joined.run([&] {
    try {
      const ScriptText text = of_first(joined.processes(), arguments.script, text_of);
      host.set_script(text);
      script.run(text);
      const bool judges = train_as == "plan" || train_as == "prove" || train_as == "verify";
      if (sweep != nullptr) {
        look_for_sweeps(host, arguments.script, script.run_sweeps());
      } else if (judges && !did_what_was_asked(host, train_as)) {
        script.run_sweeps();
      }
    } catch (...) {
      show_rest();
      throw;
    }
    show_rest();
    if (sweep == nullptr) look_for_results(host, arguments.script, train_as, output);
    write_of_plans(arguments, train_as, host, output);
    return host.exit_code();
  });
}

}  // namespace

void add_script(CLI::App& command, ScriptArguments& arguments, const std::string& example) {
  command.add_option("SCRIPT", arguments.script, "an experiment script (Lua); - is standard input")
      ->required();
  add_settings(command, arguments);
  add_quiet(command, arguments);
  add_sandbox(command, arguments.sandbox);
  command.footer(fmt::format(
      "Words after -- are passed to the script: arg[1], arg[2], ...\nExample: meshwright "
      "{} {}",
      command.get_name(), example));
}

void add_force(CLI::App& command, ScriptArguments& arguments) {
  command.add_flag(
      "--force", arguments.host.force,
      "start although the ranks are predicted to need more memory than this machine has");
}

void check_starts_again(const std::string& asked_by, const std::string& script,
                        const std::string& launcher, const ProcessArguments& processes) {
  if (script == "-") {
    throw Error(Stage::script, "usage.option", "",
                asked_by + ": a script from standard input cannot be run twice",
                "write it into a file");
  }
  if (!launcher.empty() && processes.processes > 0) {
    throw Error(
        Stage::script, "usage.option", "",
        fmt::format("--launcher {} starts the run's processes, and --processes {} would too",
                    quote(launcher), processes.processes),
        "leave one of the two out");
  }
}

int run_script(const ScriptArguments& arguments, const std::string& train_as, Output& output) {
  if (const std::string& why = this_calibration().why; !why.empty()) output.note(why);
  tell_first_use([&output](const std::string& text) { output.note(text); });
  return run_script(arguments, train_as, output, nullptr);
}

int run_sweeping(const ScriptArguments& arguments, const SweepRun& sweep, Output& output) {
  return run_script(arguments, "train", output, &sweep);
}

namespace {

// For a forked copy of this process, which this function ends: runs the script in a Lua sandbox up
// to its first experiment, and compares the experiment's ranks with --processes. Exits with the
// code of the error that it prints, or with 0. Any other error is left to the processes of the run,
// which print it.
[[noreturn]] void check_in_copy(const ScriptArguments& arguments, const std::string& train_as,
                                Output& output) {
  constexpr unsigned most_seconds = 10;
  constexpr std::size_t lua_memory = std::size_t{1} << 30;  // bytes
  ::alarm(most_seconds);                                    // the signal ends the copy
  const int nothing = ::open("/dev/null", O_RDWR), shown = ::dup(STDERR_FILENO);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, standard);
  try {
    Output silent(/*json=*/false, /*quiet=*/true);
    PluginRegistry plugins = registry_of(arguments);
    HostOptions options = arguments.host;
    options.instead = [&](const std::vector<Experiment>& experiments) {
      try {
        for (const auto& each : experiments)
          if (train_as != "compare" || each.plan->ranks() > 1)
            ranks_of_processes(each.plan->ranks(), arguments.processes.processes, each.plan->mix());
      } catch (const Error& error) {
        ::dup2(shown, STDERR_FILENO);
        output.error(error);
        ::_exit(error.exit_code());
      }
      ::_exit(0);
    };
    AppHost host(silent, plugins, std::move(options));
    ScriptOptions of_script = script_options(arguments, train_as, silent);
    of_script.sandboxed = lua_memory;
    Script script(host, of_script);
    const ScriptText text = read_script(arguments.scripts().front());
    host.set_script(text);
    script.run(text);
  } catch (...) {
  }
  ::_exit(0);
}

// Starts the processes that --processes asks for. Returns the exit code if they were started, or
// refused before that; nothing if this process goes on.
std::optional<int> as_processes(const ScriptArguments& arguments, const std::string& train_as,
                                Output& output) {
  const bool starts = arguments.processes.processes > 1 && !launched();
  // A script from standard input can be read once.
  if (starts && arguments.scripts().front() != "-") {
    const pid_t copy = fork_tied(SIGKILL);
    if (copy == 0) check_in_copy(arguments, train_as, output);
    int status = 0;
    if (copy > 0 && ::waitpid(copy, &status, 0) == copy && WIFEXITED(status) &&
        WEXITSTATUS(status) != 0)
      return WEXITSTATUS(status);
  }
  return start_processes(arguments.processes, output);
}

struct CompareArguments : ScriptArguments {
  std::vector<std::string> compared;
  std::vector<std::string> scripts() const override { return compared; }
};

// Runs the command compare: each mw.train of one or two scripts gives one of the two experiments.
int run_compared(const CompareArguments& arguments, Output& output) {
  if (const auto code = as_processes(arguments, "compare", output)) return *code;
  stop_on_signals();
  const IfStuck if_stuck([&output](const Error& error) { end_stuck(error, output); });
  PluginRegistry plugins = registry_of(arguments);
  AppHost host(output, plugins, arguments.host);
  Joined joined(arguments.processes, plugins, output);
  host.set_processes(joined.processes());
  const ScriptOptions options = script_options(arguments, "compare", output);
  // kept, as functions of the first one are called to the end
  std::vector<std::unique_ptr<Script>> scripts;
  return joined.run([&] {
    for (const std::string& file : arguments.compared) {
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

// Adds the options for starting a script again.
void add_restarts(CLI::App& run, ScriptArguments& arguments) {
  Restarts& a = arguments.restarts;
  CLI::Option* most = run.add_option(
      "--max-restarts", a.most,
      "start the script again after a run that failed, so many times at most; a training with a "
      "checkpoint goes on from its last one");
  most->check(CLI::Range(0, 1 << 20))->type_name("N");
  run.add_option("--restart-with", a.settings,
                 "a --set for the restarts only, such as a plan for fewer ranks; may be repeated")
      ->allow_extra_args(false)
      ->needs(most)
      ->type_name("KEY=VALUE");
  run.add_option("--launcher", a.launcher,
                 "the command that starts the processes of the run at each start: \"mpirun -n 8\"")
      ->needs(most)
      ->type_name("COMMAND");
  run.add_option("--attempt", arguments.attempt)->group("");
}

// Runs the script in a process of its own, and again after a failure, with the words of this
// command line that are for it.
int run_restarting(const ScriptArguments& arguments, Output& output) {
  check_starts_again("--max-restarts", arguments.script, arguments.restarts.launcher,
                     arguments.processes);
  if (arguments.sandbox.on) {
    throw Error(
        Stage::script, "usage.option", "",
        "--max-restarts: a script in a sandbox starts no processes, and is not started again",
        "leave --max-restarts out");
  }
  std::vector<std::string> words = {"run", arguments.script};
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const std::string& value : values) words.insert(words.end(), {option, value});
  };
  add("--set", arguments.settings);
  add("--plugin-path", arguments.plugin_path);
  if (!arguments.processes.communicator.empty())
    add("--communicator", {arguments.processes.communicator});
  Restarts restarts = arguments.restarts;
  restarts.several = arguments.processes.processes > 1;
  if (restarts.several) add("--processes", {std::to_string(arguments.processes.processes)});
  if (arguments.host.force) words.emplace_back("--force");
  if (arguments.json) words.emplace_back("--json");
  if (arguments.quiet) words.emplace_back("--quiet");
  if (!arguments.words.empty()) words.emplace_back("--");
  words.insert(words.end(), arguments.words.begin(), arguments.words.end());
  output.give_stdout_back();
  return run_with_restarts(restarts, words, [&](const std::string& text) { output.note(text); });
}

int run_as(const ScriptArguments& arguments, const std::string& train_as, Output& output) {
  if (const auto code = as_processes(arguments, train_as, output)) return *code;
  return run_script(arguments, train_as, output);
}

void add_processes(CLI::App& command, ProcessArguments& arguments) {
  command
      .add_option("--processes", arguments.processes,
                  "start so many processes on this machine and share the ranks among them; "
                  "without it, those that mpirun, srun or torchrun started")
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("N");
  command
      .add_option("--communicator", arguments.communicator,
                  "the plugin that connects processes (mpi, nccl), if it is not to be the "
                  "launcher's own; threads: each process runs by itself")
      ->type_name("NAME");
}

// Adds the options for what plans are priced for, which are keys of a script's experiment too.
void add_priced_for(CLI::App& command, ScriptArguments& arguments) {
  command
      .add_option(
          "--cluster", arguments.cluster,
          "price it for this cluster (a name of clusters/, or a file), not for this machine")
      ->type_name("NAME");
  command.add_option("--nodes", arguments.nodes, "number of nodes of the cluster")
      ->check(CLI::Range(1, 1 << 24))
      ->needs("--cluster");
  command
      .add_option("--stack", arguments.stack,
                  "the software on the cluster: megatron-core, fsdp2, …; left out it is plain, "
                  "without flash attention")
      ->type_name("NAME");
}

const CommandOf<ScriptArguments> run_command{
    {"run", 10, "run a script and its trainings", Command::scripted | Command::joins},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/quickstart.lua --set steps=20");
      add_common(command, a);
      add_restarts(command, a);
      add_processes(command, a.processes);
      add_force(command, a);
    },
    [](const ScriptArguments& a, Output& output) {
      if (!a.restarts.wanted()) return run_as(a, "train", output);
      // throws under a launcher, as each start has processes of its own
      left_to_first("--max-restarts", a.processes);
      return run_restarting(a, output);
    }};

const CommandOf<ScriptArguments> plan_command{
    {"plan", 20,
     "run a script with every mw.train turned into mw.plan: resolve and predict, no training",
     Command::scripted},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/quickstart.lua --set plan[2].ways=2");
      add_common(command, a);
      command.add_flag(
          "--program", a.host.programs,
          "list the program too: every instruction that the engine runs and the simulator prices");
      command.add_flag(
          "--braids", a.host.braids,
          "draw the braids too: how a stage interleaves the works of a group (0F3+1B1), "
          "priced");
      command.add_option("--braids-svg", a.braids_svg, "write that drawing as an SVG")
          ->type_name("FILE");
      command.add_flag(
          "--placements", a.host.placements,
          "list the parameters too: who holds what, by placement and shape on each class of ranks");
      command
          .add_option(
              "--diff", a.host.diff,
              "show what this pass of the plan changes too: the program before and after it, "
              "bytes, peak memory and step of both, and whether they are proved")
          ->type_name("PASS");
      command.add_flag(
          "--by-strategy", a.host.by_strategy,
          "show what each of the plan's strategies adds too, one after the other: what "
          "it sends, holds and takes");
      command
          .add_option("--html", a.html,
                      "write a page too: the mesh and who holds what, the timeline, memory over "
                      "time")
          ->type_name("FILE");
      command
          .add_option(
              "--trace", a.plan_trace,
              "write a Chrome trace too: the predicted step, with ops, transfers and memory")
          ->type_name("FILE");
      command.add_flag(
          "--full", a.host.full,
          "show each plan whole; without it a script's plans behind the first have a line each "
          "where there are more than two");
      command.add_flag(
          "--must-fit", a.host.must_fit,
          "exit with 3 if a plan does not fit its memory, or if it is not known whether it fits");
      command
          .add_option("--what-if", a.what_ifs,
                      "plan and price it too with a value changed: 'node.bandwidth x=0.5,2' by "
                      "factors, 'batch=512,1024' by values; may be repeated")
          ->allow_extra_args(false)
          ->type_name("KNOB=VALUES");
      add_priced_for(command, a);
    },
    [](const ScriptArguments& a, Output& output) { return run_script(a, "plan", output); }};

const CommandOf<ScriptArguments> search_command{
    {"search", 30,
     "run a script with every mw.train turned into mw.search: the best plans for its "
     "model on a cluster, and why",
     Command::scripted},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/search.lua --set batch=512");
      add_common(command, a);
      command
          .add_option(
              "--html", a.html,
              "write a page too: the plans by time and memory, and which none beats in both")
          ->type_name("FILE");
      command
          .add_option("--as", a.host.search_as,
                      "print the recommended plan as flags of Megatron-LM or as TOML of torchtitan "
                      "too, and what of it they cannot express")
          ->check(CLI::IsMember({"megatron", "torchtitan"}))
          ->type_name("SOFTWARE");
      add_priced_for(command, a);
    },
    [](const ScriptArguments& a, Output& output) { return run_script(a, "search", output); }};

const CommandOf<ScriptArguments> verify_command{
    {"verify", 40,
     "run a script with every mw.train turned into mw.verify: compare with one rank in "
     "float64",
     Command::scripted | Command::joins},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/quickstart.lua");
      add_common(command, a);
      add_processes(command, a.processes);
      add_force(command, a);
    },
    [](const ScriptArguments& a, Output& output) { return run_as(a, "verify", output); }};

const CommandOf<ScriptArguments> prove_command{
    {"prove", 50,
     "run a script with every mw.train turned into mw.prove, and what it plans proved: "
     "follow each instruction of its programs, at full size, and refuse (exit 3) what one "
     "rank would not compute",
     Command::scripted},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/quickstart.lua");
      add_common(command, a);
      command.add_flag("--strict", a.host.strict,
                       "suppose a backend of one stream, whose collectives begin when all ranks "
                       "have come to them, and refuse what could not be tried of an op");
    },
    [](const ScriptArguments& a, Output& output) { return run_script(a, "prove", output); }};

const CommandOf<ScriptArguments> logits_command{
    {"logits", 60,
     "run a script with every mw.train turned into the forward part on its first batch: "
     "tokens and logits into a file, to compare them with another program's",
     Command::scripted},
    [](CLI::App& command, ScriptArguments& a) {
      add_script(command, a, "scripts/quickstart.lua -o logits.safetensors");
      add_common(command, a);
      command.add_option("-o", a.host.logits, "the file (safetensors)")
          ->type_name("FILE")
          ->required();
    },
    [](const ScriptArguments& a, Output& output) { return run_script(a, "logits", output); }};

const CommandOf<CompareArguments> compare_command{
    {"compare", 80,
     "run two scripts, or one with two mw.train, compare the two experiments, and show the "
     "first op at which they differ, and whether rounding explains it",
     Command::scripted | Command::joins},
    [](CLI::App& command, CompareArguments& a) {
      command.add_option("SCRIPT", a.compared, "experiment scripts (Lua)")
          ->required()
          ->expected(1, 2);
      add_settings(command, a);
      add_quiet(command, a);
      add_sandbox(command, a.sandbox);
      command.footer("Example: meshwright compare scripts/quickstart.lua scripts/mine.lua");
      add_processes(command, a.processes);
      add_force(command, a);
      add_common(command, a);
    },
    run_compared};

}  // namespace
}  // namespace mw
