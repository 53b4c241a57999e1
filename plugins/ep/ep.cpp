// Expert parallelism: experts live on ep, an axis that borrows the ranks of dp or zero, then cp, then tp, so that
// attention and experts each have a mix of their own over the same ranks (Liu et al. 2025, "MoE Parallel
// Folding"). Tokens go to their experts and back by all-to-all (Lepikhin et al. 2021, "GShard"), or are gathered
// and what experts made of them is reduce-scattered. Experts' gradients are sums over the ranks that ep leaves.
#include <fmt/format.h>

#include <algorithm>

#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

const mw::Dim experts("experts"), scores("scores");

bool has(const mw::Dims& dims, mw::Dim dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

class ExpertParallel : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks that the experts are split over, of dp or zero, then cp, then tp")
        .range(1, 1 << 20)
        .positional("ways")
        .choice("dispatch", {"alltoall", "allgather"},
                "how tokens get to their experts: each to those it chose; or all to all ranks, "
                "whose parts "
                "of the result are reduce-scattered")
        .fallback("alltoall")
        .boolean("overlap", "what shared experts compute goes on while tokens are on their way")
        .fallback(false)
        .number("imbalance",
                "for predictions: tokens of the rank that has most over the average of the ranks")
        .range(1, 1 << 20)
        .fallback(1.0);
  }
  explicit ExpertParallel(const mw::Values& values)
      : ways_(values.int32("ways")),
        gathers_(values.text("dispatch") == "allgather"),
        overlap_(values.flag("overlap")),
        imbalance_(values.number("imbalance")) {
    if (imbalance_ > ways_) {
      throw mw::Error(mw::Stage::options,
                      fmt::format("imbalance: of {} ranks none can have {} times the average",
                                  ways_, imbalance_),
                      fmt::format("nearest: imbalance = {}, all tokens on one rank", ways_));
    }
  }

  std::vector<mw::AxisRequest> axes() const override {
    return {{"ep", ways_, {"dp", "zero", "cp", "tp"}}};
  }

  void edit(mw::Draft& draft) const override {
    if (draft.graph().dims().count(experts) == 0) {
      draft.refuse(fmt::format("ep({}): the model has no experts", ways_),
                   "leave ep out, or take mw.moe { … }");
      return;
    }
    const auto moves_tokens = [](const mw::Op& op) {
      return op.kind() == "dispatch" || op.kind() == "combine";
    };
    if (gathers_) {
      draft.shard_in("experts", "ep", [](const mw::Op&) { return true; });
    } else {
      draft.shard_in("experts", "ep", [=](const mw::Op& op) { return !moves_tokens(op); });
      // Tokens that tp's ranks have in common are shared out among those that ep borrows.
      const std::vector<int> common = borrowed_of_tp(draft.mesh());
      if (!common.empty()) {
        draft.shard_in(
            "seq", "ep", [=](const mw::Op& op) { return routes(op) || moves_tokens(op); }, common);
      }
    }
    draft.expect_imbalance(imbalance_);
    if (overlap_) draft.add_pass(mw::overlap_exchanges());
  }

 private:
  // Works on tokens, before they are with their experts.
  static bool routes(const mw::Op& op) {
    const mw::Dims space = op.space();
    return has(space, scores) && has(space, "seq") && op.kind() != "admit";
  }

  std::vector<int> borrowed_of_tp(const mw::Mesh& mesh) const {
    std::vector<int> atoms;
    if (!mesh.has("tp")) return atoms;
    const std::vector<int>& tp = mesh.axis("tp").atoms;
    for (int atom : mesh.axis("ep").atoms) {
      if (std::find(tp.begin(), tp.end(), atom) != tp.end()) atoms.push_back(atom);
    }
    return atoms;
  }

  int ways_;
  bool gathers_, overlap_;
  double imbalance_;
};

}  // namespace

MESHWRIGHT_PLUGIN(ExpertParallel, "ep", "1.0.0",
                  "expert parallelism: experts -> ep, on borrowed ranks")
