// Tensor parallelism over two axes: feed-forward layers and the vocabulary are cut over one,
// attention's heads over the other. Where an axis has nothing of its own to cut, it cuts the
// sequence: the residual stream lies in shards over both, and no op is computed twice. A script
// says tp2d { ffn = 2, heads = 2 }: four ranks, though ffn and heads are cut in two.
//
// What is sent: a block gathers the stream over its own axis alone, and reduce-scatters its result
// over it; attention gathers keys and values over the other.
#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

const char* const ffn_axis = "tp_ffn";
const char* const heads_axis = "tp_heads";

class TwoAxes : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ffn", "ranks that feed-forward layers and the vocabulary are split over")
        .range(1, 1 << 20)
        .integer("heads", "ranks that attention heads are split over")
        .range(1, 1 << 20);
  }
  explicit TwoAxes(const mw::Values& values)
      : ffn_(values.int32("ffn")), heads_(values.int32("heads")) {}

  std::vector<mw::AxisRequest> axes() const override {
    return {{ffn_axis, ffn_, mw::Role::model}, {heads_axis, heads_, mw::Role::model}};
  }

  void edit(mw::Draft& draft) const override {
    draft.shard("ffn", ffn_axis);
    draft.shard("vocab", ffn_axis);
    draft.shard("heads", heads_axis);
    if (draft.divides(heads_axis, "kv_heads")) draft.shard("kv_heads", heads_axis);
    cut_stream(draft, ffn_axis, {"ffn", "vocab"});
    cut_stream(draft, heads_axis, {"heads", "kv_heads"});
  }

 private:
  // A general rule for the ops that have none of these dims. What has no batch (rotary tables) is
  // made whole, wherever it is needed.
  static void cut_stream(mw::Draft& draft, const char* axis, const mw::Dims& taken) {
    draft.shard_where("seq", axis, [taken](const mw::Op& op) {
      const mw::Dims space = op.space();
      return mw::contains(space, "batch") &&
             std::none_of(taken.begin(), taken.end(),
                          [&](const mw::Dim& dim) { return mw::contains(space, dim); });
    });
  }

  int ffn_, heads_;
};

}  // namespace

MESHWRIGHT_PLUGIN("tp2d", "1.0.0",
                  "tensor parallelism: ffn over one axis, heads over another, the stream over both",
                  mw::strategy<TwoAxes>())
