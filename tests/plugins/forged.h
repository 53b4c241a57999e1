// Makes plugins that must not load: a true descriptor, with a part of it forged.
#pragma once

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace forged {

class Never : public mw::Strategy {
 public:
  static mw::Options options() { return {}; }
  explicit Never(const mw::Values&) {}
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

inline constexpr mw::Registration never[] = {mw::strategy<Never>("never", "must not load")};

template <class Forge>
constexpr mw::PluginDescriptor descriptor_of(const char* name, Forge forge) {
  mw::PluginDescriptor descriptor = mw::describe_plugin(name, "1.0.0", "must not load", never, 1);
  forge(descriptor);
  return descriptor;
}

}  // namespace forged

// A plugin of that name; the statements forge `descriptor`.
#define FORGED_PLUGIN(name, ...)                                                          \
  namespace name {                                                                        \
  extern const mw::PluginDescriptor plugin;                                               \
  constexpr mw::PluginDescriptor plugin =                                                 \
      forged::descriptor_of(#name, [](mw::PluginDescriptor& descriptor) { __VA_ARGS__ }); \
  }                                                                                       \
  BOOST_DLL_ALIAS(name::plugin, meshwright_plugin)
