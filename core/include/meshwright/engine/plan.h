// A plan is all that follows from a script before training: mesh, schedule, programs. The engine
// runs its programs, predictions price them, the command `plan` prints them.
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
#include "meshwright/outer_steps.h"
#include "meshwright/program.h"
#include "meshwright/schedule.h"
#include "meshwright/strategy.h"

namespace mw {

class TokenSource;

// The precision of a plan. In bf16, parameters and computation are bf16, the optimizer keeps fp32
// masters and states, and sums whose error would grow (norms, softmax, the loss) are made in fp32
// (Micikevicius et al. 2018, section 3.1). In fp16 likewise, with a loss scale for its narrower
// range (engine/loss_scale.h).
using Precision = Dtype;  // fp64, fp32, bf16 or fp16
Precision precision_of(const std::string& name);

// One entry of a script's `plan` list, its options checked.
struct StrategyChoice {
  std::string name;  // "tp"
  std::string path;  // the entry's key, "plan[2]", for messages
  Json options;
  std::shared_ptr<const Strategy> strategy;
  std::vector<AxisRequest> axes = {};  // Strategy::axes(); filled in by make_plan
  // Makes the same choice with another number of ways; throws Error if the options do not allow
  // that. Null: not supported.
  std::function<StrategyChoice(std::int64_t ways)> with_ways = nullptr;
  // The options other than `ways` that differ from their defaults, as text for a mix's name:
  // "prefetch = 2, stage = 3".
  std::string differs = {};
  Json written = {};  // the entry as the script's author wrote it; null: it comes from no script
};

// The number of ranks on the strategy's axes, as a mix's name has it; empty: it asks for no axis.
std::string ways_of(const StrategyChoice& choice);

struct PlanRequest {
  std::shared_ptr<const Model> model;
  Values model_options;                    // the options of which `model` was made
  std::vector<StrategyChoice> strategies;  // in mesh order: the last one's axis has adjacent ranks
  std::int64_t batch = 0;                  // sequences per step, over all ranks
  std::int64_t sequence = 0;               // tokens of a sequence
  // Sequences of a microbatch on one rank; the last microbatch may be smaller. 0: all sequences of
  // the rank are one microbatch.
  std::int64_t microbatch = 0;
  bool smaller_batches = false;     // whether a rank's batch may be smaller than `microbatch`
  std::vector<std::int64_t> sizes;  // sequences of each microbatch; empty: `microbatch` decides
  bool masked_labels = false;       // whether the data have labels that count nothing
  bool documents = false;           // whether rows of the data hold several documents
  // The data by whose documents steps are priced; null: as if rows were one document each.
  std::shared_ptr<const TokenSource> priced_data;
  Precision precision = Precision::fp32;
  int threads = 0;  // threads of one rank's kernels; 0: the cores divided by the ranks
  RecomputePolicy recompute;
  OffloadPolicy offload;
  std::shared_ptr<const Optimizer> optimizer;  // null: a step updates nothing
  bool fp32_sums = false;                      // Program::reduce_dtype
  // Whether an update may be left out because the loss or the norm is not finite, or because
  // gradients overflow: the update then waits for the totals (Program::update_needs_totals).
  bool may_leave_out = true;
  bool fp32_gradients = false;  // gradients are added and reduced in fp32, if the precision is less
  // A schedule that replaces the strategies' own, as another plan resolved it. No memory limit
  // holds for it.
  std::optional<Schedule> schedule;
  // For a program, returns a function that predicts the seconds of an instruction on the plan's
  // device, for weaves that use times; for a start, the seconds of the transfer, if no other is
  // under way. Empty: times are not known.
  std::function<std::function<double(const Instruction&)>(const Program&)> seconds;
  // The layers of each virtual stage, for a pipeline that balances them (Pipeline::balances);
  // empty: the pipeline's own choice.
  std::vector<int> stage_layers;
  // The scratch of kernels on the plan's device, if that is not this machine, and the bytes that
  // libraries keep on the device for a rank. A plan that is made to fit memory counts both.
  std::shared_ptr<const DeviceScratch> scratch;
  std::int64_t kept_by_libraries = 0;
  std::vector<std::string> notes;  // how the request was made; Plan::notes begin with these
  // Settings that change a step but not its program: optimizer, learning-rate schedule, loss scale,
  // batch ramp, with all their numbers, and with the code of functions. Only the hash reads them.
  Json step_settings;
  // Makes no schedule and no programs, only to see whether the plan is refused.
  bool placements_only = false;
  // Runs only the first so many of the strategies' passes (Plan::passes), to see what each of them
  // changes; -1: all.
  int first_passes = -1;
};

// A pass that was run, the strategy that added it, and that strategy's place, "plan[2]".
struct PassRun {
  std::string name, strategy, place;
};

// A plan's hash, computed once. A copy computes it anew, since the copied plan may be changed.
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
  std::shared_ptr<const Graph> graph;  // the graph of one microbatch
  Schedule schedule;                   // covers all stages
  std::vector<Program> programs;       // one for each stage
  std::int64_t batch_ways = 1;         // number of ranks over which the batch is split
  std::vector<std::int64_t> sizes;     // sequences on one rank, of each microbatch
  std::int64_t microbatch = 0;         // the largest of `sizes`
  std::int64_t microbatches = 1;
  // The layers of each virtual stage, if the pipeline balances them (Pipeline::balances); else
  // empty.
  std::vector<int> stage_layers;
  std::vector<std::string> notes;  // sentences for the printed plan
  std::vector<PassRun> passes;     // in the order in which they were run
  std::vector<Rule> rules;
  ExpectedImbalance imbalance;
  double work = 0;  // PlanSize::work() of making the plan
  HashMemo hashed;  // a plan must not be changed after hash()

  int ranks() const { return mesh.size(); }
  int stages() const { return static_cast<int>(programs.size()); }
  int stage_of(int rank) const;
  const Program& program_of(int rank) const { return programs[stage_of(rank)]; }
  // The entry that lets replicas differ (OuterSteps); null: none does.
  const StrategyChoice* replicas() const;
  std::int64_t tokens_per_step() const { return request.batch * request.sequence; }
  // A summary of what decides the numbers: model, mesh, strategies with their options, batch split,
  // precision.
  Json description() const;
  // 16 hex digits over description(), the programs and `request.step_settings`, the same on every
  // machine. Plans that compute, send or update differently have different hashes, even if only a
  // script's function makes the difference. Seed, initial weights, tokens and the number of steps
  // are no part of a plan.
  std::string hash() const;
  // Whether the rule cuts any op. It cuts none if another rule outweighs it in all of its ops, as
  // for ffn -> tp in experts if ep borrows tp's ranks.
  bool holds(const Rule& rule) const;
  // The name of the plan's mix (engine/mix.h), with all options that are not the default, so that
  // mixes of one name have the same entries.
  std::string mix() const;
};

// Predicted peak bytes of the rank that holds most, on the device for which the plan is made.
std::int64_t highest_peak(const Plan& plan);

// Makes the plan of a request. Adds all problems that it finds, and then returns null.
std::shared_ptr<const Plan> make_plan(const PlanRequest& request, Problems& problems);

// A plan of the same model, batch and precision on one rank, without strategies. The batch is one
// microbatch; with `same_microbatches` it is split as in `plan`, so that sums over a microbatch can
// be compared too.
std::shared_ptr<const Plan> one_rank_plan(const Plan& plan, bool same_microbatches);

// A plan with one rank for each replica of `plan` (OuterSteps). A rank computes all samples that
// its replica has in a step at once.
std::shared_ptr<const Plan> one_rank_replicas(const Plan& plan);

// The plan in float64, with the same schedule, for `verify`. Throws Error (plan) if there is none.
std::shared_ptr<const Plan> in_double(const Plan& plan);

// The next constants are limits of a plan. A larger plan is refused before anything of its size is
// made, because the bytes of its tensors would overflow 64 bits, or because planning would take
// more than seconds.
//
// The most ranks that may be threads of one process; plans with more can only be predicted.
constexpr int most_thread_ranks = 512;

// The most elements of a step's tensors, and of parameters times microbatches. Sums of their bytes,
// some counted several times, then fit into 64 bits.
constexpr double most_elements = 0x1p56;

// Adds a problem if a tensor or all tensors are too large. `step`: a graph of all sequences of a
// step.
void check_sizes(const Graph& step, Problems& problems);

// The numbers with which the time to make a plan grows.
struct PlanSize {
  std::int64_t ops = 0;  // number of ops of the graph
  std::int64_t stages = 1, vstages = 1, microbatches = 1;

  // Number of actions of all stages: F, and B or I and W, of each virtual stage and microbatch.
  double works() const;
  // Estimated microseconds to make the plan.
  double work() const;
};
constexpr double most_work = 6e6;  // the most PlanSize::work() of one plan
// The most PlanSize::work() of several plans together: of a search for a plan that works at all, of
// a search for a better plan, and of the plans of steps that differ.
constexpr double most_search = most_work, most_improvement = 4 * most_work,
                 most_steps_work = 10 * most_work;

// Adds a problem, which names the setting to change, if the plan would take too much work.
void check_work(const PlanSize& size, const Graph& graph, Problems& problems);

// The plans of a run whose steps differ, one for each kind of step. All of them keep the same
// parameters in the same tensors.
struct StepPlans {
  std::vector<std::shared_ptr<const Plan>> plans;  // the first one has the largest batch
  std::vector<int> of_step;                        // index into `plans`, for each step
  // The number of the first sample of each step, among samples of the step's own length: after the
  // tokens of all steps before it.
  std::vector<std::int64_t> first;
};

// How each step's batch is cut into microbatches.
struct MicrobatchPolicy {
  std::int64_t size = 0;  // sequences of a microbatch on a rank; 0: all that the rank has
  // Searches the size by making plans of the request, and returns the plan; empty: no search.
  std::function<std::shared_ptr<const Plan>(const PlanRequest&, Problems&)> search;
  // The shape of a step whose first sample is `sample`; empty: `size` decides.
  std::function<StepShape(std::int64_t step, std::int64_t sample)> shape;
  bool by_step = false;  // whether `shape` depends on the step
};

// Makes the plan of a request under a microbatch policy. If the `steps` steps of the run differ,
// returns the plan of the largest batch, and sets `all` to the plans of all steps. Null if there
// are problems.
std::shared_ptr<const Plan> make_step_plans(const PlanRequest& request,
                                            const MicrobatchPolicy& policy, std::int64_t steps,
                                            std::shared_ptr<const StepPlans>& all,
                                            Problems& problems);

// Checks a finished plan before it is run or shown, and adds its faults to `problems`. Any thread
// may call it. The core has no checks of its own; a library that links it adds its checks.
using PlanCheck = std::function<void(const Plan& plan, Problems& problems)>;

// Adds a check for all later plans of the process. The main thread calls this, before any plan.
void add_plan_check(PlanCheck check);

// Runs all checks on a plan, unless a plan of the same hash has passed them already.
void check_plan(const Plan& plan, Problems& problems);

// What an evaluation computes with in the place of parameters.
enum class EvaluatedBy : std::uint8_t {
  parameters,
  average,  // the optimizer keeps an average of the parameters (UpdateRule::average)
  anchor,   // replicas that differ have one anchor, and each its own parameters (OuterSteps)
};

// The plan of an evaluation: programs that compute the forward of every microbatch and the loss,
// with the gathers and sends that these need, and update nothing. The programs keep the same
// parameters in the same tensors (Executor::also). `schedule` stays that of training; the forwards
// run in its order. The result is null if the plan has nothing to compute `by`.
std::shared_ptr<const Plan> forward_only(const Plan& plan,
                                         EvaluatedBy by = EvaluatedBy::parameters);

// The plan of what outer steps do after a step of a plan with replicas that differ (OuterSteps).
// Its programs keep the same parameters in the same tensors.
std::shared_ptr<const Plan> outer_plan(const Plan& plan, const OuterEvent& event);

}  // namespace mw
