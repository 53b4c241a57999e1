// How each step's batch is parted into microbatches, as a script says it.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "plan/plan.h"

namespace mw {

// What a step computes with: `batch` sequences over all ranks, in microbatches of `microbatch` on
// each rank, or of `sizes` where they are given one by one.
struct StepShape {
  std::int64_t batch = 0, microbatch = 0;
  std::vector<std::int64_t> sizes;
  bool at_most = false;  // a rank may have fewer than `microbatch`
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

// The plans of a run whose steps differ. All keep the same parameters in the same tensors.
struct StepPlans {
  std::vector<std::shared_ptr<const Plan>> plans;  // the first: of the largest batch
  std::vector<int> of_step;                        // which of them
  std::vector<std::int64_t> first;                 // sample of each step
};

// A table that stands for `microbatch`: mw.microbatch.fit { … }, mw.microbatch.ramp { … }.
class MicrobatchKind {
 public:
  explicit MicrobatchKind(std::string name, std::string doc, Options options)
      : name_(std::move(name)), doc_(std::move(doc)), options_(std::move(options)) {}
  const std::string& name() const { return name_; }  // "microbatch.fit"
  const std::string& doc() const { return doc_; }
  const Options& options() const { return options_; }

 private:
  std::string name_, doc_;
  Options options_;
};
const std::vector<const MicrobatchKind*>& microbatch_kinds();

struct MicrobatchPolicy {
  std::int64_t size = 0;  // sequences of a microbatch; 0: all that a rank has
  std::int64_t fit = 0;   // bytes that a rank may hold; 0: no limit decides
  // The shape of a step, if not all are alike; `sample`: its first.
  std::function<StepShape(std::int64_t step, std::int64_t sample)> shape;
};

// `given`: what the script wrote; null: nothing. `limit`: the experiment's own, 0 if it has none.
// `call`: a script's function (lua/host.h).
MicrobatchPolicy read_microbatch(
    const Json& given, std::int64_t batch, std::int64_t limit,
    const std::function<Json(std::int64_t, const std::vector<Json>&)>& call, Problems& problems);

// The request's plan with the policy; of steps that differ, that of the largest batch, and all of
// them in `steps`. Null if there are problems.
std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems);

}  // namespace mw
