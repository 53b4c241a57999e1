// Built with a torch that this program does not run.
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
  auto descriptor = mw::describe_strategy<Never>("other_torch", "1.0.0", "must not load");
  descriptor.torch = "1.13.1";
  return descriptor;
}

}  // namespace

namespace other_torch {
extern const mw::PluginDescriptor descriptor;
constexpr mw::PluginDescriptor descriptor = make();
}  // namespace other_torch
BOOST_DLL_ALIAS(other_torch::descriptor, meshwright_plugin)
