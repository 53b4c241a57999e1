// The strategy @NAME@: asks for an axis of the mesh, and says which dims live on it. What is sent,
// forward and backward, follows from that.
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

class @CLASS@ : public mw::Strategy {
 public:
  // What @NAME@ { … } takes in a script. `plugins test` refuses an option without a doc or a range.
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the feed-forward layers are split over")
        .range(1, 1 << 20)
        .positional("ways");
  }
  explicit @CLASS@(const mw::Values& values) : ways_(values.int32("ways")) {}

  // The role is how other strategies find the axis: sp() cuts the residual stream over whatever
  // splits the model, ep borrows from whatever splits the data.
  std::vector<mw::AxisRequest> axes() const override {
    return {{"@NAME@", ways_, mw::Role::model}};
  }

  void edit(mw::Draft& draft) const override {
    // Every op that has the dim computes with a part of it on each rank of the axis. ffn is
    // contracted by the second linear of a feed-forward layer: its output is a sum over the axis.
    draft.shard("ffn", "@NAME@");
    draft.shard("vocab", "@NAME@");
  }

 private:
  int ways_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "feed-forward layers and the vocabulary over one axis",
                  mw::strategy<@CLASS@>())
