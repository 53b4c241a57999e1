// Reads what the command line says of a sandbox, and goes on in one.
#include "app/sandboxed.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>

#include "app/command.h"
#include "common/process.h"
#include "launch/sandbox/sandbox.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/options.h"
#include "transport/launched.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

std::string read_size(std::string& text) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes < std::int64_t{64} << 20) return "write a size of 64MiB or more: 16GiB";
  text = std::to_string(*bytes);
  return "";
}

std::string look_for_folder(std::string& text) {
  std::error_code error;
  return fs::is_directory(text, error) ? "" : "there is no folder " + text;
}

bool is_below(const fs::path& file, const fs::path& folder) {
  return (file / "").string().starts_with((folder / "").string());
}

// What the sandbox lets the script read: its folder with all below it, or the script's file alone
// if the home folder, in which keys lie, is in that folder. Throws Error if the script is a link to
// somewhere else: whoever made the link may have no right to what lies beside its target.
fs::path read_beside(const std::string& script, const std::vector<std::string>& others,
                     Output& output) {
  std::error_code error;
  const fs::path file = fs::canonical(script, error);
  if (error || !fs::is_regular_file(file, error)) return {};
  const fs::path named = fs::path(script).parent_path();
  const fs::path folder = fs::canonical(named.empty() ? "." : named, error);
  // The home folder of the user database counts too, as services and containers often have no HOME.
  const passwd* user = ::getpwuid(::geteuid());
  const char* const homes[] = {std::getenv("HOME"), user == nullptr ? nullptr : user->pw_dir};
  const bool alone = std::any_of(std::begin(homes), std::end(homes), [&](const char* home) {
    return home != nullptr && *home == '/' && is_below(fs::weakly_canonical(home, error), folder);
  });
  const bool named_too = std::any_of(others.begin(), others.end(), [&](const std::string& other) {
    return is_below(file, fs::weakly_canonical(other, error));
  });
  if (!named_too && (alone ? file.parent_path() != folder : !is_below(file, folder))) {
    throw Error(Stage::options, "sandbox.read", "",
                fmt::format("{} is a link to {}: the sandbox does not let the script read there",
                            script, file.string()),
                fmt::format("look at that file first, then: --sandbox-read {}",
                            shell_word(file.parent_path().string())));
  }
  // As it is named: by a link that leads to it, if there is one.
  if (!alone) return fs::absolute(named.empty() ? "." : named);
  output.warn(
      fmt::format("the sandbox reads {} alone, because your home folder is in that folder; "
                  "--sandbox-read FOLDER names others",
                  file.string()));
  return fs::absolute(script);
}

// Loads the platforms of the allowed devices in this process, so that their drivers' files and the
// folders of their libraries are known.
void open_devices(Sandbox& sandbox) {
  PluginRegistry plugins(sandbox.plugins);
  const std::vector<std::string> there = plugins.names();
  for (const std::string& name : sandbox.devices) {
    // A plugin's file must have the name: otherwise all plugins would be opened, and nothing bounds
    // them yet.
    if (std::find(there.begin(), there.end(), name) == there.end())
      throw Error(Stage::script, "usage.value", "",
                  fmt::format("--sandbox-device {}: no plugin's file is named {}.so", name, name),
                  nearest_or_all(name, there));
    try {
      const auto platform = make_by_default<Platform>(plugins.find(Kind::device, name));
      call_plugin({name, ""}, "loaded what its devices need", [&] {
        platform->load();
        for (const std::string& file : platform->files()) sandbox.drives.emplace_back(file);
      });
    } catch (const Error& error) {
      const Problem& problem = error.problems().front();
      throw Error(Stage::script, "usage.value", "",
                  fmt::format("--sandbox-device {}: {}", name, problem.message), problem.hint);
    }
  }
}

Sandbox sandbox_of(const Arguments& arguments, Output& output) {
  const SandboxArguments& given = arguments.sandbox;
  Sandbox sandbox;
  for (const std::string& script : arguments.scripts())
    if (const fs::path path = read_beside(script, given.read, output); !path.empty())
      sandbox.read.push_back(path);
  sandbox.read.insert(sandbox.read.end(), given.read.begin(), given.read.end());
  sandbox.write.assign(given.write.begin(), given.write.end());
  for (const fs::path& folder : PluginRegistry::search_path(arguments.plugin_path))
    sandbox.plugins.push_back(folder);
  for (const fs::path& folder : sandbox.write) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (fs::is_directory(folder, error)) continue;
    throw Error(Stage::options, "file.write", "",
                fmt::format("--sandbox-write {}: this folder cannot be made", folder.string()),
                "name a folder that you may write to");
  }
  sandbox.memory = given.memory;
  sandbox.cpu = given.cpu;
  sandbox.time = given.time;
  sandbox.devices = given.devices;
  open_devices(sandbox);
  return sandbox;
}

void check_alone(const Arguments& arguments) {
  if (arguments.processes.processes <= 1 && !launched()) return;
  throw Error(Stage::script, "usage.option", "",
              "--sandbox: a script in a sandbox runs in one process, which has no network",
              "leave --processes out; ranks are threads of one process");
}

}  // namespace

void SandboxArguments::add_words(std::vector<std::string>& words) const {
  if (asked.empty()) return;
  words.emplace_back("--sandbox");
  for (const std::string& folder : read) words.insert(words.end(), {"--sandbox-read", folder});
  for (const std::string& folder : write) words.insert(words.end(), {"--sandbox-write", folder});
  for (const std::string& name : devices) words.insert(words.end(), {"--sandbox-device", name});
  words.insert(words.end(), {"--sandbox-memory", std::to_string(memory), "--sandbox-time",
                             std::to_string(time)});
  if (cpu > 0) words.insert(words.end(), {"--sandbox-cpu", std::to_string(cpu)});
}

void add_sandbox(CLI::App& command, SandboxArguments& arguments) {
  CLI::Option* on = command.add_flag(
      "--sandbox", arguments.asked,
      "run a script that you do not trust: it reads and writes no other files, sees no other "
      "processes, has no network, and is bounded in memory and time; ends with 5 where there is no "
      "bubblewrap (bwrap) or no user namespaces");
  on->check(CLI::IsMember({"true", "require"}))->group("Sandbox");
  const auto add = [&](const char* name, auto& value, const char* about, const char* type) {
    return command.add_option(name, value, about)->needs(on)->group("Sandbox")->type_name(type);
  };
  const std::function<std::string(std::string&)> looks = look_for_folder, reads = read_size;
  const CLI::Validator folder(looks, ""), bytes(reads, "");
  add("--sandbox-read", arguments.read,
      "a folder that it may read, beside its own and the program's; may be repeated", "FOLDER")
      ->check(folder)
      ->allow_extra_args(false);
  add("--sandbox-write", arguments.write,
      "a folder that it may write: run files, checkpoints, pages; without one it writes nothing; "
      "may be repeated",
      "FOLDER")
      ->allow_extra_args(false);
  add("--sandbox-device", arguments.devices,
      "a device beside \"cpu\" that its ranks may be on, whose driver it then reaches: cuda; may "
      "be repeated",
      "NAME")
      ->allow_extra_args(false);
  add("--sandbox-memory", arguments.memory,
      "how much memory each of its processes may use; 8GiB if left out", "BYTES")
      ->transform(bytes);
  add("--sandbox-cpu", arguments.cpu,
      "seconds that each of its processes may compute; if left out, --sandbox-time on every core",
      "SECONDS")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 32));
  add("--sandbox-time", arguments.time, "seconds that it may run; 3600 if left out", "SECONDS")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 32));
}

void check_sandbox_lets(const Platform& platform) {
  const auto sandbox = inherited_sandbox();
  const std::string name = platform.name();
  if (!sandbox || name == cpu_platform()->name()) return;
  if (std::find(sandbox->devices.begin(), sandbox->devices.end(), name) != sandbox->devices.end())
    return;
  throw Error(Stage::environment, "sandbox.device", "device",
              fmt::format("device: the sandbox keeps the script from devices of {}", quote(name)),
              fmt::format("allow them: --sandbox-device {}; or write device = \"cpu\"", name));
}

std::optional<int> enter_sandbox(Arguments& arguments) {
  SandboxArguments& given = arguments.sandbox;
  try {
    if (const auto inherited = inherited_sandbox()) {
      given.on = true;
      given.memory = inherited->memory;
      bind_process(*inherited);
      return std::nullopt;
    }
    if (given.asked.empty()) return std::nullopt;
    check_alone(arguments);
    Output output(/*json=*/false, arguments.quiet);
    return run_bound(sandbox_of(arguments, output), arguments.processes.words);
  } catch (const Error& error) {
    Output(arguments.json, arguments.quiet).error(error);
    return error.exit_code();
  }
}

}  // namespace mw
