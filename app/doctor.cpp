// `meshwright doctor`: looks at what this machine has (CPU, libraries, plugins, devices, folders
// that can be written) and says what to mend.
#include <ATen/Version.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "app/command.h"
#include "app/doctor.h"
#include "common/core_meter.h"
#include "launch/sandbox/sandbox.h"
#include "lua/script.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/platform.h"
#include "predict/calibration.h"
#include "record/hdf5_file.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

using Verdict = Finding::Verdict;

Finding check_hdf5() {
  const Hdf5Version version = hdf5_version();
  if (version.compatible) return {"HDF5", Verdict::ok, version.running, ""};
  return {"HDF5", Verdict::failed, version.running,
          fmt::format("built with {}: rebuild with ./meshwright build", version.built)};
}

Finding check_lua() {
  const fs::path init = lua_library() / "meshwright/init.lua";
  const bool there = fs::exists(init);
  return {"Lua", there ? Verdict::ok : Verdict::failed,
          fmt::format("{}, library {}", lua_release(), init.string()),
          there ? "" : "the file is missing: build or install again"};
}

std::vector<Finding> check_plugins(PluginRegistry& plugins) {
  std::vector<Finding> checks;
  std::vector<std::string> good;
  for (const PluginFile& plugin : plugins.files()) {
    if (plugin.problem.empty()) {
      good.push_back(plugin.name());
    } else {
      checks.push_back({"plugin " + plugin.name(), Verdict::warning,
                        plugin.file.string() + ": " + plugin.problem, plugin.hint});
    }
  }
  checks.insert(checks.begin(), {"plugins", good.empty() ? Verdict::failed : Verdict::ok,
                                 good.empty() ? "none" : join(good),
                                 good.empty() ? "name their folder with --plugin-path" : ""});
  return checks;
}

// The devices that ranks can compute on here, and how to get those that this build lacks.
Finding check_devices(PluginRegistry& plugins) {
  Finding finding{"devices", Verdict::ok, "cpu", ""};
  std::string others;
  for (const Registration* one : plugins.all(Kind::device)) {
    try {
      const auto platform = make_by_default<Platform>(*one);
      if (platform->type() == at::kCPU) continue;
      platform->load();
      if (const int count = platform->count(); count > 0) {
        finding.found += fmt::format(", {} of {}", count, one->name);
        continue;
      }
      const std::string why = platform->why_none();
      finding.verdict = Verdict::warning;
      others +=
          fmt::format("; 0 of {} that can be used{}{}", one->name, why.empty() ? "" : ": ", why);
      const std::string needs = platform->needs();
      if (!needs.empty()) finding.hint += (finding.hint.empty() ? "" : "; ") + needs;
    } catch (const std::exception& error) {
      const Problem problem = problem_of(error);
      others += fmt::format("; none of {}: {}{}", one->name, problem.message,
                            problem.hint.empty() ? "" : fmt::format(" ({})", problem.hint));
    }
  }
  finding.found += others;
  return finding;
}

Finding check_writable_folder(const std::string& name, const fs::path& folder) {
  // The nearest folder that exists decides whether the rest can be made.
  fs::path there = folder;
  while (!fs::exists(there) && there.has_parent_path() && there != there.parent_path())
    there = there.parent_path();
  const bool ok = ::access(there.c_str(), W_OK | X_OK) == 0;
  return {name, ok ? Verdict::ok : Verdict::warning, folder.string(),
          ok ? "" : there.string() + " is not writable"};
}

Finding check_openmp() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  const bool passive =
      policy != nullptr && (std::string(policy) == "PASSIVE" || std::string(policy) == "passive");
  return {
      "OpenMP waits", passive ? Verdict::ok : Verdict::warning,
      policy == nullptr ? "default (spinning)" : policy,
      passive
          ? ""
          : "set OMP_WAIT_POLICY=PASSIVE: threads that spin slow ranks down (./meshwright does)"};
}

// Whether a script that nobody vouches for can run here.
Finding check_sandbox() {
  const auto why = why_no_sandbox();
  if (!why) return {"sandbox", Verdict::ok, "bubblewrap makes its namespaces", ""};
  const Problem& problem = why->problems().front();
  return {"sandbox", Verdict::warning, problem.message, problem.hint};
}

// Whether a run would have the cores to itself now.
Finding check_busy() {
  constexpr double seconds = 0.5;
  const double others = others_cores_during(seconds);
  const int cores = core_count();
  if (std::isnan(others))
    return {"busy", Verdict::ok, "not known: /proc/stat does not say what the cores do", ""};
  const std::string found =
      fmt::format("other programs have {:.1f} of {} now", others, plural(cores, "core"));
  if (!are_busy(others, cores)) return {"busy", Verdict::ok, found, ""};
  return {"busy", Verdict::warning, found,
          "wall seconds of runs are theirs too; runs say so, and sweeps run such cells again"};
}

// What predictions for this machine rest on.
Finding check_calibration() {
  constexpr const char* hint = "meshwright calibrate, when the machine does nothing else";
  const auto text = [](const char* how, const Calibration& c) {
    return fmt::format(
        "{} {}, its own mixes {:.0f} % off{}", how, c.date.substr(0, 10), 100 * c.step_error,
        are_busy(c.others_cores, core_count())
            ? fmt::format("; other programs had {:.1f} cores meanwhile", c.others_cores)
            : "");
  };
  try {
    const FoundCalibration& found = this_calibration();
    if (found.calibration) {
      const bool busy = are_busy(found.calibration->others_cores, core_count());
      return {"calibration", busy ? Verdict::warning : Verdict::ok, text("of", *found.calibration),
              busy ? hint : ""};
    }
    if (!found.why.empty()) return {"calibration", Verdict::warning, found.why, hint};
  } catch (const Error& error) {  // the environment names a file that is no calibration
    const Problem& problem = error.problems().front();
    return {"calibration", Verdict::failed, problem.message, problem.hint};
  }
  if (const auto first = first_use_calibration())
    return {"calibration", Verdict::ok, text("none; measured briefly", *first), hint};
  return {"calibration", Verdict::warning,
          "none: this machine is measured briefly before its first prediction", hint};
}

std::string cores_text() {
  const int cores = core_count(), all = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (cores >= all) return plural(cores, "core");
  return fmt::format("{} of {} cores: affinity or a control group leaves this process no more",
                     cores, all);
}

struct DoctorArguments : Arguments {
  bool cluster = false;
  std::string device;
};

std::vector<Finding> check_machine(PluginRegistry& plugins) {
  std::vector<Finding> checks = {
      {"program", Verdict::ok, version_line() + ", " + toolchain, ""},
      {"machine", Verdict::ok, fmt::format("{}, {}", cpu_model(), cores_text()), ""},
      {"CPU kernels", Verdict::ok, at::get_cpu_capability(), ""},
      check_hdf5(),
      check_lua(),
      check_openmp(),
      check_sandbox(),
      check_busy(),
      check_calibration()};
  for (Finding& check : check_plugins(plugins)) checks.push_back(std::move(check));
  checks.push_back(check_devices(plugins));
  checks.push_back(check_writable_folder("run files", fs::current_path() / "runs"));
  checks.push_back(check_writable_folder("cache", cache_folder()));
  return checks;
}

// Prints the findings. Returns 5 if something is missing.
int print(const std::vector<Finding>& checks, Output& output) {
  static constexpr const char* words[] = {"ok", "warning", "failed"};
  TextTable table({"", "", ""});
  bool failed = false;
  for (const Finding& check : checks) {
    const auto verdict = static_cast<int>(check.verdict);
    failed = failed || check.verdict == Verdict::failed;
    output.result({{"kind", "check"},
                   {"name", check.name},
                   {"status", words[verdict]},
                   {"found", check.found},
                   {"hint", check.hint}});
    table.add({words[verdict], check.name, check.found});
    if (!check.hint.empty()) table.add({"", "", "-> " + check.hint});
  }
  if (!output.json()) output.text(table.text());
  return failed ? exit_code_of(Stage::environment) : 0;
}

int doctor(const DoctorArguments& arguments, Output& output) {
  PluginRegistry plugins = registry_of(arguments);
  if (!arguments.cluster) return print(check_machine(plugins), output);
  Joined joined(arguments.processes, plugins, output);
  if (joined.processes() == nullptr)
    throw Error(Stage::environment, "launch.alone", "",
                "--cluster compares processes that a launcher has started, and this one is alone",
                "srun --ntasks-per-node=8 meshwright doctor --cluster, or torchrun or mpirun");
  return joined.run(
      [&] { return print(check_cluster(plugins, *joined.processes(), arguments.device), output); });
}

const CommandOf<DoctorArguments> doctor_command{
    {"doctor", 180, "what this machine and installation have, and what they lack", Command::joins},
    [](CLI::App& command, DoctorArguments& a) {
      command.add_flag(
          "--cluster", a.cluster,
          "what would refuse a run of the processes that a launcher has started, one for "
          "each device");
      command
          .add_option(
              "--device", a.device,
              "the kind of devices that --cluster looks for; else the first that can be used")
          ->type_name("NAME");
      command
          .add_option("--communicator", a.processes.communicator,
                      "the plugin that connects processes, if it is not the launcher's own")
          ->type_name("NAME");
      add_common(command, a);
    },
    doctor};

}  // namespace
}  // namespace mw
