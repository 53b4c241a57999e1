// Evaluates a run's model between two steps, on all ranks alike.
#include "observers/held_out.h"

#include <algorithm>
#include <limits>

#include "meshwright/engine/host.h"

namespace mw {
namespace {

// The mean loss of the labels that count; NaN if none does.
class Mean {
 public:
  void add(const StepOutcome& batch) {
    labels_ += batch.labels;  // the mean so far moves to this batch's by its share of the labels
    if (batch.labels > 0)
      loss_ +=
          (batch.loss - loss_) * static_cast<double>(batch.labels) / static_cast<double>(labels_);
  }
  double loss() const { return labels_ > 0 ? loss_ : std::numeric_limits<double>::quiet_NaN(); }

 private:
  double loss_ = 0;
  std::int64_t labels_ = 0;
};

}  // namespace

void HeldOutLoss::step(RankRun& rank, StepEnd& end) {
  if (end.outcome.stop || end.outcome.not_finite) return;
  if ((end.step + 1) % every_ != 0 && end.step + 1 != steps_) return;
  const double began = seconds_now();
  // Gathers of updated parameters would end in the next step. They are awaited here, and it will
  // not send them again.
  rank.await_updates();
  const auto sent = rank.ledger().communication();
  HeldOut result;
  Mean all;
  std::vector<Mean> of_set(sets_.size());
  const std::int64_t last = first_ + batches_;
  for (std::int64_t batch = first_; batch < last && !end.stopped; ++batch) {
    const StepOutcome done = rank.evaluate(batch);
    all.add(done);
    if (!sets_.empty()) of_set[static_cast<std::size_t>(batch) % sets_.size()].add(done);
    end.stopped = done.stop && batch + 1 < last;
  }
  result.loss = all.loss();
  rank.ledger().clear_step(sent);
  result.seconds = seconds_now() - began;
  end.apart = true;
  if (end.stopped) end.last = true;  // the mean of some of the batches is no result
  if (end.stopped) return;
  if (end.report == nullptr) return;
  end.held_out = result;
  for (std::size_t set = 0; set < sets_.size(); ++set)
    end.metrics.emplace_back("held_out_loss." + sets_[set], of_set[set].loss());
}

}  // namespace mw
