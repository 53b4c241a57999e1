// Built with a compiler whose objects this program cannot trust.
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
  auto descriptor = mw::describe_strategy<Never>("other_toolchain", "1.0.0", "must not load");
  descriptor.toolchain = "gcc7 c++17 cxx11abi0 release";
  return descriptor;
}

}  // namespace

namespace other_toolchain {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace other_toolchain
BOOST_DLL_ALIAS(other_toolchain::descriptor, meshwright_plugin)
