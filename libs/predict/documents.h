// The work of steps whose rows hold documents: drawn from the data, for each rank and microbatch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/json.h"

namespace mw {

// What documents make of a plan's steps, by steps that are drawn from its data. Work is that of
// one attention of the model (attention_of_documents).
struct DocumentForecast {
  std::int64_t steps = 0;    // steps that were drawn
  double mean = 0, p95 = 0;  // seconds of a step; `p95` is exceeded by 5 % of the steps
  double work = 0;           // work over that of rows of one document each
  // Imbalances, each the most work over the mean. `ranks` compares ranks that have different rows,
  // and `microbatches` the microbatches of the slowest of these ranks; both are means over the
  // steps. `context` compares ranks that share sequences, in the worst of the priced steps.
  double ranks = 1, microbatches = 1, context = 1;
  Json to_json() const;
};

// The attention with the most work that reads where documents begin; -1: there is none.
int attention_of_documents(const Graph& graph);

// The work of one drawn step, of the attention `op`. Ranks over which the batch is split
// are numbered by the groups of rows that they have of each microbatch (Program::groups_of_rows).
class StepWork final : public DocumentWork {
 public:
  StepWork(const Plan& plan, std::int64_t step, int op);
  int kind(const RankView& rank, int microbatch) const override;
  double share(const RankView& rank, int op, int part, int microbatch) const override;

  // Seconds of a group's ranks are about in proportion to this: the sum over its microbatches, and
  // the largest of these once for each further stage.
  double load(int group) const;
  std::vector<int> by_load() const;  // the groups, the one with the least load first
  double mean() const;               // work over that of rows of one document each
  double imbalance_of_ranks() const;
  double imbalance_of_microbatches() const;
  // The rank of the view's stage that has the rows of `group`, and the most work of those that
  // share its sequences. `imbalance` becomes its work over their mean, if that is more.
  Coordinates slowest_of(const RankView& rank, int group, double& imbalance) const;

 private:
  struct Group {
    double sum = 0, most = 0;  // over microbatches
  };
  Group group(int number) const;
  int group_of(const Program& program, const Coordinates& at) const;

  const Program& program_;
  const int stages_, op_;
  OpType::DocumentsOfRows rows_;  // the documents of each row of the step
  // The share of the work of whole rows that each group has, listed by microbatch, then by group.
  std::vector<double> groups_;
};

// The first steps of the data; fewer where they have many tokens.
std::vector<StepWork> draw_steps(const Plan& plan, int op);

}  // namespace mw
