// Starts a plan's ranks, those of this process, as threads, each with its executor and its part of
// the initial weights, and runs a function on all of them.
#include "run/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "comm/streams.h"
#include "graph/init.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "run/device.h"

namespace mw {
namespace {
constexpr std::int64_t filled_at_a_time = 1 << 16;  // elements

// How many ranks of this machine are those of processes before this one.
int ranks_before_here(RankRuntime& runtime) {
  const Processes* processes = runtime.processes();
  if (processes == nullptr) return 0;
  return processes->before_on_this_host() * static_cast<int>(runtime.here().size());
}

}  // namespace

void check_thread_ranks(const Plan& plan, const Processes* processes) {
  const int copies = processes == nullptr ? 1 : processes->count();
  if (copies > 1) ranks_of_processes(plan.ranks(), copies, plan.mix());
  if (plan.ranks() / copies <= most_thread_ranks) return;
  throw Error(Stage::plan, "plan.ranks", "plan",
              fmt::format("plan: {}; ranks are threads of this process here, {} at most",
                          plan.mesh.describe(), most_thread_ranks),
              "predict it without running it (meshwright plan, mw.plan), use fewer ways, or start "
              "more processes");
}

RankRuntime runtime_of(const Experiment& experiment, const Plan& plan) {
  return {plan.ranks(), experiment.processes, plan.mix()};
}

void with_executors(const Experiment& experiment, const Plan& plan, const std::atomic<bool>* stop,
                    const RankBody& body) {
  RankRuntime runtime = runtime_of(experiment, plan);
  with_executors(runtime, experiment, plan, stop, body);
}

void with_executors(RankRuntime& runtime, const Experiment& experiment, const Plan& plan,
                    const std::atomic<bool>* stop, const RankBody& body, bool limited) {
  check_thread_ranks(plan, runtime.processes());
  check_device(experiment.device, experiment.load_device);
  RankOptions options;
  options.threads = experiment.threads;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(experiment.timeout * 1e3));
  // Another plan of the same model has one for all steps.
  const bool apart = experiment.step_plans && &plan == experiment.plan.get();
  StepInput input{
      experiment.data.get(), {}, {}, experiment.optimizer.get(), stop, experiment.loss_scale,
      experiment.trace};
  if (apart) {
    input.first_sample = [&](std::int64_t step) { return experiment.first_sample(step); };
    input.which = [&](std::int64_t step) { return experiment.which_plan(step); };
  } else {
    input.first_sample = [&](std::int64_t step) {
      return experiment.sample_offset + step * plan.request.batch;
    };
  }
  const int before = ranks_before_here(runtime);
  runtime.run(
      [&](RankContext& context) {
        const at::NoGradGuard no_grad;
        const int local = before + context.rank - runtime.here().front();
        const at::Device device = device_of(experiment.device, local, context.rank, plan.ranks());
        const DeviceScope on_device(device);
        Ledger ledger;
        if (limited && experiment.memory > 0) {
          ledger.set_limit(experiment.memory, context.rank, experiment.memory_hint);
        }
        MemoryWatch watch(ledger);
        Executor executor(plan.program_of(context.rank), context.rank, device, *context.source,
                          ledger, input);
        for (std::size_t p = 1; apart && p < experiment.step_plans->plans.size(); ++p)
          executor.also(experiment.step_plans->plans[p]->program_of(context.rank));
        if (experiment.evaluation.data && &plan == experiment.plan.get()) {
          StepInput held_out{experiment.evaluation.data.get()};
          held_out.first_sample = [&](std::int64_t k) { return k * plan.request.batch; };
          held_out.optimizer = experiment.optimizer.get();
          held_out.forward_only = true;
          executor.evaluates(experiment.evaluation.plan->program_of(context.rank), held_out);
        }
        if (!experiment.goes_on) fill_parameters(executor, experiment);
        body(executor, ledger);
      },
      options, experiment.device, plan.hash());
}

namespace {

// Where a parameter's numbers go: right into the tensor that computes, or, where what is kept is
// less or more than that, piece by piece through one of their own.
void fill_parameter(Executor& executor, const Experiment& experiment,
                    const std::vector<WeightSpec>& specs, int index) {
  const Program& program = executor.program();
  const ProgramParameter& parameter = program.parameters[index];
  const Value& value = program.graph->value(parameter.value);
  std::vector<std::int64_t> shape;
  std::vector<Range> ranges;
  for (Dim dim : value.dims) {
    shape.push_back(program.graph->size(dim));
    ranges.push_back(
        local_range(dim, shape.back(), parameter.stored, program.mesh, executor.coordinates()));
  }
  const auto numbers = [&](const std::vector<Range>& part, const at::Tensor& out) {
    if (experiment.weights) {
      const auto spec = std::find_if(specs.begin(), specs.end(),
                                     [&](const WeightSpec& s) { return s.name == value.name; });
      experiment.weights->load(*spec, part, out);
    } else {
      fill_slice(out, value, static_cast<std::uint64_t>(experiment.seed), shape, part);
    }
  };
  Storage& storage = executor.storage();
  const Bucket& bucket = storage.bucket_of(index);
  if (bucket.sharded_state != ShardedState::parameters && !program.has_masters()) {
    numbers(ranges, storage.parameter(index));
    return;
  }
  std::int64_t row = 1;
  for (std::size_t d = 1; d < ranges.size(); ++d) row *= ranges[d].size;
  const std::int64_t rows = ranges[0].size;
  const std::int64_t step =
      std::max<std::int64_t>(1, filled_at_a_time / std::max<std::int64_t>(row, 1));
  for (std::int64_t r = 0; r < rows; r += step) {
    std::vector<Range> part = ranges;
    part[0] = {ranges[0].offset + r, std::min(step, rows - r)};
    std::vector<std::int64_t> sizes;
    for (const Range& range : part) sizes.push_back(range.size);
    const at::Tensor piece = at::empty(sizes, scalar_type(program.optimizer_dtype));
    numbers(part, piece);
    storage.fill(index, r * row, piece);
  }
}

}  // namespace

void fill_parameters(Executor& executor, const Experiment& experiment) {
  const at::NoGradGuard no_grad;
  const Program& program = executor.program();
  const std::vector<WeightSpec> specs =
      experiment.weights ? weight_specs(*program.graph) : std::vector<WeightSpec>{};
  Ledger::Scope scope(executor.ledger(), Category::buffers);
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    fill_parameter(executor, experiment, specs, static_cast<int>(p));
  }
}

}  // namespace mw
