// A stranger's data parallelism that can hold less: the search for a plan that fits memory has to
// find it by what it says of itself, not by its name.
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class Stored : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the batch is split over")
        .range(1, 1 << 20)
        .positional("ways")
        .boolean("sharded", "parameters are stored sharded along hidden")
        .fallback(false);
  }
  explicit Stored(const mw::Values& values)
      : ways_(values.int32("ways")), sharded_(values.flag("sharded")) {}

  std::vector<mw::AxisRequest> axes() const override { return {{"copies", ways_, mw::Role::data}}; }
  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "copies");
    if (sharded_) draft.store("hidden", "copies", {});
  }
  std::vector<mw::Lighter> lighter() const override {
    if (sharded_) return {{"smaller chunks", {{"no such option", 1}}, true}};
    return {{"sharded copy", {{"sharded", true}}}};
  }

 private:
  int ways_;
  bool sharded_;
};

}  // namespace

MESHWRIGHT_PLUGIN("stored", "1.0.0", "the batch over an axis, parameters stored sharded",
                  mw::strategy<Stored>())
