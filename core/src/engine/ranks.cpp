#include "engine/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/precision.h"
#include "meshwright/error.h"
#include "model/init.h"

namespace mw {

void check_thread_ranks(const Plan& plan) {
  if (plan.ranks() <= most_thread_ranks) return;
  throw Error(Stage::plan,
              fmt::format("plan: {}; ranks are threads of this process here, {} at most",
                          plan.mesh.describe(), most_thread_ranks),
              "predict it without running it (meshwright plan, mw.plan), or use fewer ways");
}

void with_executors(const Experiment& experiment, const Plan& plan, const std::atomic<bool>* stop,
                    const RankBody& body, bool limited) {
  check_thread_ranks(plan);
  RankOptions options;
  options.threads = experiment.threads;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(experiment.timeout * 1e3));
  const StepInput input{experiment.data.get(), plan.request.batch, experiment.optimizer.get(),
                        stop};
  run_ranks(
      plan.ranks(),
      [&](RankContext& context) {
        const at::NoGradGuard no_grad;
        Ledger ledger;
        if (limited && experiment.memory > 0) {
          ledger.set_limit(experiment.memory, context.rank, experiment.memory_hint);
        }
        MemoryWatch watch(ledger);
        Executor executor(plan.program_of(context.rank), context.rank, at::kCPU, *context.source,
                          ledger, input);
        fill_parameters(executor, experiment);
        body(executor, ledger);
      },
      options);
}

void fill_parameters(Executor& executor, const Experiment& experiment) {
  const at::NoGradGuard no_grad;
  const Program& program = executor.program();
  const std::vector<WeightSpec> specs =
      experiment.weights ? weight_specs(*program.graph) : std::vector<WeightSpec>{};
  Storage& storage = executor.storage();
  Ledger::Scope scope(executor.ledger(), Category::buffers);
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    const bool aside =  // not right into the tensor that computes
        program.buckets[b].parted == Parted::parameters || program.master_element > 0;
    for (int p : program.buckets[b].parameters) {
      const ProgramParameter& parameter = program.parameters[p];
      const Value& value = program.graph->value(parameter.value);
      std::vector<std::int64_t> shape;
      std::vector<Range> ranges;
      for (Dim dim : value.dims) {
        shape.push_back(program.graph->size(dim));
        ranges.push_back(
            local_range(dim, shape.back(), parameter.stored, program.mesh, executor.coordinates()));
      }
      const Slot& slot = program.slots[parameter.slot];
      const at::Tensor out =
          aside ? at::empty(program.local_shape(slot, executor.coordinates()),
                            real_type(std::max(program.element, program.master_element)))
                : storage.parameter(p);
      if (experiment.weights) {
        const auto spec = std::find_if(specs.begin(), specs.end(),
                                       [&](const WeightSpec& s) { return s.name == value.name; });
        experiment.weights->load(*spec, ranges, out);
      } else {
        fill_slice(out, value, static_cast<std::uint64_t>(experiment.seed), shape, ranges);
      }
      storage.fill(p, out);
    }
  }
}

}  // namespace mw
