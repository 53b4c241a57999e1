// The work of steps whose rows hold documents: drawn from the data, for each rank and microbatch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/json.h"

namespace mw {

// What documents make of a plan's steps, by steps that are drawn from its data. Work is counted in
// pairs of a token and one that it sees.
struct DocumentForecast {
  std::int64_t steps = 0;    // steps that were drawn
  double mean = 0, p95 = 0;  // seconds of a step; `p95` is exceeded by 5 % of the steps
  double work = 0;           // work over that of rows of one document each
  // The most work over the mean, averaged over the steps: of ranks over which the data are divided,
  // of microbatches of one of these, of ranks that share a sequence.
  double ranks = 1, microbatches = 1, context = 1;
  Json to_json() const;
};

// The work of one drawn step.
class StepWork final : public DocumentWork {
 public:
  StepWork(const Plan& plan, std::int64_t step);
  int kind(const RankView& rank, int microbatch) const override;
  double share(const RankView& rank, int op, int part, int microbatch) const override;

  // Seconds of a rank are about in proportion to this: the sum over its microbatches, and the
  // largest of these once for each further stage. `number`: of the rank's group among those of a
  // microbatch (Program::groups_of_rows).
  double seconds_like(int number) const;
  int slowest() const;  // the group for which that is largest
  int median() const;
  // Pairs over those of rows of one document each.
  double mean() const;
  // The most work over the mean: of groups, and of the microbatches of the slowest one.
  double imbalance_of_ranks() const;
  double imbalance_of_microbatches() const;

 private:
  struct Group {
    double sum = 0, most = 0;  // over microbatches
  };
  Group group(int number) const;

  const Program& program_;
  const int stages_;
  OpType::DocumentsOfRows rows_;  // of the step
  std::vector<double> groups_;    // by microbatch, then by group: pairs over those of whole rows
  int ways_ = 1;                  // groups of a microbatch
};

// The first steps of the data; fewer where they have many tokens.
std::vector<StepWork> draw_steps(const Plan& plan);

// The rank of the view's stage that has the rows of `group`, and the most work of those that share
// its sequences. `imbalance` becomes its work over their mean, if that is more.
Coordinates slowest_of_group(const RankView& rank, const StepWork& work, int group,
                             double& imbalance);

}  // namespace mw
