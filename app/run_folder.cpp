// Writes the files of a run folder, all but output.txt whole or not at all.
#include "app/run_folder.h"

#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "app/output.h"
#include "common/files.h"
#include "lua/script.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/plugin.h"
#include "predict/device.h"
#include "record/hdf5_file.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr const char* files_of_folder[] = {"script.lua",   "experiment.json", "plan.txt",
                                           "machine.json", "output.txt",      "result.json"};

[[noreturn]] void fail(const fs::path& file, int reason) {
  throw Error(Stage::run, "file.write", "log",
              fmt::format("{}: cannot write it: {}", file.string(),
                          std::generic_category().message(reason)),
              "name a folder that you may write to");
}

void write_file(const fs::path& file, const std::string& text) {
  if (const int reason = replace_whole(file, text); reason != 0) fail(file, reason);
}

}  // namespace

void RunFolder::check(const RunOutputs& outputs) {
  if (outputs.folder.empty() || outputs.overwrite) return;
  const fs::path folder(outputs.folder);
  std::error_code error;
  if (fs::exists(outputs.log, error)) return;  // a run's folder: its run file says whose
  for (const char* name : files_of_folder) {
    if (!fs::exists(folder / name, error)) continue;
    throw Error(Stage::options, "log.foreign", "log",
                fmt::format("log: cannot write the run folder {}: {} is there, and no run file",
                            outputs.folder, name),
                "name another folder, or write overwrite = true");
  }
}

RunFolder::RunFolder(const RunOutputs& outputs, const Json& resolved, bool goes_on,
                     const RunOrigin& origin, const std::string& plan)
    : folder_(origin.log_stays ? "" : outputs.folder), loaded_(origin.loaded) {
  if (folder_.empty()) return;
  const fs::path folder(folder_);
  std::error_code ignored;
  fs::remove(folder / "result.json", ignored);
  write_file(folder / "script.lua", origin.script);
  if (loaded_ != nullptr) write_loaded(folder_, *loaded_);
  write_file(folder / "experiment.json", json_text(resolved, 1) + "\n");
  write_file(folder / "plan.txt", plan);
  write_file(folder / "machine.json", json_text(origin.machine, 1) + "\n");
  if (is_named(STDERR_FILENO, folder / "output.txt")) return;  // stderr goes to output.txt already
  if (!goes_on || !fs::exists(folder / "output.txt", ignored))
    write_file(folder / "output.txt", "");
  check_may_write(folder / "output.txt", "log");  // it may be a link
  said_ = std::fopen((folder / "output.txt").c_str(), "ae");
  if (said_ == nullptr) fail(folder / "output.txt", errno);
}

RunFolder::~RunFolder() {
  if (said_ == nullptr) return;
  const bool lost = std::ferror(said_) != 0;
  if (std::fclose(said_) != 0 || lost)
    Output(/*json=*/false).warn(folder_ + "/output.txt could not be written to its end");
}

void RunFolder::say(const std::string& text) {
  if (said_ == nullptr || text.empty()) return;
  std::fputs(text.c_str(), said_);
  if (text.back() != '\n') std::fputc('\n', said_);
  std::fflush(said_);
}

void RunFolder::finish(const Json& result) {
  if (folder_.empty()) return;
  // again, as the script's functions may have loaded more
  if (loaded_ != nullptr) write_loaded(folder_, *loaded_);
  Json line = result;
  line.erase("text");
  write_file(fs::path(folder_) / "result.json", json_text(line) + "\n");
}

void write_loaded(const std::string& folder, const std::map<std::string, std::string>& loaded) {
  for (const auto& [name, text] : loaded) {
    const bool own = std::count(std::begin(files_of_folder), std::end(files_of_folder), name) > 0;
    if (own) continue;
    const fs::path file = fs::path(folder) / name;
    check_may_write(file, "log");
    std::error_code error;
    fs::create_directories(file.parent_path(), error);
    write_file(file, text);
  }
}

Json machine_json(const Plan& plan, PluginRegistry& plugins) {
  Json machine;
  utsname system{};
  if (::uname(&system) == 0) {
    machine["host"] = system.nodename;
    machine["os"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  machine["cpu"] = cpu_model();
  machine["cores"] = core_count();
  machine["instruction_set"] = at::get_cpu_capability();
  machine["memory"] = this_device().memory;
  machine["versions"] = {{"meshwright", MESHWRIGHT_VERSION},
                         {"torch", TORCH_VERSION},
                         {"hdf5", hdf5_version().running},
                         {"lua", lua_release()},
                         {"toolchain", toolchain}};
  machine["plugins"] = Json::object();
  const std::vector<std::string> there = plugins.names();
  for (const StrategyChoice& choice : plan.request.strategies) {
    // A script's own strategy has no version. A plugin that was loaded by its file's path may not
    // be in the registry's list.
    if (std::find(there.begin(), there.end(), choice.name) != there.end())
      machine["plugins"][choice.name] = plugins.plugin(choice.name).version;
  }
  return machine;
}

std::string files_text(const RunOutputs& outputs) {
  std::string text;
  if (!outputs.folder.empty()) {
    text = fmt::format("  run folder: {}\n", outputs.folder);
  } else if (!outputs.log.empty()) {
    text = fmt::format("  run file: {}\n", outputs.log);
  }
  if (!outputs.tensorboard.empty()) text += fmt::format("  events: {}\n", outputs.tensorboard);
  return text.empty() ? "" : "\n" + text;
}

}  // namespace mw
