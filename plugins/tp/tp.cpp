// Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM"): heads, ffn and vocab are cut; the
// residual stream is not. Column- and row-parallel linears, the vocab-parallel embedding and
// cross-entropy, and two all-reduces a layer each way all follow from that.
#include <fmt/format.h>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"
#include "overlap_wgrad.h"

namespace {

class TensorParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that heads, ffn and vocab are split over")
        .range(1, 1 << 20)
        .positional("ways")
        .boolean("overlap", "compute weight gradients while input gradients are all-reduced")
        .fallback(false);
  }
  explicit TensorParallel(const mw::Values& values)
      : ways_(values.int32("ways")), overlap_(values.flag("overlap")) {}

  std::vector<mw::AxisRequest> axes() const override { return {{"tp", ways_, mw::Role::model}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("heads", "tp");
    if (draft.divides("tp", "kv_heads")) {
      draft.shard("kv_heads", "tp");
    } else {
      draft.note(fmt::format(
          "tp: {} key and value heads do not divide by {}: each rank computes all of them",
          draft.graph().size("kv_heads"), ways_));
    }
    for (const char* width : {"ffn", "expert_ffn", "shared_ffn"}) {
      if (draft.graph().dims().count(width) > 0) draft.shard(width, "tp");
    }
    draft.shard("vocab", "tp");
    if (overlap_ && ways_ > 1) draft.add_pass(tp::overlap_wgrad());
  }

  std::vector<mw::Lighter> lighter() const override {
    std::vector<mw::Lighter> variants;
    for (const int times : {2, 4})
      variants.push_back({"tensor parallelism of more ranks", {{"ways", times * ways_}}, true});
    return variants;
  }

 private:
  int ways_;
  bool overlap_;
};

}  // namespace

MESHWRIGHT_PLUGIN("tp", "1.0.0", "tensor parallelism: heads, kv_heads, ffn, vocab -> tp",
                  mw::strategy<TensorParallel>())
