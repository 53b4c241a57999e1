// The plan: the resolved, immutable answer to a script. Everything later reads it: the engine runs
// its program, the simulator prices it, `plan` prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/activations.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/error.h"
#include "meshwright/graph.h"
#include "meshwright/microbatch.h"
#include "meshwright/model.h"
#include "meshwright/optimizer.h"
#include "meshwright/program.h"
#include "meshwright/schedule.h"
#include "meshwright/strategy.h"

namespace mw {

// bf16: parameters and computation. The optimizer keeps fp32 masters and states beside them, and
// sums whose error would grow (norms, softmax, the loss) are made in fp32 (Micikevicius et al.
// 2018, section 3.1). fp16: the same, with its narrower range (engine/loss_scale.h).
using Precision = Dtype;  // one of the reals
Precision precision_of(const std::string& name);

// One entry of a script's `plan` list, its options checked.
struct StrategyChoice {
  std::string name;  // "tp"
  std::string path;  // "plan[2]": for messages
  Json options;
  std::shared_ptr<const Strategy> strategy;
  std::vector<AxisRequest> axes = {};  // what it asks for; filled in by make_plan
  // The same with another number of ways; throws Error if its options do not allow it.
  // Null: cannot be made again.
  std::function<StrategyChoice(std::int64_t ways)> with_ways = nullptr;
  // Its options that are not the default, ways apart, as names of mixes have them:
  // "prefetch = 2, stage = 3".
  std::string differs = {};
  // The entry that it was made of, with what its author wrote and nothing else; null: none.
  Json written = {};
};

// The number of ranks of its axes, as names have it; empty: it has none.
std::string ways_of(const StrategyChoice& choice);

struct PlanRequest {
  std::shared_ptr<const Model> model;
  Values model_options;                    // that it was made of
  std::vector<StrategyChoice> strategies;  // mesh order: the last one's axis is adjacent
  std::int64_t batch = 0;                  // sequences per step, over all ranks
  std::int64_t sequence = 0;               // tokens of each
  // Sequences that a rank computes at a time, fewer in the last microbatch where they do not divide
  // what it has; 0: all it has.
  std::int64_t microbatch = 0;
  bool smaller_batches = false;     // a rank may have fewer than `microbatch`: then all that it has
  std::vector<std::int64_t> sizes;  // of each microbatch, where they are given one by one
  Precision precision = Precision::fp32;
  int threads = 0;  // of one rank's kernels; 0: the cores over the ranks
  RecomputePolicy recompute;
  OffloadPolicy offload;
  std::shared_ptr<const Optimizer> optimizer;  // null: a step updates nothing
  bool fp32_sums = false;                      // Program::reduce_dtype
  // Whether a step may be left out, as its loss or norm is not finite or its gradients overflow; a
  // norm that clips counts by itself (Program::update_needs_totals).
  bool may_leave_out = true;
  bool fp32_gradients = false;  // added up and reduced in fp32 where the plan computes in less
  // The schedule to take instead of the strategies', with no limit of its own:
  // what another plan resolved.
  std::optional<Schedule> schedule;
  // Says what a program's instructions take on the plan's device, for weaves that heed times: of a
  // start, the seconds until its transfer is over, if nothing else is on its way. Empty: nobody
  // knows.
  std::function<std::function<double(const Instruction&)>(const Program&)> seconds;
  // The layers of each virtual stage, instead of those of a pipeline that balances them itself
  // (Pipeline::balances); empty: its own.
  std::vector<int> stage_layers;
  // What the kernels of the plan's device take, where that is not this machine, and the bytes that
  // a rank's libraries keep there. A plan that is made to fit memory heeds them.
  std::shared_ptr<const DeviceScratch> scratch;
  std::int64_t kept_by_libraries = 0;
  std::vector<std::string> notes;  // of how the request came about; the plan's begin with them
  // What decides a step beside its program: optimizer, schedule of its rate, scale of the loss,
  // what makes batches differ, each with all its numbers; of a function its code. Only the hash
  // reads it.
  Json step_settings;
  bool placements_only = false;  // no schedule and no programs: to see whether it is refused
  // So many of the strategies' passes are run, the first ones (Plan::passes); -1: all. To see which
  // of them made a program what it is.
  int first_passes = -1;
};

// A pass that was run, and whose it is: "plan[2]".
struct PassRun {
  std::string name, strategy, place;
};

// A hash that was asked for once. A copy asks anew: it may become another plan.
class HashMemo {
 public:
  HashMemo() = default;
  HashMemo(const HashMemo&) {}
  HashMemo& operator=(const HashMemo&);
  const std::string& of(const std::function<std::string()>& make) const;

 private:
  mutable std::mutex mutex_;
  mutable std::string text_;
};

struct Plan {
  PlanRequest request;
  Mesh mesh;
  std::shared_ptr<const Graph> graph;  // of one microbatch
  Schedule schedule;                   // of all stages
  std::vector<Program> programs;       // of each stage
  std::int64_t batch_ways = 1;         // ranks that the batch is split over
  std::vector<std::int64_t> sizes;     // of each microbatch: sequences that a rank computes
  std::int64_t microbatch = 0;         // the largest of them
  std::int64_t microbatches = 1;
  // The layers of each virtual stage, where the pipeline balances them; else empty.
  std::vector<int> stage_layers;
  std::vector<std::string> notes;  // from the strategies
  std::vector<PassRun> passes;     // in the order in which they were run
  std::vector<Rule> rules;
  ExpectedImbalance imbalance;
  double work = 0;  // that making it took, about (engine/plan.h)
  HashMemo hashed;  // a plan that was asked for its hash is not changed any more

  int ranks() const { return mesh.size(); }
  int stages() const { return static_cast<int>(programs.size()); }
  int stage_of(int rank) const;
  const Program& program_of(int rank) const { return programs[stage_of(rank)]; }
  std::int64_t tokens_per_step() const { return request.batch * request.sequence; }
  // Model, mesh, strategies with their options, batch split, precision: what decides the numbers.
  Json description() const;
  // 16 hex digits over description(), the programs and `request.step_settings`. Plans that compute,
  // send or update otherwise have another, whatever functions made them so; it is the same on every
  // machine. What a run begins with and how long it lasts is no part of a plan:
  // seed, weights, tokens, steps.
  std::string hash() const;
  // Whether any op is cut as the rule says. Where another rule outweighs it in all of them, none
  // is: of experts' ffn -> tp, where ep borrows tp's ranks.
  bool holds(const Rule& rule) const;
  // Its name (engine/mix.h): every option that is not the default shows, so that mixes of one name
  // differ in nothing that a plan's entry says.
  std::string mix() const;
};

// Peak bytes of the rank that holds most, on the device that the plan is for.
std::int64_t highest_peak(const Plan& plan);

// Null if anything was added to `problems` (all that is wrong is added at once).
std::shared_ptr<const Plan> make_plan(const PlanRequest& request, Problems& problems);

// The same model, batch and precision on one rank, no strategies. The batch is one microbatch, or,
// with `same_microbatches`, split as the plan's: then sums over a microbatch can be compared too.
std::shared_ptr<const Plan> one_rank_plan(const Plan& plan, bool same_microbatches);

// The plan in float64, with its schedule: what is verified. Throws Error (plan) if it has none.
std::shared_ptr<const Plan> in_double(const Plan& plan);

// The next numbers bound what a plan can hold. What is beyond them is refused before anything of
// its size is made: tensors whose bytes 64 bits do not count, and plans that would take more than
// seconds to make. Threads that one process can run sensibly: beyond it a plan can be predicted,
// not executed.
constexpr int most_thread_ranks = 512;

// Most elements of a step's tensors, and of parameters times microbatches, for what is done to them
// in each. Sums of their bytes, some of them several times, then fit 64 bits.
constexpr double most_elements = 0x1p56;

// Adds a problem for what of the graph, of all sequences of a step, is too large.
void check_sizes(const Graph& step, Problems& problems);

// What the making of a plan grows with.
struct PlanSize {
  std::int64_t ops = 0;  // of the graph
  std::int64_t stages = 1, vstages = 1, microbatches = 1;

  // Works of all stages: F, and B or I and W, of each virtual stage and microbatch.
  double works() const;
  // About the microseconds that it takes.
  double work() const;
};
constexpr double most_work = 6e6;
// Most work of several plans together: of a search that may find none, of one that makes a plan
// that will do better, and of plans for steps that differ.
constexpr double most_search = most_work, most_improvement = 4 * most_work,
                 most_steps_work = 10 * most_work;

// Adds a problem for a plan that would take too much work, with the number to change.
void check_work(const PlanSize& size, const Graph& graph, Problems& problems);

// The plans of a run whose steps differ, one for each kind of step. All keep the same parameters in
// the same tensors.
struct StepPlans {
  std::vector<std::shared_ptr<const Plan>> plans;  // the first: of the largest batch
  std::vector<int> of_step;                        // which of them
  std::vector<std::int64_t> first;                 // sample of each step
};

// How each step's batch is cut into microbatches.
struct MicrobatchPolicy {
  std::int64_t size = 0;  // sequences of a microbatch; 0: all that a rank has
  // Finds the microbatches by making plans of the request; empty: what follows decides.
  std::function<std::shared_ptr<const Plan>(const PlanRequest&, Problems&)> search;
  // The shape of a step, if sizes do not follow from `size`; `sample`: its first.
  std::function<StepShape(std::int64_t step, std::int64_t sample)> shape;
  bool by_step = false;  // it looks at the step, so that not all steps need be alike
};

// The request's plan with the policy; of steps that differ, that of the largest batch, and all of
// them in `steps`. Null if there are problems.
std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems);

// Looks at finished plans before they are run or shown, and adds to `problems` what is wrong with
// one; called from any thread. The kernel knows none: whoever links it adds what it has.
using PlanCheck = std::function<void(const Plan& plan, Problems& problems)>;

// From now on the process' plans are looked at by this too. For the main thread, before any plan.
void add_plan_check(PlanCheck check);

// Asks all checks about a plan, unless one of its hash was found right already.
void check_plan(const Plan& plan, Problems& problems);

// What computes a held-out loss: the same plan with programs that compute the forward of every
// microbatch and the loss, gather what they must, send what they must, and update nothing. They
// keep the same parameters in the same tensors: Executor::also. Its schedule is that of training,
// whose order of forwards they have.
std::shared_ptr<const Plan> forward_only(const Plan& plan);

}  // namespace mw
