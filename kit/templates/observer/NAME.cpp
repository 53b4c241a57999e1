// The observer @NAME@: looks on while a run goes, and adds a number to each step.
#include <cstddef>
#include <vector>

#include "meshwright/observer.h"
#include "meshwright/plugin.h"

namespace {

// The mean of the losses of the last steps.
class @CLASS@ final : public mw::RunObserver {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("window", "steps of which the mean is taken")
        .at_least(1)
        .fallback(10)
        .positional("window");
  }
  // Opens no file: a plan is made with it too. begin() may.
  explicit @CLASS@(const mw::Values& values)
      : window_(static_cast<std::size_t>(values.integer("window"))) {}

  // Each rank calls begin(), step() and finish() in a thread of its own; rank 0 alone has `report`.
  void step(mw::RankRun&, mw::StepEnd& end) override {
    if (end.report == nullptr) return;
    losses_.push_back(end.report->loss);
    if (losses_.size() > window_) losses_.erase(losses_.begin());
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    end.metrics.emplace_back("@NAME@", sum / static_cast<double>(losses_.size()));
  }

 private:
  const std::size_t window_;
  std::vector<double> losses_;
};

}  // namespace

MESHWRIGHT_PLUGIN("@NAME@", "0.1.0", "the mean of the losses of the last steps",
                  mw::observer<@CLASS@>())
