// Gives ranks their devices, and says why there is none.
#include "run/devices.h"

#include <ATen/Context.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr const char* elsewhere =
    "write device = \"cpu\", or leave it out; mw.plan needs no device";

// Calls the platform: whatever that throws names the platform.
template <class Body>
auto asked(const Platform& platform, const char* did, Body&& body) {
  return call_plugin({platform.name(), "device"}, did, body, Stage::environment);
}

std::string name_of(at::DeviceType type) {
  return c10::isValidDeviceType(type) ? c10::DeviceTypeName(type, /*lower_case=*/true)
                                      : fmt::format("number {}", static_cast<int>(type));
}

bool has_backend(at::DeviceType type) {
  return c10::isValidDeviceType(type) && c10::impl::hasDeviceGuardImpl(type);
}

}  // namespace

void check_devices(const Platform& platform) {
  const std::string name = quote(platform.name());
  const at::DeviceType type = asked(platform, "said its type", [&] { return platform.type(); });
  try {
    platform.load();
  } catch (const Error& error) {
    const Problem& problem = error.problems().front();
    throw Error(
        Stage::environment, "device.build", "device",
        fmt::format("device: this build has nothing for {}: {}", name, problem.message),
        problem.hint.empty() ? elsewhere : fmt::format("{}; or {}", problem.hint, elsewhere));
  } catch (...) {
    throw_named({platform.name(), "device"}, "loaded what its devices need", Stage::environment);
  }
  if (asked(platform, "counted its devices", [&] { return platform.count(); }) > 0) {
    if (!has_backend(type))
      throw Error(Stage::environment, "device.build", "device",
                  fmt::format("device: {} computes on devices of the type {}, and libtorch has no "
                              "backend for them here",
                              name, name_of(type)),
                  elsewhere);
    // The fastest kernels of a GPU add numbers in an order that changes from run to run.
    if (type != at::kCPU && std::getenv("MESHWRIGHT_DETERMINISTIC") != nullptr)
      asked(platform, "made sums repeat", [&] { platform.make_sums_repeat(); });
    return;
  }
  const std::string why = asked(platform, "said why it has no device",
                                [&] { return platform.why_none(); }),
                    needs = asked(platform, "said what it needs", [&] { return platform.needs(); });
  throw Error(Stage::environment, "device.none", "device",
              fmt::format("device: this machine has 0 devices of {} that can be used{}{}", name,
                          why.empty() ? "" : ": ", why),
              needs.empty() ? elsewhere : fmt::format("{}; {}", elsewhere, needs));
}

Accelerators accelerators_of(const Platform& platform, int before, int here) {
  check_devices(platform);
  at::globalContext().lazyInitDevice(platform.type());
  Accelerators there{asked(platform, "counted its devices", [&] { return platform.count(); }),
                     std::numeric_limits<std::int64_t>::max()};
  // A device is opened when it is asked how much memory it has. So only the devices of this
  // process's own ranks are asked.
  for (int rank = 0; rank < std::min(here, there.count); ++rank) {
    const auto device = static_cast<at::DeviceIndex>((before + rank) % there.count);
    there.bytes = std::min(there.bytes, asked(platform, "said how much memory a device has",
                                              [&] { return platform.bytes(device); }));
  }
  return there;
}

at::Device device_of(const Platform& platform, int local) {
  if (platform.type() == at::kCPU) return at::kCPU;
  return {platform.type(), static_cast<at::DeviceIndex>(local % std::max(platform.count(), 1))};
}

}  // namespace mw
