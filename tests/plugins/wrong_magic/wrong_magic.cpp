// Exports a symbol of the right name that is something else.
#include "../forged.h"

namespace {

constexpr mw::PluginDescriptor make() {
  auto descriptor = forged::true_descriptor("wrong_magic");
  descriptor.head.magic[0] = 'X';
  descriptor.head.abi = 0;
  return descriptor;
}

}  // namespace

namespace wrong_magic {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace wrong_magic
BOOST_DLL_ALIAS(wrong_magic::descriptor, meshwright_plugin)
