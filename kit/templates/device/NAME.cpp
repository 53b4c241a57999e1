// The device @NAME@: a platform that ranks may compute on. It begins as the cores of this machine
// under a name of its own, so that it runs at once; a real one overrides the rest of
// meshwright/platform.h too.
#include <unistd.h>

#include <cstdint>
#include <string>

#include "meshwright/platform.h"
#include "meshwright/plugin.h"

namespace {

class @CLASS@ final : public mw::Platform {
 public:
  // The type of libtorch's backend: at::kCUDA, at::kXPU; at::kPrivateUse1 for one of your own.
  at::DeviceType type() const override { return at::kCPU; }

  // Loads that backend where it is a library of its own, by dlopen(): who plans for the device
  // without using it then needs none of it. Throws mw::Error with what is missing, and a hint.
  void load() const override {}

  // Leave out count(), bytes() and why_none() where libtorch's backend says them.
  int count() const override { return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }
  std::int64_t bytes(at::DeviceIndex) const override {
    return ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGESIZE);
  }

  // A driver gives each device a UUID. Every process must return the same id for one device.
  std::string id(at::Device device) const override { return mw::Platform::id(device); }
  std::string needs() const override { return "it needs no driver"; }
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "the cores of this machine, one device each",
                  mw::device<@CLASS@>())
