// Gives ranks their devices, and says why there is none.
#include "run/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<const DeviceChoice*> chosen_devices{nullptr};

int count_of(at::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

constexpr const char* elsewhere =
    "write device = \"cpu\", or leave it out; mw.plan needs no device";

}  // namespace

void check_device(at::DeviceType type, const std::function<void()>& load) {
  if (type == at::kCPU || chosen_devices.load() != nullptr) return;
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  std::string reason;
  try {
    if (load) load();
  } catch (const Error& error) {
    reason = error.problems().front().message;
  }
  if (!c10::impl::hasDeviceGuardImpl(type)) {
    if (!reason.empty()) reason = ": " + reason;
    throw Error(Stage::environment, "device.build", "device",
                fmt::format("device: this build has nothing for \"{}\"{}", name, reason),
                fmt::format("./meshwright build --preset {} on a machine with its toolkit; or {}",
                            name, elsewhere));
  }
  if (count_of(type) > 0) return;
  throw Error(Stage::environment, "device.none", "device",
              fmt::format("device: this machine has 0 devices of \"{}\" that can be used", name),
              elsewhere);
}

at::Device device_of(at::DeviceType type, int local, int rank, int ranks) {
  if (const DeviceChoice* choice = chosen_devices.load(); choice != nullptr)
    return (*choice)(rank, ranks);
  if (type == at::kCPU) return at::kCPU;
  return {type, static_cast<c10::DeviceIndex>(local % std::max(count_of(type), 1))};
}

void choose_devices(const DeviceChoice* choice) {
  chosen_devices = choice;
}

}  // namespace mw
