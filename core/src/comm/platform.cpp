// The default implementations of Platform, by interfaces that every libtorch backend implements.
#include "meshwright/platform.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "comm/cpu_platform.h"

namespace mw {
namespace {

// Suppresses the warning on stderr with which libtorch counts devices whose driver is too old;
// why_none() returns that text.
class SilencedWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

}  // namespace

int Platform::count() const {
  if (!c10::impl::hasDeviceGuardImpl(type())) return 0;
  SilencedWarnings unsaid;
  const c10::WarningUtils::WarningHandlerGuard guard(&unsaid);
  return c10::impl::getDeviceGuardImpl(type())->deviceCount();
}

std::string Platform::why_none() const {
  try {
    at::globalContext().lazyInitDevice(type());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

std::int64_t Platform::bytes(at::DeviceIndex device) const {
  return static_cast<std::int64_t>(c10::getDeviceAllocator(type())->getMemoryInfo(device).second);
}

std::int64_t Platform::free_bytes(at::DeviceIndex device) const {
  return static_cast<std::int64_t>(c10::getDeviceAllocator(type())->getMemoryInfo(device).first);
}

std::string Platform::id(at::Device device) const {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{} {} of {}", name(), static_cast<int>(device.index()), host.data());
}

c10::Stream Platform::new_stream(at::Device device, bool urgent) const {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, urgent);
}

void* Platform::native(const c10::Stream& stream) const {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 10
  return stream.native_handle();
#else
  throw std::logic_error("libtorch before 2.11 does not say what a stream is to its device");
#endif
}

void* native_stream(at::Device device) {
  const Platform* const platform = rank_platform();
  if (platform == nullptr)
    throw std::logic_error("native_stream() is for ranks that compute on a platform");
  return platform->native(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::unique_ptr<const DeviceKernel> Platform::compile(at::Device, const std::string&,
                                                      const char*) const {
  return nullptr;
}

void Platform::make_sums_repeat() const {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

const std::shared_ptr<const Platform>& cpu_platform() {
  static const std::shared_ptr<const Platform> cpu = [] {
    auto made = std::make_shared<CpuPlatform>();
    made->set_name("cpu");
    return made;
  }();
  return cpu;
}

}  // namespace mw
