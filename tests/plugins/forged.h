// For plugins that must not load: a true descriptor, with a part of it forged.
#pragma once

#include "meshwright/plugin.h"

namespace forged {

class Never : public mw::Strategy {
 public:
  static mw::Options options() { return {}; }
  explicit Never(const mw::Values&) {}
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

constexpr mw::PluginDescriptor true_descriptor(const char* name) {
  return mw::describe_strategy<Never>(name, "1.0.0", "must not load");
}

}  // namespace forged
