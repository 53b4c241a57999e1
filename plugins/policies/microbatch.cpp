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

// A number that grows from `from` to `to` by equal increments; 0: it does not grow.
struct Growth {
  std::int64_t from = 0, by = 0, to = 0;
  // The number when `gone` of `length` are over.
  std::int64_t at(std::int64_t gone, std::int64_t length) const {
    if (from == 0) return 0;
    const std::int64_t times = (to - from + by - 1) / by;
    return std::min(to, from + by * (gone * times / length));
  }
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
      : batch_{values.integer("from"), values.integer(values.has("by") ? "by" : "from"),
               context.batch},
        size_(values.has("size") ? values.integer("size") : 0),
        by_steps_(values.has("steps")) {
    if (by_steps_ == values.has("sequences")) {
      throw Error(Stage::options, "option.conflict", "",
                  "says how long it takes by one of steps and sequences",
                  "for example steps = 100");
    }
    check(batch_, "from", "sequences are more than the batch");
    length_ = values.integer(by_steps_ ? "steps" : "sequences");
    if (!values.has("sequence")) return;
    sequence_ = {values.integer("sequence"),
                 values.integer(values.has("sequence_by") ? "sequence_by" : "sequence"),
                 context.sequence};
    check(sequence_, "sequence", "tokens are more than the sequence");
  }
  StepShape shape(std::int64_t step, std::int64_t sample) const override {
    const std::int64_t gone = std::min(by_steps_ ? step : sample, length_);
    StepShape shape;
    shape.batch = batch_.at(gone, length_);
    shape.microbatch = size_;
    shape.at_most = true;
    shape.sequence = sequence_.at(gone, length_);
    return shape;
  }

 private:
  // Refuses a growth that begins with more than it ends with.
  static void check(const Growth& growth, const char* key, const char* more) {
    if (growth.from <= growth.to) return;
    throw Error(Stage::options, "option.range", key,
                fmt::format("{} {} of {}", growth.from, more, growth.to),
                fmt::format("nearest: {} = {}", key, growth.to));
  }

  Growth batch_, sequence_;
  std::int64_t size_, length_ = 0;
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
