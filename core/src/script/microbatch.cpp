// Reads a script's microbatch policy: a size, a list, the largest that fits, a ramp, a function.
#include "script/microbatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/json_text.h"

namespace mw {
namespace {

constexpr const char* what_there_is =
    "a number of sequences, a list of them, mw.microbatch.fit { memory = \"8GiB\" }, "
    "mw.microbatch.ramp { from = 4, steps = 100 }, or function(step) return 2 end";

const MicrobatchKind& fit_kind() {
  static const MicrobatchKind kind(
      "microbatch.fit", "The largest microbatches with which no rank is predicted to hold more.",
      Options()
          .bytes("memory", "what a rank may hold; the experiment's memory if left out")
          .at_least(1)
          .optional()
          .positional("memory"));
  return kind;
}

const MicrobatchKind& ramp_kind() {
  static const MicrobatchKind kind(
      "microbatch.ramp", "A batch that grows to the experiment's, by equal increments.",
      Options()
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
          .unit("sequences"));
  return kind;
}

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

void read_ramp(const Json& given, std::int64_t batch, MicrobatchPolicy& policy,
               Problems& problems) {
  Problems found;
  const Values values = ramp_kind().options().read(given, "microbatch", found);
  if (found.empty() && values.has("steps") == values.has("sequences")) {
    found.add(Stage::options, "option.conflict", "microbatch",
              "microbatch.ramp: says how long it takes by one of steps and sequences",
              "for example steps = 100");
  }
  if (found.empty() && values.integer("from") > batch) {
    found.add(Stage::options, "option.range", "microbatch.from",
              fmt::format("microbatch.from: {} sequences are more than the batch of {}",
                          values.integer("from"), batch),
              fmt::format("nearest: from = {}", batch));
  }
  problems.add(found);
  if (!found.empty()) return;
  const std::int64_t from = values.integer("from");
  const std::int64_t by = values.has("by") ? values.integer("by") : from;
  const bool by_steps = values.has("steps");
  const std::int64_t length = values.integer(by_steps ? "steps" : "sequences");
  const std::int64_t size = values.has("size") ? values.integer("size") : 0;
  const std::int64_t increments = (batch - from + by - 1) / by;
  policy.shape = [=](std::int64_t step, std::int64_t sample) {
    const std::int64_t gone = std::min(by_steps ? step : sample, length);
    StepShape shape;
    shape.batch = std::min(batch, from + by * (gone * increments / length));
    shape.microbatch = size;
    shape.at_most = true;
    return shape;
  };
}

}  // namespace

const std::vector<const MicrobatchKind*>& microbatch_kinds() {
  static const std::vector<const MicrobatchKind*> kinds{&fit_kind(), &ramp_kind()};
  return kinds;
}

MicrobatchPolicy read_microbatch(
    const Json& given, std::int64_t batch, std::int64_t limit,
    const std::function<Json(std::int64_t, const std::vector<Json>&)>& call, Problems& problems) {
  MicrobatchPolicy policy;
  if (given.is_null()) return policy;
  StepShape every;
  every.batch = batch;
  if (is_function(given)) {
    policy.shape = [call, batch, number = given.at(function_key).get<std::int64_t>()](
                       std::int64_t step, std::int64_t) {
      return read_shape(call(number, {Json(step)}), batch, step);
    };
  } else if (given.is_object() && given.contains("kind")) {
    Json options = given;
    options.erase("kind");
    if (given["kind"] == ramp_kind().name()) {
      read_ramp(options, batch, policy, problems);
    } else if (given["kind"] == fit_kind().name()) {
      Problems found;
      const Values values = fit_kind().options().read(options, "microbatch", found);
      problems.add(found);
      if (found.empty()) policy.fit = values.has("memory") ? values.integer("memory") : limit;
      if (found.empty() && policy.fit == 0) {
        problems.add(Stage::options, "option.missing", "microbatch.memory",
                     "microbatch.fit: there is no limit to fit",
                     "write mw.microbatch.fit { memory = \"8GiB\" }, or memory in the experiment");
      }
    } else {
      problems.add(Stage::options, "option.value", "microbatch",
                   fmt::format("microbatch: got {}", describe(given)), what_there_is);
    }
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
