// A plugin that loads, then throws when it is to be made, or, with late = true, when it edits a
// draft.
#include <stdexcept>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class Throws : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options().boolean("late", "throw in edit() only").fallback(false);
  }
  explicit Throws(const mw::Values& values) {
    if (!values.flag("late")) throw std::runtime_error("cannot be made");
  }
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override { throw std::runtime_error("cannot edit"); }
};

}  // namespace

MESHWRIGHT_PLUGIN("throws_in_place", "1.0.0", "throws when it is made", mw::strategy<Throws>())
