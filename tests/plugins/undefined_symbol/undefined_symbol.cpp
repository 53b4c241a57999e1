// A plugin that needs a function which an older or newer SDK had.
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace mw {
int removed_from_the_sdk(int ways);
}

namespace {

class Stale : public mw::Strategy {
 public:
  static mw::Options options() { return {}; }
  explicit Stale(const mw::Values&) : ways_(mw::removed_from_the_sdk(2)) {}
  std::vector<mw::AxisRequest> axes() const override { return {{"stale", ways_, {}}}; }
  void edit(mw::Draft&) const override {}

 private:
  int ways_;
};

}  // namespace

MESHWRIGHT_PLUGIN("undefined_symbol", "1.0.0", "refers to what is not there", mw::strategy<Stale>())
