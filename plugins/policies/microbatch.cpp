// Microbatch policies that a script can name: the largest that fits, and a batch that grows.
#include "meshwright/microbatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "meshwright/plugin.h"

namespace mw {
namespace {

class Fit final : public Microbatching {
 public:
  static Options options() {
    return Options()
        .bytes("memory", "what a rank may hold; the experiment's memory if left out")
        .at_least(1)
        .optional()
        .positional("memory");
  }
  Fit(const Values& values, const MicrobatchContext& context)
      : memory_(values.has("memory") ? values.integer("memory") : context.memory),
        batch_(context.batch) {
    if (memory_ > 0) return;
    throw Error(Stage::options, "option.missing", "memory", "there is no limit to fit",
                "write mw.microbatch.fit { memory = \"8GiB\" }, or memory in the experiment");
  }
  std::int64_t fit() const override { return memory_; }
  StepShape shape(std::int64_t, std::int64_t) const override { return {batch_, 0, {}, false}; }

 private:
  std::int64_t memory_, batch_;
};

class Ramp final : public Microbatching {
 public:
  static Options options() {
    return Options()
        .integer("from", "sequences of the first step, over all ranks")
        .at_least(1)
        .unit("sequences")
        .integer("by", "sequences that the batch grows by at a time; as it begins, if left out")
        .at_least(1)
        .optional()
        .unit("sequences")
        .integer("steps", "steps until it has grown")
        .at_least(1)
        .optional()
        .unit("steps")
        .integer("sequences", "sequences until it has grown, instead of steps")
        .at_least(1)
        .optional()
        .unit("sequences")
        .integer("size", "sequences that a rank computes at a time; all that it has if left out")
        .at_least(1)
        .optional()
        .unit("sequences");
  }
  Ramp(const Values& values, const MicrobatchContext& context)
      : batch_(context.batch),
        from_(values.integer("from")),
        by_(values.has("by") ? values.integer("by") : from_),
        size_(values.has("size") ? values.integer("size") : 0),
        by_steps_(values.has("steps")) {
    if (by_steps_ == values.has("sequences")) {
      throw Error(Stage::options, "option.conflict", "",
                  "says how long it takes by one of steps and sequences",
                  "for example steps = 100");
    }
    if (from_ > batch_) {
      throw Error(Stage::options, "option.range", "from",
                  fmt::format("{} sequences are more than the batch of {}", from_, batch_),
                  fmt::format("nearest: from = {}", batch_));
    }
    length_ = values.integer(by_steps_ ? "steps" : "sequences");
    increments_ = (batch_ - from_ + by_ - 1) / by_;
  }
  StepShape shape(std::int64_t step, std::int64_t sample) const override {
    const std::int64_t gone = std::min(by_steps_ ? step : sample, length_);
    StepShape shape;
    shape.batch = std::min(batch_, from_ + by_ * (gone * increments_ / length_));
    shape.microbatch = size_;
    shape.at_most = true;
    return shape;
  }

 private:
  std::int64_t batch_, from_, by_, size_, length_ = 0, increments_ = 0;
  bool by_steps_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    microbatch<Fit>("fit",
                    "The largest microbatches with which no rank is predicted to hold more."),
    microbatch<Ramp>("ramp", "A batch that grows to the experiment's, by equal increments."));

}  // namespace mw
