// Built for another plugin ABI: everything behind the head is rubbish that must not be touched.
#include "../forged.h"

namespace {

constexpr mw::PluginDescriptor make() {
  auto descriptor = forged::true_descriptor("wrong_abi");
  descriptor.head.abi = 999;
  descriptor.torch = nullptr;
  descriptor.options = nullptr;
  return descriptor;
}

}  // namespace

namespace wrong_abi {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace wrong_abi
BOOST_DLL_ALIAS(wrong_abi::descriptor, meshwright_plugin)
