// Reads a script's microbatch: a size, a list, a registered policy, a function of the step.
#include "script/read_microbatch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>

#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "predict/fit.h"

namespace mw {
namespace {

constexpr const char* what_there_is =
    "a number of sequences, a list of them, mw.microbatch.fit { memory = \"8GiB\" }, "
    "mw.microbatch.ramp { from = 4, steps = 100 }, or function(step) return 2 end";

// A number of sequences: whole, above 0, and of 32 bits as the batch is; else 0.
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

// Reads a microbatch's size, or a list of sizes.
bool read_split(const Json& given, StepShape& shape) {
  if (count_of(given) > 0) {
    shape.microbatch = count_of(given);
    return true;
  }
  return given.is_array() && read_sizes(given, shape.sizes);
}

// Reads what a script's function returned for a step.
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
      } else if (key == "sequence" && count_of(value) > 0) {
        shape.sequence = count_of(value);
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
      fmt::format("microbatch: the function returned {} for step {}", lua_text(given), step),
      "return the sequences of a microbatch, a list of them, or { batch = 8, microbatch = 2, "
      "sequence = 128 }");
}

MicrobatchPolicy policy_of(const std::shared_ptr<const Microbatching>& made,
                           const PluginPlace& speaker) {
  MicrobatchPolicy policy;
  const std::int64_t limit =
      call_plugin(speaker, "was asked for a limit", [&] { return made->fit(); });
  if (limit > 0) {
    policy.search = [limit](const PlanRequest& request, Problems& problems) {
      return fit_microbatch(request, limit, problems);
    };
    return policy;
  }
  policy.by_step = true;
  policy.shape = [made, speaker](std::int64_t step, std::int64_t sample) {
    const StepShape shape =
        call_plugin(speaker, "shaped a step", [&] { return made->shape(step, sample); });
    const auto is_count = [](std::int64_t n) { return n >= 1 && n <= INT32_MAX; };
    if (is_count(shape.batch) && (shape.microbatch == 0 || is_count(shape.microbatch)) &&
        (shape.sequence == 0 || is_count(shape.sequence)) &&
        std::ranges::all_of(shape.sizes, is_count))
      return shape;
    throw Error(attributed(
        speaker,
        {Stage::options, "plugin.fault", "",
         fmt::format("its shape of step {} is batch = {}, microbatch = {}, sizes = {{{}}}", step,
                     shape.batch, shape.microbatch, fmt::join(shape.sizes, ", ")),
         "mend its shape(): a batch and sizes of 1 sequence at least; a microbatch too, or 0 for "
         "the whole batch (meshwright/microbatch.h)"}));
  };
  return policy;
}

}  // namespace

MicrobatchPolicy read_microbatch(Json& given, const MicrobatchContext& context,
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
    given = chosen->values.json();
    given["kind"] = chosen->registration->name;
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
