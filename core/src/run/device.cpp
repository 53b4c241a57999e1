// Gives ranks their devices, and says why there is none.
#include "run/device.h"

#include "meshwright/engine/ranks.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>

#include "meshwright/error.h"

namespace mw {
namespace {

std::atomic<const DeviceChoice*> chosen_devices{nullptr};

// libtorch warns on stderr where it counts devices whose driver is too old; reason_of() says that.
class Unsaid final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

int count_of(at::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  Unsaid unsaid;
  const c10::WarningUtils::WarningHandlerGuard guard(&unsaid);
  return c10::impl::getDeviceGuardImpl(type)->deviceCount();
}

// Why there is none: what libtorch says first, without its advice, which is for other builds.
std::string reason_of(at::DeviceType type) {
  try {
    at::globalContext().lazyInitDevice(type);
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    text.resize(std::min(text.size(), text.find('\n')));
    const std::size_t advice = std::min(text.find(" Please "), text.find(" Did you "));
    const std::size_t number = text.find("Error ");  // of CUDA, after the advice
    if (advice == std::string::npos) return text;
    return text.substr(0, advice) +
           (number == std::string::npos || number < advice ? "" : " " + text.substr(number));
  }
  return "";
}

// The fastest kernels of a GPU add numbers in an order that changes from run to run. With this
// variable set, libtorch uses kernels whose order is fixed, so that the losses of two runs are
// equal to the bit. An op without such a kernel then fails. cuBLAS needs workspaces of a fixed
// size for it.
void fix_order_of_sums() {
  if (std::getenv("MESHWRIGHT_DETERMINISTIC") == nullptr) return;
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

constexpr const char* elsewhere =
    "write device = \"cpu\", or leave it out; mw.plan needs no device";

}  // namespace

const char* const cuda_needs =
    "GPUs need NVIDIA's driver, 580 or newer, which nvidia-smi shows; CPUs need none";

DeviceState state_of(at::DeviceType type) {
  DeviceState state{c10::impl::hasDeviceGuardImpl(type), count_of(type), ""};
  if (state.built && state.count == 0) state.why = reason_of(type);
  return state;
}

void check_device(at::DeviceType type, const std::function<void()>& load) {
  if (type == at::kCPU || chosen_devices.load() != nullptr) return;
  const std::string name = c10::DeviceTypeName(type, /*lower_case=*/true);
  std::string reason;
  try {
    if (load) load();
  } catch (const Error& error) {
    reason = error.problems().front().message;
  }
  const DeviceState state = state_of(type);
  if (!state.built) {
    if (!reason.empty()) reason = ": " + reason;
    throw Error(Stage::environment, "device.build", "device",
                fmt::format("device: this build has nothing for \"{}\"{}", name, reason),
                fmt::format("./meshwright build --preset {0} makes build-{0}/bin/meshwright, which "
                            "has; or {1}",
                            name, elsewhere));
  }
  if (state.count > 0) return;
  throw Error(Stage::environment, "device.none", "device",
              fmt::format("device: this machine has 0 devices of \"{}\" that can be used{}{}", name,
                          state.why.empty() ? "" : ": ", state.why),
              type == at::kCUDA ? fmt::format("{}; {}", elsewhere, cuda_needs) : elsewhere);
}

Accelerators accelerators_of(const RunSetup& setup, int before, int here) {
  check_device(setup.device, setup.load_device);
  if (setup.device == at::kCUDA) fix_order_of_sums();
  at::globalContext().lazyInitDevice(setup.device);
  Accelerators there{count_of(setup.device), std::numeric_limits<std::int64_t>::max()};
  // Those of other processes are left alone: to ask one of its memory is to open it.
  for (int rank = 0; rank < std::min(here, there.count); ++rank) {
    const auto device = static_cast<c10::DeviceIndex>((before + rank) % there.count);
    const std::size_t all = c10::getDeviceAllocator(setup.device)->getMemoryInfo(device).second;
    there.bytes = std::min(there.bytes, static_cast<std::int64_t>(all));
  }
  return there;
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
