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
    return {b.distance(name, inputs[0], of_)};
  }

 private:
  DistanceBuckets of_;
};

// The numbers of a dim's elements, as m.positions are those of seq.
class PositionsOfOp final : public BlockOp {
 public:
  static Options options() { return Options().text("dim", "a dim of the model").positional("dim"); }
  explicit PositionsOfOp(const Values& values) : dim_(values.text("dim")) {}
  std::vector<std::string> inputs() const override { return {}; }
  std::vector<int> append(Builder& b, const std::string&, const std::vector<int>&) const override {
    return {b.positions_of(dim_)};
  }

 private:
  const Dim dim_;
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
        "positions (seq), or those of another dim -> (seq, keys): how far a key lies before a "
        "query, for a bias of attention"),
    op<PositionsOfOp>("positions_of",
                      "-> (dim): the numbers of a dim's elements, from 0, for lookup and distance"),
    op<SoftmaxOp>("softmax", "x -> the same dims: exp(x) over its sum along a dim"));

}  // namespace mw
