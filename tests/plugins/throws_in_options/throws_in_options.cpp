// A plugin whose options() throws.
#include <stdexcept>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class Throws : public mw::Strategy {
 public:
  static mw::Options options() { throw std::runtime_error("no options today"); }
  explicit Throws(const mw::Values&) {}
  std::vector<mw::AxisRequest> axes() const override { return {}; }
  void edit(mw::Draft&) const override {}
};

}  // namespace

MESHWRIGHT_PLUGIN("throws_in_options", "1.0.0", "throws when it is asked for its options",
                  mw::strategy<Throws>())
