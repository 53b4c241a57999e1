// Reads a script's microbatch policy: a size, a list, the largest that fits, a ramp, a function.
#include "microbatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "meshwright/engine/chosen.h"
#include "meshwright/engine/json_text.h"

namespace mw {
namespace {

constexpr const char* what_there_is =
    "a number of sequences, a list of them, mw.microbatch.fit { memory = \"8GiB\" }, "
    "mw.microbatch.ramp { from = 4, steps = 100 }, or function(step) return 2 end";

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

// 0 if it is no number of sequences: a whole one above 0, of 32 bits as the batch is.
std::int64_t count_of(const Json& given) {
  const auto number = whole_number(given);
  return number && *number >= 1 && *number <= INT32_MAX ? *number : 0;
}

bool read_sizes(const Json& list, std::vector<std::int64_t>& sizes) {
  for (const Json& size : list) {
    if (count_of(size) == 0) return false;
    sizes.push_back(count_of(size));
  }
  return !sizes.empty();
}

// A number, or a list of numbers.
bool read_split(const Json& given, StepShape& shape) {
  if (count_of(given) > 0) {
    shape.microbatch = count_of(given);
    return true;
  }
  return given.is_array() && read_sizes(given, shape.sizes);
}

// What a function of the step returned.
StepShape read_shape(const Json& given, std::int64_t batch, std::int64_t step) {
  StepShape shape;
  shape.batch = batch;
  bool good = true;
  if (given.is_object()) {
    bool any = false;
    for (const auto& [key, value] : given.items()) {
      if (key.starts_with('$')) continue;
      any = true;
      if (key == "batch" && count_of(value) > 0) {
        shape.batch = count_of(value);
      } else {
        good = good && key == "microbatch" && read_split(value, shape);
      }
    }
    good = good && any;
  } else {
    good = read_split(given, shape);
  }
  if (good) return shape;
  throw Error(
      Stage::options, "function.result", "microbatch",
      fmt::format("microbatch: the function returned {} for step {}", json_text(given), step),
      "return the sequences of a microbatch, a list of them, or { batch = 8, microbatch = 2 "
      "}");
}

MicrobatchPolicy policy_of(const std::shared_ptr<const Microbatching>& made,
                           const Speaker& speaker) {
  MicrobatchPolicy policy;
  policy.fit = call_plugin(speaker, "was asked for a limit", [&] { return made->fit(); });
  if (policy.fit > 0) return policy;
  policy.by_step = true;
  policy.shape = [made, speaker](std::int64_t step, std::int64_t sample) {
    return call_plugin(speaker, "shaped a step", [&] { return made->shape(step, sample); });
  };
  return policy;
}

}  // namespace

std::vector<Registration> built_in_microbatching() {
  return {
      microbatch<Fit>("fit",
                      "The largest microbatches with which no rank is predicted to hold more."),
      microbatch<Ramp>("ramp", "A batch that grows to the experiment's, by equal increments."),
  };
}

MicrobatchPolicy read_microbatch(const Json& given, const MicrobatchContext& context,
                                 const std::shared_ptr<const ScriptReach>& reach,
                                 Problems& problems) {
  MicrobatchPolicy policy;
  if (given.is_null()) return policy;
  const std::int64_t batch = context.batch;
  StepShape every;
  every.batch = batch;
  if (is_function(given)) {
    policy.by_step = true;
    policy.shape = [reach, batch, number = given.at(function_key).get<std::int64_t>()](
                       std::int64_t step, std::int64_t) {
      return read_shape(reach->call(number, {Json(step)}), batch, step);
    };
  } else if (given.is_object()) {
    const auto chosen =
        choose(Kind::microbatch, given, "microbatch", reach, what_there_is, problems);
    if (!chosen) return policy;
    if (const auto made = make_chosen<Microbatching>(*chosen, problems, context))
      policy = policy_of(made, chosen->speaker);
  } else if (!read_split(given, every)) {
    const Json* wrong = &given;
    std::string entry;
    for (std::size_t m = 0; given.is_array() && m < given.size() && entry.empty(); ++m) {
      if (count_of(given[m]) > 0) continue;
      entry = fmt::format("[{}]", m + 1);
      wrong = &given[m];
    }
    problems.add(Stage::options, "option.value", "microbatch" + entry,
                 fmt::format("microbatch{}: got {}", entry, describe(*wrong)), what_there_is);
  } else if (every.sizes.empty()) {
    policy.size = every.microbatch;
  } else {
    policy.shape = [every](std::int64_t, std::int64_t) { return every; };
  }
  return policy;
}

}  // namespace mw
