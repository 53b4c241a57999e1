// What schedulers share: checks of a request, refusals that name the schedulers that could, and
// schedules whose order is fixed.
#include "make.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "meshwright/replay.h"
#include "schedulers.h"

namespace pp {
namespace {

// So few that the number of actions fits an int, for a stage and summed over stages.
constexpr std::int64_t most_actions = std::int64_t{1} << 28;

void validate_counts(const Scheduler& scheduler, const ScheduleRequest& request) {
  const auto positive = [&](int count, const char* what) {
    if (count >= 1) return;
    throw Error(Stage::plan, "schedule.counts", "",
                fmt::format("schedule {}: {} {}", scheduler.name(), count, what), "at least 1");
  };
  positive(request.stages, "stages");
  positive(request.chunks, "chunks of each stage");
  positive(request.microbatches, "microbatches");
  if (scheduler.fixed_chunks() > 0 && request.chunks != scheduler.fixed_chunks()) {
    throw Error(Stage::plan, "schedule.chunks", "chunks",
                fmt::format("schedule {} takes {} of each stage, not {}", scheduler.name(),
                            chunks_text(scheduler.fixed_chunks()), request.chunks),
                fmt::format("chunks = {}; interleaved and looped-bfs take any number",
                            scheduler.fixed_chunks()));
  }
  const auto works = 3 * std::int64_t{request.stages} * request.chunks;
  if (works > most_actions / request.microbatches) {
    throw Error(
        Stage::plan, "plan.size", "",
        fmt::format("{} stages x {} chunks x {} microbatches are more works than a schedule "
                    "may have ({})",
                    request.stages, request.chunks, request.microbatches, most_actions),
        "fewer microbatches or chunks");
  }
}

void validate_size(const Scheduler& scheduler, const ScheduleRequest& request, std::size_t size,
                   const char* what) {
  const auto vstages =
      static_cast<std::size_t>(request.stages) * static_cast<std::size_t>(request.chunks);
  if (size <= 1 || size == vstages) return;
  throw Error(Stage::plan, "schedule.lists", "",
              fmt::format("schedule {}: {} for {} virtual stages, but {} stages x {} chunks = {}",
                          scheduler.name(), what, size, request.stages, request.chunks, vstages),
              "give one for all, or one for each virtual stage");
}

// The largest activation bytes on any stage, and that stage.
std::pair<double, int> largest(const Schedule& schedule, const ScheduleRequest& request) {
  std::pair<double, int> out = {0, 0};
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for_each_level(schedule, stage, bytes_by(request), [&](std::size_t, double bytes) {
      if (bytes > out.first) out = {bytes, stage};
    });
  }
  return out;
}

// The names of schedulers that can serve the request, within its memory limit.
std::vector<std::string> that_can(const ScheduleRequest& request) {
  std::vector<std::string> names;
  for (const Registration& registration : schedulers) {
    const auto other = mw::make<Scheduler>(registration, Values());
    if (other->fixed_chunks() > 0 && other->fixed_chunks() != request.chunks) continue;
    // FixedScheduler::make() would call this function in turn.
    if (dynamic_cast<const FixedScheduler*>(other.get()) != nullptr) {
      ScheduleRequest unlimited = request;
      unlimited.memory_limit = 0;
      const auto bytes = largest(other->make(unlimited), request).first;
      if (!above(bytes, request.memory_limit)) names.push_back(other->name());
      continue;
    }
    try {
      other->make(request);
      names.push_back(other->name());
    } catch (const Error&) {  // it cannot serve the request either
    }
  }
  return names;
}

}  // namespace

void validate(const Scheduler& scheduler, const ScheduleRequest& request) {
  validate_counts(scheduler, request);
  validate_size(scheduler, request, request.times.size(), "times");
  validate_size(scheduler, request, request.bytes.size(), "bytes");
  std::vector<double> numbers = {request.memory_limit};
  for (const WorkTimes& t : request.times)
    numbers.insert(numbers.end(), {t.forward, t.dgrad, t.wgrad, t.send});
  for (const WorkBytes& b : request.bytes) numbers.insert(numbers.end(), {b.forward, b.dgrad});
  for (const double number : numbers) {
    if (number >= 0 && std::isfinite(number)) continue;
    throw Error(
        Stage::plan, "schedule.lists", "",
        fmt::format("schedule {}: {} as a time or a size", scheduler.name(), number_text(number)),
        "times, bytes and the memory limit are finite and not negative");
  }
}

void refuse_if_above_limit(const Schedule& schedule, const ScheduleRequest& request) {
  if (request.memory_limit <= 0) return;
  const auto [bytes, stage] = largest(schedule, request);
  if (!above(bytes, request.memory_limit)) return;
  const auto names = that_can(request);
  throw Error(
      Stage::plan, "schedule.memory", "memory",
      fmt::format("schedule {} holds activations of {} on stage {}, above the memory limit "
                  "of {}",
                  schedule.name, number_text(bytes), stage, number_text(request.memory_limit)),
      fmt::format("raise the limit to {}{}", number_text(bytes),
                  names.empty() ? "" : ", or take " + fmt::format("{}", fmt::join(names, " or "))));
}

Schedule empty_schedule(const Scheduler& scheduler, const ScheduleRequest& request) {
  Schedule schedule;
  schedule.name = scheduler.name();
  schedule.microbatches = request.microbatches;
  schedule.stage_of = scheduler.placement(request.stages, request.chunks);
  schedule.order.resize(static_cast<std::size_t>(request.stages));
  return schedule;
}

void keep_microbatches(Schedule& schedule, int count) {
  Schedule kept = schedule;
  for (auto& actions : kept.order) actions.clear();
  kept.joined.clear();
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    for (std::size_t k = 0; k < schedule.order[s].size();) {
      const std::size_t first = kept.order[s].size(), end = schedule.group_end(stage, k);
      for (; k < end; ++k)
        if (schedule.order[s][k].microbatch < count) kept.order[s].push_back(schedule.order[s][k]);
      for (std::size_t j = first; j + 1 < kept.order[s].size(); ++j) kept.join(stage, j);
    }
  }
  kept.microbatches = count;
  schedule = std::move(kept);
}

void add_pair(Schedule& schedule, int stage, const Action& forward, const Action& backward) {
  auto& order = schedule.order[static_cast<std::size_t>(stage)];
  order.push_back(forward);
  order.push_back(backward);
  schedule.join(stage, order.size() - 2);
}

void pair_wgrads(Schedule& schedule) {
  const auto fits = [](const Action& a, const Action& b) {
    if ((a.work == Work::wgrad) == (b.work == Work::wgrad)) return false;
    return a.vstage != b.vstage || a.microbatch != b.microbatch;
  };
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto& order = schedule.order[static_cast<std::size_t>(stage)];
    for (std::size_t k = 0; k + 1 < order.size(); ++k) {
      if (k > 0 && schedule.joins(stage, k - 1)) continue;
      if (fits(order[k], order[k + 1])) schedule.join(stage, k);
    }
  }
}

Options pair_option(const char* doc, bool fallback) {
  return Options().boolean("pair", doc).fallback(fallback);
}

bool pairs(const Values& values, bool fallback) {
  return values.has("pair") ? values.flag("pair") : fallback;
}

Values read_options(const Registration& found, const Values& values, const std::string& key,
                    const Json& options) {
  Problems problems;
  Values own = found.options().read(options, values.path(key), problems);
  problems.throw_if_any();
  own.set_reach(values.reach());
  return own;
}

std::string chunks_text(int chunks) {
  return fmt::format("{} chunk{}", chunks, chunks == 1 ? "" : "s");
}

std::string number_text(double value) {
  return fmt::format("{}", value);
}

std::vector<int> FixedScheduler::placement(int stages, int chunks) const {
  return v_shaped_ ? v_placement(stages) : round_robin_placement(stages, chunks);
}

Schedule FixedScheduler::make(const ScheduleRequest& request) const {
  validate(*this, request);
  Schedule schedule = empty_schedule(*this, request);
  fill_(request, pair_, schedule);
  refuse_if_above_limit(schedule, request);
  return schedule;
}

}  // namespace pp
