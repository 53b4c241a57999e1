// Built for another plugin ABI: everything behind the head is rubbish that must not be touched.
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
  auto descriptor = mw::describe_strategy<Never>("wrong_abi", "1.0.0", "must not load");
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
