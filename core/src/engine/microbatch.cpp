// Reads a script's microbatch policy (a size, a list, the largest that fits, a ramp, a function)
// and makes a plan for each kind of step that it leads to.
#include "engine/microbatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "base/interrupt.h"
#include "base/json_text.h"
#include "meshwright/reduction_hook.h"
#include "plan/limits.h"
#include "plan/microbatch_fit.h"

namespace mw {
namespace {

constexpr const char* what_there_is =
    "a number of sequences, a list of them, mw.microbatch.fit { memory = \"8GiB\" }, "
    "mw.microbatch.ramp { from = 4, steps = 100 }, or function(step) return 2 end";
constexpr std::size_t most_plans = 256;
constexpr std::int64_t most_steps = 1 << 20;  // that are looked at one by one

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

// Whether the same tensors serve both.
bool keep_alike(const Plan& a, const Plan& b) {
  if (a.programs.size() != b.programs.size()) return false;
  for (std::size_t s = 0; s < a.programs.size(); ++s) {
    const Program &x = a.programs[s], &y = b.programs[s];
    if (x.parameters.size() != y.parameters.size() || x.buckets.size() != y.buckets.size())
      return false;
    for (std::size_t p = 0; p < x.parameters.size(); ++p) {
      if (x.parameters[p].slot != y.parameters[p].slot ||
          x.parameters[p].gradient_slot != y.parameters[p].gradient_slot ||
          x.parameters[p].stored != y.parameters[p].stored)
        return false;
    }
    for (std::size_t k = 0; k < x.buckets.size(); ++k) {
      const Bucket &a_bucket = x.buckets[k], &b_bucket = y.buckets[k];
      const auto hook = [](const Bucket& bucket) {
        return bucket.hook ? bucket.hook->name() : std::string();
      };
      const auto kept = [](const Bucket& bucket) {
        return std::tie(bucket.parameters, bucket.reduce, bucket.sharded, bucket.stages,
                        bucket.parts, bucket.parted, bucket.matrix, bucket.tally, bucket.keeps,
                        bucket.offload);
      };
      if (kept(a_bucket) != kept(b_bucket) || hook(a_bucket) != hook(b_bucket)) return false;
    }
  }
  return true;
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

std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems) {
  PlanRequest made = request;
  made.microbatch = policy.size;
  if (policy.fit > 0) return fit_microbatch(made, policy.fit, problems);
  if (!policy.shape) return make_plan(made, problems);
  if (steps > most_steps) {
    problems.add(Stage::plan, "plan.size", "microbatch",
                 fmt::format("microbatch: of {} steps each may have a batch of its own, and a plan "
                             "looks at {} of them at most",
                             steps, most_steps),
                 fmt::format("nearest: steps = {}, or microbatches that are the same in all steps",
                             most_steps));
    return nullptr;
  }
  std::vector<StepShape> shapes;
  std::map<StepShape, std::int64_t> begins;  // at which step
  StepPlans plans;
  std::int64_t sample = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    if (step % 1024 == 0) throw_if_stopped();
    shapes.push_back(policy.shape(step, sample));
    begins.emplace(shapes.back(), step);
    plans.first.push_back(sample);
    sample += shapes.back().batch;
  }
  if (begins.size() > most_plans) {
    problems.add(
        Stage::plan, "plan.size", "microbatch",
        fmt::format("microbatch: the {} steps differ in {} ways, and {} plans are the most", steps,
                    begins.size(), most_plans),
        "let the batch grow by larger increments");
    return nullptr;
  }
  if (begins.size() > 1) {
    made.notes.push_back(fmt::format(
        "steps of {} kinds, batches of {} to {}: this is the plan of a batch of {}", begins.size(),
        begins.begin()->first.batch, begins.rbegin()->first.batch, begins.rbegin()->first.batch));
  }
  std::map<StepShape, int> index;
  std::set<std::string> said;
  double work = 0;
  for (auto shape = begins.rbegin(); shape != begins.rend(); ++shape) {  // the largest batch first
    if (work > most_steps_work) {
      problems.add(Stage::plan, "plan.size", "microbatch",
                   fmt::format("microbatch: the {} steps differ in {} ways, and plans of this size "
                               "are too many",
                               steps, begins.size()),
                   fmt::format("{} of them at most: let the batch grow by larger increments",
                               plans.plans.size()));
      return nullptr;
    }
    made.batch = shape->first.batch;
    made.microbatch = shape->first.microbatch;
    made.sizes = shape->first.sizes;
    made.smaller_batches = shape->first.at_most;
    Problems found;
    auto plan = make_plan(made, found);
    for (Problem p : found.list()) {
      if (!said.insert(p.message).second) continue;
      if (p.key == "batch" || p.key == "microbatch")
        p.message += fmt::format(" (what microbatch makes of step {})", shape->second);
      problems.add(std::move(p));
    }
    if (plan == nullptr) continue;
    work += plan->work;
    if (!plans.plans.empty() && !keep_alike(*plans.plans.front(), *plan)) {
      problems.add(Stage::plan, "microbatch.buckets", "microbatch",
                   fmt::format("microbatch: the plan of step {} keeps its parameters in other "
                               "buckets than those of other steps",
                               shape->second),
                   "let bucket choices depend on the bucket alone");
      continue;
    }
    index[shape->first] = static_cast<int>(plans.plans.size());
    plans.plans.push_back(std::move(plan));
  }
  if (!problems.empty() || plans.plans.empty()) return nullptr;
  for (const StepShape& shape : shapes) plans.of_step.push_back(index.at(shape));
  auto plan = plans.plans.front();
  if (plans.plans.size() > 1) all = std::make_shared<StepPlans>(std::move(plans));
  return plan;
}

}  // namespace mw
