// Built with a torch that this program does not run.
#include "../forged.h"

namespace {

constexpr mw::PluginDescriptor make() {
  auto descriptor = forged::true_descriptor("other_torch");
  descriptor.torch = "1.13.1";
  return descriptor;
}

}  // namespace

namespace other_torch {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace other_torch
BOOST_DLL_ALIAS(other_torch::descriptor, meshwright_plugin)
