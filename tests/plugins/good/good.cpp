// A plugin that loads, for the tests of the loader: it asks for one axis and cuts no dim.
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class Good : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks of the axis")
        .at_least(1)
        .choice("form", {"plain", "fancy"}, "how")
        .fallback("plain")
        .bytes("bucket", "size of a bucket")
        .fallback("25MiB")
        .unit("bytes")
        .positional("ways");
  }
  explicit Good(const mw::Values& values) : ways_(static_cast<int>(values.integer("ways"))) {}
  std::vector<mw::AxisRequest> axes() const override { return {{"good", ways_, {}}}; }
  void edit(mw::Draft& draft) const override { draft.note("good was here"); }

 private:
  int ways_;
};

}  // namespace

MESHWRIGHT_PLUGIN("good", "1.2.3", "asks for an axis and leaves it alone", mw::strategy<Good>())
