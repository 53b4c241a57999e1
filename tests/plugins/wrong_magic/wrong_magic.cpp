// Exports a symbol of the right name that is something else.
#include "meshwright/plugin.h"

namespace {

class Never : public mw::Strategy {
 public:
  static mw::Options options() { return {}; }
  explicit Never(const mw::Values&) {}
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

constexpr mw::PluginDescriptor make() {
  auto descriptor = mw::describe_strategy<Never>("wrong_magic", "1.0.0", "must not load");
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
