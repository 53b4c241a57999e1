// Evaluates a run's model between two steps, on all ranks alike.
#include "observers/held_out.h"

#include <limits>

#include "meshwright/engine/host.h"

namespace mw {

void HeldOutLoss::step(RankRun& rank, StepEnd& end) {
  if (end.outcome.stop || end.outcome.not_finite) return;
  if ((end.step + 1) % every_ != 0 && end.step + 1 != steps_) return;
  const double began = seconds_now();
  // Gathers of updated parameters would end in the next step. They are awaited here, and it will
  // not send them again.
  rank.await_updates();
  const auto sent = rank.ledger().communication();
  HeldOut result;
  std::int64_t labels = 0;
  for (std::int64_t batch = 0; batch < batches_ && !end.stopped; ++batch) {
    const StepOutcome done = rank.evaluate(first_ + batch);
    labels += done.labels;  // the mean so far moves to this batch's by its share of the labels
    if (done.labels > 0)
      result.loss += (done.loss - result.loss) * static_cast<double>(done.labels) /
                     static_cast<double>(labels);
    end.stopped = done.stop && batch + 1 < batches_;
  }
  if (labels == 0) result.loss = std::numeric_limits<double>::quiet_NaN();
  rank.ledger().clear_step(sent);
  result.seconds = seconds_now() - began;
  end.apart = true;
  if (end.stopped) end.last = true;  // the mean of some of the batches is no result
  if (end.stopped) return;
  if (end.report != nullptr) end.held_out = result;
}

}  // namespace mw
