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
        .integer("sequence",
                 "tokens of the first step's sequences; these grow together with the batch")
        .at_least(1)
        .optional()
        .unit("tokens")
        .integer("sequence_by",
                 "tokens that sequences grow by at a time; as they begin, if left out")
        .at_least(1)
        .optional()
        .unit("tokens")
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
    if (!values.has("sequence")) return;
    tokens_ = values.integer("sequence");
    if (tokens_ > context.sequence)
      throw Error(
          Stage::options, "option.range", "sequence",
          fmt::format("{} tokens are more than the sequence of {}", tokens_, context.sequence),
          fmt::format("nearest: sequence = {}", context.sequence));
    tokens_by_ = values.has("sequence_by") ? values.integer("sequence_by") : tokens_;
    most_tokens_ = context.sequence;
  }
  StepShape shape(std::int64_t step, std::int64_t sample) const override {
    const std::int64_t gone = std::min(by_steps_ ? step : sample, length_);
    StepShape shape;
    shape.batch = std::min(batch_, from_ + by_ * (gone * increments_ / length_));
    shape.microbatch = size_;
    shape.at_most = true;
    if (tokens_ > 0) {
      const std::int64_t times = (most_tokens_ - tokens_ + tokens_by_ - 1) / tokens_by_;
      shape.sequence = std::min(most_tokens_, tokens_ + tokens_by_ * (gone * times / length_));
    }
    return shape;
  }

 private:
  std::int64_t batch_, from_, by_, size_, length_ = 0, increments_ = 0;
  std::int64_t tokens_ = 0, tokens_by_ = 0, most_tokens_ = 0;  // of a sequence; 0: it does not grow
  bool by_steps_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(
    microbatch<Fit>("fit",
                    "The largest microbatches with which no rank is predicted to hold more."),
    microbatch<Ramp>("ramp",
                     "A batch that grows to the experiment's, by equal increments, and sequences "
                     "that grow with it."));

}  // namespace mw
