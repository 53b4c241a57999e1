// Starts, joins and ends the processes of a command.
#include "app/joined.h"

#include <fmt/format.h>
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include <exception>
#include <optional>
#include <utility>

#include "app/command.h"
#include "meshwright/carrier.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/pack.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "script/read_experiment.h"
#include "transport/launched.h"

namespace mw {

namespace {

// Raises the processes' timeout while they wait for the first process, which may search, write its
// last checkpoint or export for long. If it dies, the carrier says so.
class PatienceForResult {
 public:
  explicit PatienceForResult(Processes& processes)
      : processes_(processes), before_(processes.timeout()) {
    processes.set_timeout(std::max<Processes::Milliseconds>(before_, patience_for_first));
  }
  ~PatienceForResult() { processes_.set_timeout(before_); }
  PatienceForResult(const PatienceForResult&) = delete;
  PatienceForResult& operator=(const PatienceForResult&) = delete;

 private:
  Processes& processes_;
  const Processes::Milliseconds before_;
};

// How messages name a verb: "mw.train".
std::string words_for(const std::string& verb) {
  return "mw." + verb;
}

struct ReadExperiment {  // an experiment, as one process reads it
  std::string hash, resolved;
  std::string of_run;  // the keys that are not in the hash, such as checkpoint
};
template <class Pack>
void members(Pack& pack, ReadExperiment& given) {
  pack(given.hash, given.resolved, given.of_run);
}

ReadExperiment given_of(const RunRequest& asked) {
  Json of_run = Json::object();
  for (const std::string& key : keys_of_run())
    if (asked.resolved.contains(key)) of_run[key] = asked.resolved[key];
  return {asked.hash, json_text(asked.resolved), json_text(of_run)};
}

Problem difference_of(const Processes& processes, int process, const std::string& verb,
                      const std::string& first, const std::string& given) {
  const Difference d = first_difference(Json::parse(first), Json::parse(given));
  const std::string what =
      d.key.empty()
          ? "its data, its weights, or what its functions return differ"
          : fmt::format("{} is {} on {} and {} on {}", d.key, json_text(d.other),
                        processes.name_of(process), json_text(d.one), processes.name_of(0));
  return {Stage::run, "process.apart", d.key,
          fmt::format("{} differs between {} and {}: {}", words_for(verb),
                      processes.name_of(process), processes.name_of(0), what),
          "a script must give the same tables in every process: no time of day, no random numbers "
          "of the machine's own, the same files on each host"};
}

}  // namespace

Difference first_difference(const Json& one, const Json& other, const std::string& key) {
  if (one == other) return {};
  if (one.is_object() && other.is_object()) {
    for (const auto& [name, value] : one.items()) {
      const Json beside = other.contains(name) ? other[name] : Json();
      if (value != beside) return first_difference(value, beside, key_in(key, name));
    }
    for (const auto& [name, value] : other.items())
      if (!one.contains(name)) return {key_in(key, name), Json(), value};
  }
  if (one.is_array() && other.is_array()) {
    for (std::size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      if (one[i] != other[i])
        return first_difference(one[i], other[i], fmt::format("{}[{}]", key, i + 1));
    }
  }
  return {key, one, other};
}

void agree_on(Processes& processes, const std::string& verb, std::vector<Experiment>& experiments) {
  std::vector<ReadExperiment> own;
  for (auto& experiment : experiments) {
    experiment.processes = &processes;
    own.push_back(given_of(experiment));
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(experiment.timeout * 1e3));
    processes.set_timeout(std::max(processes.timeout(), timeout));
  }
  const std::string what = words_for(verb);
  const std::vector<std::string> all = processes.gather(what, pack(own));
  for (std::size_t p = 1; p < all.size(); ++p) {
    auto given = unpack<std::vector<ReadExperiment>>(all[p]);
    given.resize(own.size(), ReadExperiment{"", "{}", "{}"});
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto compare = [&](bool same, const std::string ReadExperiment::*part) {
        if (same) return;
        processes.refuse(
            {difference_of(processes, static_cast<int>(p), verb, own[i].*part, given[i].*part)});
      };
      compare(given[i].hash == own[i].hash, &ReadExperiment::resolved);
      compare(given[i].of_run == own[i].of_run, &ReadExperiment::of_run);
    }
  }
  processes.broadcast(what, "");
}

Json result_of_first(Processes& processes, const std::string& verb, const Json& result) {
  std::string bytes;
  if (processes.first()) Json::to_cbor(result, bytes);
  const PatienceForResult patient(processes);
  bytes = processes.broadcast("the result of " + words_for(verb), bytes);
  return Json::from_cbor(bytes);
}

namespace {

std::optional<Launch> launch_of(const ProcessArguments& arguments) {
  if (arguments.communicator == by_itself) return std::nullopt;
  auto launch = launched();
  if (launch && !arguments.communicator.empty()) launch->communicator = arguments.communicator;
  return launch;
}

// The hint for a communicator's name that was not found.
std::string other_than(const std::string& name, const Problem& problem, PluginRegistry& plugins) {
  if (problem.code == "plugin.left_out") return problem.hint;
  std::vector<std::string> known;
  for (const Registration* one : plugins.all(Kind::communicator)) known.emplace_back(one->name);
  known.emplace_back(by_itself);
  const std::string near = did_you_mean(name, known);
  return near.empty() ? fmt::format("there are {}; others by --plugin-path", join(known)) : near;
}

// Finds the communicator that --communicator names.
const Registration& communicator_given(const std::string& name, PluginRegistry& plugins) {
  try {
    return plugins.find(Kind::communicator, name);
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    throw Error(Stage::script, "usage.value", "",
                fmt::format("--communicator {}: {}", name, problem.message),
                other_than(name, problem, plugins));
  }
}

// Finds the communicator that goes with the launcher.
const Registration& communicator_of(const Launch& launch, PluginRegistry& plugins) {
  try {
    return plugins.find(Kind::communicator, launch.communicator);
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    const std::string how = other_than(launch.communicator, problem, plugins);
    throw Error(Stage::environment, "launch.communicator", "",
                fmt::format("{} started {}, and there is nothing that connects them: {}", launch.by,
                            plural(launch.processes, "process"), problem.message),
                fmt::format("{}; --communicator names another one, --communicator {} means a run "
                            "in each process by itself",
                            how, by_itself));
  }
}

std::unique_ptr<Carrier> carrier_of(const Launch& launch, bool given, PluginRegistry& plugins) {
  const Registration* found =
      given ? &communicator_given(launch.communicator, plugins) : &communicator_of(launch, plugins);
  Problems problems;
  const Values values = found->options().read(Json::object(), "communicator", problems);
  problems.throw_if_any();
  auto carrier = make<Carrier>(*found, values);
  if (carrier->processes() != launch.processes) {
    const int there = carrier->processes();
    carrier->end(false);
    throw Error(Stage::environment, "launch.apart", "",
                fmt::format("{} started {}, and {} finds {}", launch.by,
                            plural(launch.processes, "process"), found->name, there),
                launch.by == "srun"
                    ? "srun --mpi=pmix, or --mpi=pmi2: srun --mpi=list says what it has"
                    : "start them with the mpirun of the MPI that it was built with");
  }
  return carrier;
}

// Prints an error's problems and returns its exit code.
int tell(std::exception_ptr error, Output& output) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const Error& known) {
    output.error(known);
    const bool stopped = stop_requested() || known.problems().front().code == "run.stopped";
    return stopped ? exit_interrupted : known.exit_code();
  } catch (const std::exception& other) {
    output.error(Error(problem_of(other)));
    return exit_code_of(Stage::run);
  }
}

// The command line's words without --processes. Words after "--" are the script's, and stay.
std::vector<std::string> without_processes(const std::vector<std::string>& words) {
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {
      rest.insert(rest.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      break;
    }
    if (words[i] == "--processes") {
      ++i;
    } else if (!words[i].starts_with("--processes=")) {
      rest.push_back(words[i]);
    }
  }
  return rest;
}

}  // namespace

bool is_silent_process(const ProcessArguments& arguments) {
  const auto launch = launch_of(arguments);
  return launch && launch->process > 0;
}

bool left_to_first(const std::string& command, const ProcessArguments& arguments) {
  const auto launch = launch_of(arguments);
  if (!launch) return false;
  std::string hint;
  if (command == "sweep") hint = "start it by itself: it starts a process for each of its cells";
  if (command == "repl") hint = "start it by itself";
  if (command == "--max-restarts")
    hint = "meshwright run SCRIPT --max-restarts N --launcher \"mpirun -n 8\"";
  if (!hint.empty()) {
    throw Error(Stage::script, "launch.command", "",
                fmt::format("{} is for one process, and {} started {}", command, launch->by,
                            launch->processes),
                hint);
  }
  return launch->process > 0;
}

std::optional<int> start_processes(const ProcessArguments& arguments, Output& output) {
  if (arguments.processes == 0) return std::nullopt;
  if (arguments.processes > 1 && arguments.communicator == by_itself) {
    throw Error(Stage::script, "usage.value", "",
                fmt::format("--communicator {}: {} processes that nothing connects would each run "
                            "all of the script, beside each other",
                            by_itself, arguments.processes),
                fmt::format("leave --communicator out, so that --processes {} share the ranks; or "
                            "leave --processes out: ranks are threads of one process",
                            arguments.processes));
  }
  if (const auto launch = launched()) {
    if (launch->processes == arguments.processes) return std::nullopt;
    throw Error(Stage::plan, "launch.processes", "",
                fmt::format("--processes {}, and {} started {}", arguments.processes, launch->by,
                            launch->processes),
                "leave --processes out: it starts processes itself");
  }
  refuse_lone_member();
  if (arguments.processes == 1) return std::nullopt;
  output.give_stdout_back();  // the started processes keep stdout apart for --json themselves
  return run_by_mpirun(arguments.processes, without_processes(arguments.words));
}

Joined::Joined(const ProcessArguments& arguments, PluginRegistry& plugins, Output& output)
    : output_(output) {
  const auto launch = launch_of(arguments);
  if (!launch) {
    if (arguments.communicator == by_itself) return;
    refuse_lone_member();
    if (arguments.communicator.empty()) return;
    communicator_given(arguments.communicator, plugins);
    throw Error(Stage::environment, "launch.none", "",
                fmt::format("--communicator {}: no launcher has started this process",
                            arguments.communicator),
                fmt::format("mpirun -n 8 meshwright run …, or --processes 8"));
  }
  processes_ = std::make_unique<JoinedProcesses>(
      carrier_of(*launch, !arguments.communicator.empty(), plugins));
  if (const char* file = std::getenv(joined_variable)) std::ofstream{file};
}

int Joined::run(const std::function<int()>& command) {
  if (processes_ == nullptr) return command();
  std::exception_ptr own;
  int code = 0;
  try {
    code = command();
  } catch (...) {
    own = std::current_exception();
  }
  return processes_->leave(std::move(own), code, [this](std::exception_ptr error) {
    return tell(std::move(error), output_);
  });
}

}  // namespace mw
