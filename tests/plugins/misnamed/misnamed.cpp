// A plugin in a file of another name.
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class Misnamed : public mw::Strategy {
 public:
  static mw::Options options() { return {}; }
  explicit Misnamed(const mw::Values&) {}
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

}  // namespace

MESHWRIGHT_PLUGIN("wellnamed", "1.0.0", "is in the wrong file", mw::strategy<Misnamed>())
