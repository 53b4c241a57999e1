// Collects each training step's reports from all ranks: speed, MFU, bubble, memory and bytes,
// the rows of the run file, and whether the loss diverged.
#include "app/measurements.h"

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <ctime>

#include "common/process.h"
#include "common/statistics.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/text.h"
#include "predict/imbalance.h"
#include "predict/step_counts.h"
#include "script/identity.h"

namespace mw {
namespace {

double median_of(const std::vector<StepRow>& rows, double StepRow::*what) {
  std::vector<double> values;
  for (const StepRow& row : rows) values.push_back(row.*what);
  return median_after_warm_up(values);
}

}  // namespace

double seconds_since_start() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const auto ticks = static_cast<double>(process_start(::getpid()).value_or(0));
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Measurements::Measurements(const Experiment& experiment, const Prediction& prediction,
                           const RunOrigin& origin, Checkpoints* checkpoints)
    : experiment_(experiment),
      prediction_(prediction),
      checkpoints_(checkpoints),
      log_(experiment, prediction, origin, checkpoints),
      events_(experiment, experiment, origin, checkpoints) {
  if (checkpoints != nullptr) take_past();
}

void Measurements::add_held_out(std::int64_t step, const HeldOut& held_out) {
  held_out_.push_back(
      {{"step", step},
       {"loss", held_out.loss},
       {"tokens", experiment_.evaluation.batches * experiment_.plan->tokens_per_step()},
       {"seconds", held_out.seconds}});
}

std::string Measurements::add(const StepReport& report, const CoreUse& use,
                              const std::optional<HeldOut>& held_out) {
  at_step_ = report.step;
  complete_ = false;
  if (rows_.empty()) startup_seconds_ = seconds_since_start() - report.seconds;
  losses_.push_back(report.loss);
  norms_.push_back(report.grad_norm);
  if (experiment_.step_plans) batches_.push_back(experiment_.plan_at(report.step).request.batch);
  loads_.take(report.ranks);
  ranks_ = report.ranks;
  loss_scale_ = report.loss_scale;
  if (report.update_left_out) skipped_.push_back(report.step);
  if (report.labels == 0) without_labels_.push_back(report.step);
  const StepRow& row = rows_.emplace_back(row_of(report, use));
  log_.write(report, row, loads_);
  events_.write(report, row);
  std::string news = look_for_divergence(report);
  if (report.labels == 0) {
    news = fmt::format("step {}: no label counts, so that there is no loss and no update",
                       report.step);
    log_.event(report.step, -1, "no-labels", news);
  }
  if (held_out) {
    add_held_out(report.step, *held_out);
    news += fmt::format("{}step {}: held-out loss {}", news.empty() ? "" : "\n", report.step,
                        std::isnan(held_out->loss) && experiment_.held_out_data->masks_labels()
                            ? "none, as no label counts"
                            : fmt::format("{:.4f}", held_out->loss));
  }
  if (!events_.lost().empty() && !said_lost_) {
    news += fmt::format("{}the run goes on without events, and fails at its end: {}",
                        news.empty() ? "" : "\n", events_.lost());
    said_lost_ = true;
  }
  return news;
}

StepRow Measurements::row_of(const StepReport& report, const CoreUse& use) const {
  StepRow row;
  row.step = report.step;
  row.seconds = report.seconds;
  row.loss = report.loss;
  row.grad_norm = report.grad_norm;
  row.lr = report.lr;
  row.tokens = report.tokens;
  row.tokens_per_second = static_cast<double>(row.tokens) / report.seconds;
  row.mfu = flops_of_token() * row.tokens_per_second / prediction_.peak_flops;
  row.bubble = bubble_of(report);
  row.cpu_seconds = report.cpu_seconds;
  row.others_cores = use.others;
  row.throttled_cores = use.throttled;
  row.clock = use.clock;
  return row;
}

RunTiming Measurements::timing() const {
  const int ranks = experiment_.plan->ranks();
  std::vector<TimedStep> steps;
  for (const StepRow& row : rows_)
    steps.push_back(
        {row.seconds, row.cpu_seconds, {row.others_cores, row.throttled_cores, row.clock}});
  return timing_of(steps, ranks * threads_of_rank(ranks, experiment_.threads), core_count());
}

Parting Measurements::parting() const {
  return parting_of(timing(),
                    {prediction_.step_seconds, prediction_.step_error, experiment_.plan->ranks()});
}

// A step whose update was left out because its gradients overflowed does not count. If NaN ends the
// run, whatever ends it reports more.
std::string Measurements::look_for_divergence(const StepReport& report) {
  if (experiment_.stops_on_nan || report.labels == 0) return "";
  const bool loss = std::isfinite(report.loss), norm = std::isfinite(report.grad_norm);
  if ((report.update_left_out && loss) || (loss && norm) == diverged_.empty()) return "";
  if (loss && norm) {
    diverged_.clear();
    std::string news =
        fmt::format("the loss and the gradient norm are finite again from step {} on", report.step);
    log_.event(report.step, -1, "recovered", news);
    return news;
  }
  diverged_ =
      fmt::format("diverged: the {} is {} from step {} on", loss ? "gradient norm" : "loss",
                  std::isnan(loss ? report.grad_norm : report.loss) ? "NaN" : "Inf", report.step);
  log_.event(report.step, -1, "diverged", diverged_);
  return diverged_ + "; Ctrl-C ends the run, check = true says where it begins";
}

void Measurements::started_again(const Attempt& attempt) {
  restarts_ = attempt.restart();
  if (restarts_ > 0) log_.event(at_step_, -1, "restarted", attempt.text());
}

void Measurements::keep_places(const std::vector<RankPlace>& places) {
  places_ = Json::array();
  const auto call = [](const RankPlace::Call& c) {
    return c.axis.empty()
               ? Json()
               : Json{{"axis", c.axis}, {"op", c.op}, {"label", c.label}, {"phase", c.phase}};
  };
  for (const RankPlace& place : places) {
    log_.event(at_step_, place.rank, "rank", comm::text_of(place));
    places_.push_back({{"rank", place.rank},
                       {"state", name_of(place.state)},
                       {"done", place.done},
                       {"last", call(place.last)},
                       {"in", call(place.waits)},
                       {"inside", place.inside.empty() ? Json() : Json(place.inside)},
                       {"seconds", place.seconds}});
  }
}

void Measurements::stopped_diverging(const RankFailed& why) {
  diverged_ = "diverged: " + why.problems().front().message;
  log_.event(at_step_ - 1, why.rank(), "diverged", diverged_);
  for (std::size_t k = 1; k < why.problems().size(); ++k)  // of observers that heard of it
    log_.event(at_step_ - 1, why.rank(), "note", why.problems()[k].message);
}

void Measurements::add_metrics(std::int64_t step, const StepMetrics& metrics) {
  if (!metrics.empty()) {
    log_.add_series(step, metrics);
    events_.add_series(step, metrics);
  }
  at_step_ = step + 1;
  complete_ = true;
  flush_if_due();
}

void Measurements::flush_if_due() {
  if (!complete_) return;  // a file has a step with its metrics, or without both
  log_.flush_if_due();
  events_.flush_if_due();
}

RunStatus Measurements::conclude(bool interrupted, const std::string& ended_by) {
  if (interrupted) {
    const std::string by = stop_signal();
    reason_ = fmt::format("interrupted{} after {} of {}", by.empty() ? "" : " by " + by,
                          losses_.size(), plural(experiment_.steps, "step"));
    log_.event(at_step_ - 1, -1, "interrupted", reason_);
  } else {
    if (!ended_by.empty() && at_step_ < experiment_.steps) {
      reason_ = fmt::format("stopped by {} after step {}", ended_by, at_step_ - 1);
      log_.event(at_step_ - 1, -1, "stopped", reason_);
    }
    if (!diverged_.empty()) reason_ = diverged_;
  }
  if (interrupted) return RunStatus::interrupted;
  if (!diverged_.empty()) return RunStatus::failed;
  events_.flush();
  if (!written_.empty() && !written_.back().news.failed.empty())
    reason_ = fmt::format("the checkpoint at its end is missing: {}", written_.back().news.failed);
  else if (!events_.lost().empty())
    reason_ = events_.lost();
  else
    return RunStatus::done;
  log_.event(at_step_ - 1, -1, "failed", reason_);
  return RunStatus::failed;
}

void Measurements::close(RunStatus status, const Json& result) {
  events_.finish(status == RunStatus::done);
  log_.set_result(result);
  log_.finish(status, reason_);
}

std::string Measurements::fail(RunStatus status, int rank, const std::string& why,
                               const std::function<Json()>& result) {
  reason_ = why;
  events_.flush();
  log_.set_result(result());
  log_.event(at_step_, rank, name_of(status), why);
  return log_.end_badly(status, why);
}

RunSpeed Measurements::speed() const {
  return rows_.empty() ? RunSpeed{0, 0, 0} : speed_of(rows_, timing());
}

std::int64_t Measurements::peak_bytes() const {
  std::int64_t peak = 0;
  for (const RankReport& rank : ranks_) peak = std::max(peak, rank.peak_bytes);
  return peak;
}

// Model flops of one token; they are the same in steps of smaller batches.
double Measurements::flops_of_token() const {
  return prediction_.flops_per_step / static_cast<double>(experiment_.plan->tokens_per_step());
}

std::map<CommunicationKey, CommunicationUse> Measurements::communication_use() const {
  Traffic most;
  for (const RankReport& rank : ranks_) take_most(most, rank.communication);
  return most;
}

// The share of all ranks' time in the step in which they waited for another stage's work: in
// receives, and before the totals, where all ranks meet.
double Measurements::bubble_of(const StepReport& report) const {
  if (experiment_.plan->stages() == 1) return 0;  // no other stage to wait for
  double idle = 0, all = 0;
  for (const RankReport& rank : report.ranks) {
    const Program& program = experiment_.plan_at(report.step).program_of(rank.rank);
    for (const RunTime& run : rank.runs) {
      const Segment& segment = program.segments.at(static_cast<std::size_t>(run.segment));
      const bool totals = !segment.code.empty() && segment.code.back().makes_totals();
      if (segment.kind == SegmentKind::receive || totals) idle += run.end - run.start;
    }
    if (!rank.runs.empty()) all += rank.runs.back().end - rank.runs.front().start;
  }
  return all > 0 ? idle / all : 0;
}

double Measurements::bubble_fraction() const {
  return median_of(rows_, &StepRow::bubble);
}

std::int64_t Measurements::memory_peak(Category category) const {
  std::int64_t peak = 0;
  for (const RankReport& rank : ranks_) {
    peak = std::max(peak, rank.memory[static_cast<int>(category)].peak);
  }
  return peak;
}

std::string Measurements::check_text() const {
  if (check_.compared == 0) return "";
  const double own = check_.seconds / static_cast<double>(check_.steps);
  if (check_.every > 0) {
    return fmt::format(
        "\n  check: of {} tensors that ranks keep, {} were equal on their replicas after each "
        "of {} that were looked at; {:.1f} ms each ({:.1f} % of the run)\n",
        check_.tensors / check_.compared, check_.replicas / check_.compared,
        plural(check_.compared, "step"),
        1e3 * check_.seconds / static_cast<double>(check_.compared), 100 * own / step_seconds());
  }
  std::string text = fmt::format(
      "\n  check: {} tensors a step have the planned placement and are finite, {} are equal on "
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
  result["reason"] = reason_.empty() ? Json() : Json(reason_);
  result["plan"] = plan.mix();
  result["plan_hash"] = plan.hash();
  result.update(identity_of(experiment_, experiment_.seed));
  result["ranks"] = plan.ranks();
  result["steps"] = losses_.size();
  result["losses"] = losses_;
  if (!batches_.empty()) result["batches"] = batches_;
  result["grad_norms"] = norms_;
  result["step_seconds"] = step_seconds();
  result["tokens_per_second"] = tokens_per_second();
  result["cpu_seconds_per_step"] = median_of(rows_, &StepRow::cpu_seconds);
  result["timing"] = timing().to_json();
  if (const Parting parts = parting(); !parts.text.empty()) result["parting"] = parts.to_json();
  result["mfu"] = mfu();
  result["bubble_fraction"] = bubble_fraction();
  result["startup_seconds"] = startup_seconds_;
  result["peak_bytes"] = peak_bytes();
  result["memory"] = memory();
  result["communication"] = communication();
  if (experiment_.held_out_data) {
    result["held_out"] = held_out_;
    result["held_out_loss"] = held_out_.empty() ? Json() : held_out_.back()["loss"];
  }
  if (experiment_.loss_scale) {
    result["loss_scale"] = loss_scale_;
    result["skipped_steps"] = skipped_;
  }
  if (!without_labels_.empty()) result["steps_without_labels"] = without_labels_;
  add_checkpoints(result);
  if (!loads_.empty()) {
    result["experts"] = loads_.to_json();
    // Below 1, a limited capacity of experts was not filled, and no rank was too full.
    const double imbalance = loads_.most_rows_share() * plan.imbalance.factor;
    if (imbalance >= 1) result["experts"]["rank_imbalance"] = imbalance;
    const std::string note = rows_note(plan, loads_.most_rows_share());
    if (!note.empty()) result["experts"]["note"] = note;
  }
  if (check_.compared > 0) {
    result["check"] = {{"tensors", check_.tensors},
                       {"replicas", check_.replicas},
                       {"seconds_per_step", check_.seconds / static_cast<double>(check_.steps)}};
    if (check_.every > 0) {
      result["check"]["compared_steps"] = check_.compared;
    } else {
      result["check"]["unused"] = check_.unused;
    }
  }
  result["predicted"] = prediction_.to_json();
  if (restarts_ > 0) result["restarts"] = restarts_;
  if (!places_.is_null()) result["last_collectives"] = places_;
  result["log"] = experiment_.log.empty() ? Json() : Json(experiment_.log);
  if (!experiment_.folder.empty()) result["folder"] = experiment_.folder;
  if (!experiment_.tensorboard.empty()) result["tensorboard"] = experiment_.tensorboard;
  return result;
}

}  // namespace mw
