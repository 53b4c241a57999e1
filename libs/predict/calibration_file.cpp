// Finds this machine's calibration, and refuses one that is another's.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>

#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "predict/calibration.h"

namespace mw {
namespace {

const char* named_by_environment() {
  const char* name = std::getenv("MESHWRIGHT_CALIBRATION");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

}  // namespace

std::filesystem::path calibration_file() {
  if (const char* name = named_by_environment()) return name;
  return cache_folder() / "calibration.json";
}

std::string other_machine(const Calibration& c) {
  if (c.cpu != cpu_model() || c.cores != core_count()) {
    return fmt::format("it is of {} of {}, this machine has {} of {}", plural(c.cores, "core"),
                       c.cpu, core_count(), cpu_model());
  }
  if (c.version != version_line())
    return fmt::format("it is of {}, this is {}", c.version, version_line());
  if (c.kernels != kernels_key())
    return fmt::format("it is of other kernels: {}; here: {}", c.kernels, kernels_key());
  return "";
}

std::shared_ptr<const Calibration> read_calibration(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return nullptr;
  auto calibration = std::make_shared<Calibration>();
  try {
    *calibration = Calibration::from_json(Json::parse(stream));
  } catch (const std::exception& error) {
    throw Error(Stage::environment, "calibration.broken", "",
                fmt::format("{} is no calibration: {}", file.string(), error.what()),
                "measure anew: meshwright calibrate");
  }
  if (const std::string why = other_machine(*calibration); !why.empty()) {
    throw Error(Stage::environment, "calibration.other-machine", "",
                fmt::format("the calibration {} is not of this machine: {}", file.string(), why),
                "measure this one: meshwright calibrate");
  }
  return calibration;
}

const FoundCalibration& this_calibration() {
  static const FoundCalibration found = [] {
    FoundCalibration made;
    const std::filesystem::path file = calibration_file();
    const bool named = named_by_environment() != nullptr;
    try {
      made.calibration = read_calibration(file);
    } catch (const Error& error) {
      if (named) throw;
      const Problem& problem = error.problems().front();
      made.why = fmt::format("{}, so it is not used; {}", problem.message, problem.hint);
    }
    if (named && made.calibration == nullptr) {
      throw Error(Stage::environment, "calibration.missing", "",
                  fmt::format("there is no calibration {}", file.string()),
                  "MESHWRIGHT_CALIBRATION names it; meshwright calibrate -o FILE makes one");
    }
    return made;
  }();
  return found;
}

}  // namespace mw
