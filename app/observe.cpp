// Observers that add the run's own metrics to a step's, and hand all metrics to the recorder.
#include "app/observe.h"

#include "app/measurements.h"

namespace mw {

void OwnMetrics::step(RankRun& /*rank*/, StepEnd& end) {
  if (end.report == nullptr) return;
  if (scales_) {
    end.metrics.emplace_back("loss_scale", end.report->loss_scale);
    end.metrics.emplace_back("skipped", end.report->update_left_out ? 1 : 0);
  }
  if (masks_) end.metrics.emplace_back("labels", static_cast<double>(end.report->labels));
  if (end.held_out) end.metrics.emplace_back("held_out_loss", end.held_out->loss);
}

void RecordMetrics::step(RankRun& /*rank*/, StepEnd& end) {
  if (end.report == nullptr) return;
  // If the run fails, this observer may be gone before the recorder adds the metrics.
  recorder_.hand_over([&measured = measured_, step = end.step, metrics = end.metrics] {
    measured.add_metrics(step, metrics);
  });
}

}  // namespace mw
