// The ops around scores that models call by name: distances of tokens, a softmax.
#include <fmt/format.h>

#include "meshwright/block_op.h"
#include "meshwright/engine/text.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

class DistanceOp final : public BlockOp {
 public:
  static Options options() {
    return Options()
        .integer("buckets",
                 "makes indices in place of numbers: small distances have one each, larger ones "
                 "share them")
        .range(4, 1 << 16)
        .optional()
        .positional("buckets")
        .integer("furthest", "distances from here on have the last bucket")
        .range(4, 1 << 24)
        .fallback(128)
        .boolean("causal", "false: the upper half of the buckets is of keys after the query")
        .fallback(true);
  }
  explicit DistanceOp(const Values& values) {
    if (values.has("buckets")) of_.buckets = values.integer("buckets");
    of_.furthest = values.integer("furthest");
    of_.causal = values.flag("causal");
    const std::int64_t exact = of_.buckets / (of_.causal ? 2 : 4);
    if (of_.buckets == 0 || (of_.furthest > exact && exact > 0)) return;
    throw Error(Stage::options, "option.range", "furthest",
                fmt::format("furthest = {} is not beyond the {} distances that have a bucket each",
                            of_.furthest, exact),
                fmt::format("furthest = {} or more", exact + 1));
  }
  std::vector<std::string> inputs() const override { return {"positions"}; }
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    if (inputs[0] != b.positions) {
      throw Error(Stage::options, "model.dims", "",
                  fmt::format("{}: {} are not the positions of the tokens", name,
                              b.graph.value(inputs[0]).name),
                  "m.positions:distance()");
    }
    return {b.distance(name, of_)};
  }

 private:
  DistanceBuckets of_;
};

class SoftmaxOp final : public BlockOp {
 public:
  static Options options() {
    return Options().text("over", "the dim whose elements sum to 1").positional("over");
  }
  explicit SoftmaxOp(const Values& values) : over_(values.text("over")) {}
  std::vector<int> append(Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return {b.softmax(name, inputs[0], over_)};
  }

 private:
  const Dim over_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    op<DistanceOp>(
        "distance",
        "positions (seq) -> (seq, keys): how far a key lies before a query, for a bias of "
        "attention"),
    op<SoftmaxOp>("softmax", "x -> the same dims: exp(x) over its sum along a dim"));

}  // namespace mw
