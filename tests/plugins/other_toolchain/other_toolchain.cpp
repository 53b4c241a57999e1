// Built with a compiler whose objects this program cannot trust.
#include "../forged.h"

namespace {

constexpr mw::PluginDescriptor make() {
  auto descriptor = forged::true_descriptor("other_toolchain");
  descriptor.toolchain = "gcc7 c++17 cxx11abi0 release";
  return descriptor;
}

}  // namespace

namespace other_toolchain {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace other_toolchain
BOOST_DLL_ALIAS(other_toolchain::descriptor, meshwright_plugin)
