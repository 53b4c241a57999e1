// Runs `meshwright calibrate --quick` before the first prediction of a machine that has no
// calibration, and keeps its file in the cache.
#include "app/first_use.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/interrupt.h"
#include "predict/calibration.h"
#include "predict/shared_cores.h"

namespace mw {
namespace {

std::function<void(const std::string&)>& told() {
  static std::function<void(const std::string&)> say;
  return say;
}

bool can_keep(const std::filesystem::path& file) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  return !error && ::access(file.parent_path().c_str(), W_OK | X_OK) == 0;
}

void measure_first_use() {
  if (first_use_left_out() || this_calibration().calibration || first_use_calibration()) return;
  const std::filesystem::path file = first_use_file();
  const auto tell = [](const std::string& text) {
    if (told()) told()(text);
  };
  const auto by_roofline = [&](const std::string& why) {
    tell(fmt::format("predictions for this machine go by its roofline, as it is not measured: {}",
                     why));
  };
  if (!can_keep(file))
    return by_roofline(fmt::format("{} cannot be written (XDG_CACHE_HOME names another folder)",
                                   file.parent_path().string()));
  tell(
      "measuring this machine for predictions, once and for some seconds; meshwright calibrate "
      "does it better");
  ProcessStart start;
  start.program = "/proc/self/exe";
  start.command = {"meshwright", "calibrate", "--quick", "--json", "-o", file.string()};
  start.variables = {"MESHWRIGHT_FIRST_USE=off"};
  start.output = "/dev/null";
  start.own_group = start.fresh_signals = true;
  start.tied_by = SIGKILL;
  try {
    const pid_t process = start_process(start);
    int status = 0;
    while (!child_ended(process, status)) {
      if (stop_requested()) ::kill(-process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (status != 0 && !stop_requested())
      by_roofline("meshwright calibrate --quick has failed, and says why if you start it");
  } catch (const std::exception& error) {
    by_roofline(error.what());
  }
  throw_if_stopped();
}

}  // namespace

void tell_first_use(std::function<void(const std::string&)> say) {
  told() = std::move(say);
}

const Machine& measured_machine() {
  [[maybe_unused]] static const bool once = (measure_first_use(), true);
  return this_machine();
}

}  // namespace mw
