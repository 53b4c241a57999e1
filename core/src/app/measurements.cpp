#include "app/measurements.h"

#include <fmt/format.h>
#include <torch/version.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

#include "app/warm_up.h"
#include "base/text.h"
#include "meshwright/plugin.h"
#include "simulate/pipeline.h"

namespace mw {
namespace {

double median_after_warm_up(const std::vector<double>& values) {
  if (values.empty()) return 0;
  std::vector<double> kept(values.begin() + static_cast<std::ptrdiff_t>(warm_up(values.size())),
                           values.end());
  const auto middle = kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2);
  std::nth_element(kept.begin(), middle, kept.end());
  if (kept.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(kept.begin(), middle)) / 2;
}

}  // namespace

double seconds_since_start() {
  // Field 22 of stat: the start in clock ticks since boot. The name in field 2 may hold spaces.
  std::stringstream text;
  text << std::ifstream("/proc/self/stat").rdbuf();
  const std::string stat = text.str();
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) {
  }
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double ticks = std::strtod(field.c_str(), nullptr);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Measurements::Measurements(const Experiment& experiment, const Prediction& prediction,
                           const std::string& script)
    : experiment_(experiment), prediction_(prediction) {
  if (experiment.log.empty()) return;
  RunInfo info;
  info.script = script;
  info.plan = experiment.plan->description().dump(1);
  info.seed = experiment.seed;
  info.versions = {
      {"meshwright", MESHWRIGHT_VERSION}, {"torch", TORCH_VERSION}, {"toolchain", toolchain}};
  for (const auto& stage : prediction.actions) {
    for (const TimedAction& a : stage) {
      info.predicted_actions.push_back(
          {0, a.rank, a.stage, a.chunk, a.name, a.microbatch, a.start, a.end});
    }
  }
  writer_ = std::make_unique<RunWriter>(experiment.log, info);
}

const std::vector<RankPrediction>& Measurements::predicted_of(int plan) {
  std::vector<RankPrediction>& ranks = predicted_[plan];
  if (!ranks.empty()) return ranks;
  const Plan& what = plan == 0 ? *experiment_.plan : *experiment_.steps_apart->plans[plan];
  for (int rank = 0; rank < what.ranks(); ++rank)
    ranks.push_back(predict_rank(what, *experiment_.optimizer, rank));
  return ranks;
}

MemoryForecast Measurements::highest_memory(int rank) {
  const auto plans = experiment_.steps_apart ? experiment_.steps_apart->plans.size() : 1;
  const auto known = highest_.find(rank);
  if (known != highest_.end()) return known->second;
  MemoryForecast highest;
  for (std::size_t p = 0; p < plans; ++p)
    highest = highest_of(highest, predicted_of(static_cast<int>(p)).at(rank).memory);
  return highest_[rank] = highest;
}

double Measurements::rate_of(const StepReport& report) const {
  return static_cast<double>(experiment_.plan_at(report.step).tokens_per_step()) / report.seconds;
}

void Measurements::add(const StepReport& report) {
  if (losses_.empty()) startup_seconds_ = seconds_since_start() - report.seconds;
  losses_.push_back(report.loss);
  bubbles_.push_back(bubble_of(report));
  norms_.push_back(report.grad_norm);
  seconds_.push_back(report.seconds);
  rates_.push_back(rate_of(report));
  if (experiment_.steps_apart) batches_.push_back(experiment_.plan_at(report.step).request.batch);
  cpu_seconds_.push_back(report.cpu_seconds);
  loads_.take(report.ranks);
  if (writer_) write(report);
  loss_scale_ = report.loss_scale;
  if (report.left_out) skipped_.push_back(report.step);
  add_metrics(report);
  if (writer_) writer_->flush_if_due();
  ranks_ = report.ranks;
}

void Measurements::write(const StepReport& report) {
  StepRow row;
  row.step = report.step;
  row.seconds = report.seconds;
  row.loss = report.loss;
  row.grad_norm = report.grad_norm;
  row.lr = report.lr;
  row.tokens = experiment_.plan_at(report.step).tokens_per_step();
  row.tokens_per_second = rate_of(report);
  row.mfu = flops_of_token() * row.tokens_per_second / prediction_.peak_flops;
  row.bubble = bubble_of(report);
  writer_->add(row);

  std::vector<MemoryRow> memory;
  for (const RankReport& rank : report.ranks) write_rank(report.step, rank, memory);
  for (const auto& [layer, experts] : loads_.layers()) {
    for (const auto& [expert, load] : experts) {
      writer_->add(ExpertRow{report.step, layer, static_cast<std::int32_t>(expert), load.chosen,
                             load.taken});
    }
  }
  write_actions(report);
  writer_->set_memory(memory);
}

void Measurements::write_rank(std::int64_t step, const RankReport& rank,
                              std::vector<MemoryRow>& memory) {
  const Program& program = experiment_.plan->program_of(rank.rank);
  const MemoryForecast highest = highest_memory(rank.rank);
  const RankPrediction& predicted =
      predicted_of(experiment_.which_plan(step)).at(static_cast<std::size_t>(rank.rank));
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    memory.push_back({rank.rank, program.stage, name_of(category), rank.memory[c].bytes,
                      rank.memory[c].peak, highest[category]});
  }
  memory.push_back(
      {rank.rank, program.stage, "total", rank.peak_bytes, rank.peak_bytes, highest.peak});
  for (const auto& [key, use] : rank.communication) {
    CommunicationRow row;
    row.step = step;
    row.rank = rank.rank;
    row.axis = key.axis;
    row.op = key.op;
    row.phase = key.phase;
    row.calls = use.calls;
    row.bytes = use.bytes;
    row.seconds = use.seconds;
    const auto forecast = predicted.communication.find(key);
    if (forecast != predicted.communication.end()) row.predicted_bytes = forecast->second.bytes;
    for (const CommunicationForecast& c : prediction_.communication) {
      if (c.key == key) row.predicted_seconds = c.seconds;
    }
    writer_->add(row);
  }
  for (const auto& [key, use] : rank.work) {
    writer_->add(WorkRow{step, rank.rank, program.stage, key.op, key.piece, use.calls, use.flops,
                         use.seconds});
  }
}

// The step begins when its first rank does: one clock for all, so that rows of several ranks compare.
void Measurements::write_actions(const StepReport& report) {
  double began = std::numeric_limits<double>::infinity();
  for (const RankReport& rank : report.ranks) began = std::min(began, rank.began);
  for (const RankReport& rank : report.ranks) {
    const Program& program = experiment_.plan_at(report.step).program_of(rank.rank);
    for (const RunTime& run : rank.runs) {
      const Segment& segment = program.segments.at(static_cast<std::size_t>(run.segment));
      if (segment.kind == SegmentKind::post || segment.kind == SegmentKind::sent) continue;
      ActionRow row;
      row.step = report.step;
      row.rank = rank.rank;
      row.stage = program.stage;
      if (segment.kind != SegmentKind::finish) row.chunk = program.chunk_of(segment.vstage);
      row.action = action_name(segment);
      row.microbatch = run.microbatch;
      row.start = rank.began - began + run.start;
      row.end = rank.began - began + run.end;
      writer_->add(row);
    }
  }
}

void Measurements::add_metrics(const StepReport& report) {
  const std::int64_t step = report.step;
  const Json given = experiment_.observe ? experiment_.observe(step) : Json();
  std::vector<std::pair<std::string, double>> metrics;
  if (experiment_.loss_scale) {
    metrics.emplace_back("loss_scale", report.loss_scale);
    metrics.emplace_back("skipped", report.left_out ? 1 : 0);
  }
  if (given.is_object()) {
    for (const auto& [name, value] : given.items()) {
      if (name.starts_with('$')) continue;
      if (!value.is_number()) {
        throw Error(Stage::run,
                    fmt::format("observe({}) returned {} = {}, which is no number", step, name,
                                value.dump()),
                    "return { name = number }");
      }
      metrics.emplace_back(name, value.get<double>());
    }
  } else if (!given.is_null()) {
    throw Error(Stage::run, fmt::format("observe({}) returned {}", step, given.dump()),
                "return { name = number }, or nothing");
  }
  if (writer_ && !metrics.empty()) writer_->add_series(step, metrics);
}

void Measurements::finish(RunStatus status) {
  if (writer_) writer_->finish(status);
}

double Measurements::step_seconds() const {
  return median_after_warm_up(seconds_);
}

double Measurements::tokens_per_second() const {
  return median_after_warm_up(rates_);
}

std::int64_t Measurements::peak_bytes() const {
  std::int64_t peak = 0;
  for (const RankReport& rank : ranks_) peak = std::max(peak, rank.peak_bytes);
  return peak;
}

double Measurements::mfu() const {
  return flops_of_token() * tokens_per_second() / prediction_.peak_flops;
}

// Steps of smaller batches have as many for each.
double Measurements::flops_of_token() const {
  return prediction_.flops_per_step / static_cast<double>(experiment_.plan->tokens_per_step());
}

std::map<CommunicationKey, CommunicationUse> Measurements::communication_use() const {
  std::map<CommunicationKey, CommunicationUse> most;
  for (const RankReport& rank : ranks_) {
    for (const auto& [key, use] : rank.communication) {
      CommunicationUse& known = most[key];
      if (std::pair(use.bytes, use.calls) > std::pair(known.bytes, known.calls)) known = use;
    }
  }
  return most;
}

// Of all ranks' time in the step, what they waited for another stage's work: in receives and for the
// totals, at which all meet.
double Measurements::bubble_of(const StepReport& report) const {
  if (experiment_.plan->stages() == 1) return 0;  // no other stage to wait for
  double idle = 0, all = 0;
  for (const RankReport& rank : report.ranks) {
    const Program& program = experiment_.plan_at(report.step).program_of(rank.rank);
    for (const RunTime& run : rank.runs) {
      const Segment& segment = program.segments.at(static_cast<std::size_t>(run.segment));
      const bool totals = !segment.code.empty() && segment.code.front().code == Code::totals;
      if (segment.kind == SegmentKind::receive || totals) idle += run.end - run.start;
    }
    if (!rank.runs.empty()) all += rank.runs.back().end - rank.runs.front().start;
  }
  return all > 0 ? idle / all : 0;
}

double Measurements::bubble_fraction() const {
  return median_after_warm_up(bubbles_);
}

std::int64_t Measurements::memory_peak(Category category) const {
  std::int64_t peak = 0;
  for (const RankReport& rank : ranks_) {
    peak = std::max(peak, rank.memory[static_cast<int>(category)].peak);
  }
  return peak;
}

std::string Measurements::check_text() const {
  if (check_.steps == 0) return "";
  const double own = check_.seconds / static_cast<double>(check_.steps);
  std::string text = fmt::format(
      "  check: of {} tensors a step all lie as the plan says and are finite, {} are equal on "
      "their "
      "replicas; {:.1f} ms of a rank's step ({:.0f} %)\n",
      check_.tensors / check_.steps, check_.replicas / check_.steps, 1e3 * own,
      100 * own / step_seconds());
  if (!check_.unused.empty())
    text += fmt::format("  without a gradient in any step: {}\n", join(check_.unused));
  return text;
}

Json Measurements::memory() const {
  Json memory = Json::object();
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    memory[name_of(category)] = memory_peak(category);
  }
  return memory;
}

Json Measurements::communication() const {
  Json list = Json::array();
  for (const auto& [key, use] : communication_use()) {
    list.push_back({{"axis", key.axis},
                    {"op", key.op},
                    {"phase", key.phase},
                    {"calls", use.calls},
                    {"bytes", use.bytes},
                    {"seconds", use.seconds}});
  }
  return list;
}

Json Measurements::result(RunStatus status) const {
  const Plan& plan = *experiment_.plan;
  Json result;
  result["status"] = name_of(status);
  result["plan"] = plan.mix();
  result["plan_hash"] = plan.hash();
  result["ranks"] = plan.ranks();
  result["steps"] = losses_.size();
  result["losses"] = losses_;
  if (!batches_.empty()) result["batches"] = batches_;
  result["grad_norms"] = norms_;
  result["step_seconds"] = step_seconds();
  result["tokens_per_second"] = tokens_per_second();
  result["cpu_seconds_per_step"] = median_after_warm_up(cpu_seconds_);
  result["mfu"] = mfu();
  result["bubble_fraction"] = bubble_fraction();
  result["startup_seconds"] = startup_seconds_;
  result["peak_bytes"] = peak_bytes();
  result["memory"] = memory();
  result["communication"] = communication();
  if (experiment_.loss_scale) {
    result["loss_scale"] = loss_scale_;
    result["skipped_steps"] = skipped_;
  }
  if (!loads_.empty()) result["experts"] = loads_.to_json();
  if (check_.steps > 0) {
    result["check"] = {{"tensors", check_.tensors},
                       {"replicas", check_.replicas},
                       {"seconds_per_step", check_.seconds / static_cast<double>(check_.steps)},
                       {"unused", check_.unused}};
  }
  result["predicted"] = prediction_.to_json();
  result["log"] = experiment_.log.empty() ? Json() : Json(experiment_.log);
  return result;
}

}  // namespace mw
