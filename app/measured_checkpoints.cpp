// The checkpoints of a run's measurements: the past that a resumed run takes over, and the
// checkpoints that it writes.
#include <fmt/format.h>

#include "app/measurements.h"

namespace mw {

void Measurements::take_past() {
  for (const PastStep& step : checkpoints_->past()) {
    const auto index = static_cast<std::int64_t>(losses_.size());
    if (step.left_out) skipped_.push_back(index);
    if (!step.has_labels) without_labels_.push_back(index);
    if (experiment_.step_plans && index < experiment_.steps)
      batches_.push_back(experiment_.plan_at(index).request.batch);
    losses_.push_back(step.loss);
    norms_.push_back(step.grad_norm);
    loss_scale_ = step.loss_scale;
  }
  for (const PastEvaluation& evaluation : checkpoints_->past_evaluations())
    add_held_out(evaluation.step, {evaluation.loss, evaluation.seconds});
  at_step_ = checkpoints_->first_step();
}

std::vector<Measurements::CheckpointWords> Measurements::take_checkpoints() {
  std::vector<CheckpointWords> texts;
  if (checkpoints_ == nullptr) return texts;
  for (CheckpointReport& report : checkpoints_->reports()) {
    const CheckpointNews& news = report.news;
    const bool failed = !news.failed.empty();
    std::string text =
        failed ? fmt::format("no checkpoint of step {}: {}", news.step, news.failed)
               : fmt::format(
                     "checkpoint of step {}: {}, {:.1f} ms of the steps' time, {:.1f} ms "
                     "beside them",
                     news.step, format_bytes(static_cast<double>(news.bytes)), 1e3 * report.waited,
                     1e3 * news.seconds);
    if (!news.stays.empty()) text += "; " + news.stays;
    texts.push_back({text, failed || !news.stays.empty()});
    log_.event(news.step - 1, -1, failed ? "checkpoint-failed" : "checkpoint", text);
    written_.push_back(std::move(report));
  }
  return texts;
}

Json Measurements::checkpoints() const {
  double waited = 0, seconds = 0;
  std::int64_t count = 0, bytes = 0, last = -1;
  Json failed = Json::array();
  for (const CheckpointReport& report : written_) {
    if (!report.news.failed.empty()) {
      failed.push_back({{"step", report.news.step}, {"reason", report.news.failed}});
      continue;
    }
    ++count;
    bytes = report.news.bytes;
    last = report.news.step;
    waited += report.waited;
    seconds += report.news.seconds;
  }
  return {{"path", experiment_.checkpoint.path},
          {"written", count},
          {"last", last < 0 ? Json() : Json(last)},
          {"bytes", bytes},
          {"waited_seconds", waited},
          {"write_seconds", seconds},
          {"failed", failed}};
}

void Measurements::add_checkpoints(Json& result) const {
  if (checkpoints_ == nullptr) return;
  if (!experiment_.checkpoint.path.empty()) result["checkpoints"] = checkpoints();
  if (const Checkpoint* from = checkpoints_->from()) {
    result["resumed"] = {{"step", from->index().step},
                         {"from", from->folder().string()},
                         {"mix", from->index().mix}};
  }
}

}  // namespace mw
