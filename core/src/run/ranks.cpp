// Starts a plan's ranks, those of this process, as threads, each with its executor and its part of
// the initial weights, and runs a function on all of them.
#include "meshwright/engine/ranks.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "comm/streams.h"
#include "graph/init.h"
#include "meshwright/engine/plan.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "run/devices.h"
#include "run/executor.h"

namespace mw {
namespace {
// elements of a piece, which all threads of a rank fill
constexpr std::int64_t filled_at_a_time = 1 << 20;

// Writes a parameter's initial numbers: right into the tensor that computes, or, where the rank
// keeps a shard or a master copy, piece by piece through a tensor of their own.
void fill_parameter(RankRun& rank, const RunSetup& setup, int index) {
  const Program& program = rank.program();
  const ProgramParameter& parameter = program.parameters[index];
  const Value& value = program.graph->value(parameter.value);
  std::vector<std::int64_t> shape;
  std::vector<Range> ranges;
  for (Dim dim : value.dims) {
    shape.push_back(program.graph->size(dim));
    ranges.push_back(
        local_range(dim, shape.back(), parameter.stored, program.mesh, rank.coordinates()));
  }
  const auto numbers = [&](const std::vector<Range>& part, const at::Tensor& out) {
    if (setup.fill)
      setup.fill(value, part, out);
    else
      fill_slice(out, value, static_cast<std::uint64_t>(setup.seed), shape, part);
  };
  const Bucket& bucket = rank.bucket_of(index);
  const auto others = bucket.flat.begin_as_parameters();
  if (bucket.sharded_state != ShardedState::parameters &&
      std::ranges::all_of(others, [](int slot) { return slot < 0; })) {
    numbers(ranges, rank.parameter(index));
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
    rank.fill(index, r * row, piece);
  }
}

// The library of matrix products keeps a workspace for each rank's stream from its first product
// on. This product comes before all ops, so that the workspace is booked as a buffer and not to the
// first op.
void take_workspace(at::Device device, Ledger& ledger) {
  if (device.is_cpu()) return;
  const Ledger::Scope scope(ledger, Category::buffers);
  const at::Tensor one = at::ones({1, 1}, device);
  at::mm(one, one);
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

RankRuntime runtime_of(const RunSetup& setup, const Plan& plan) {
  return {plan.ranks(), setup.processes, plan.mix()};
}

void with_ranks(const RunSetup& setup, const Plan& plan, const std::atomic<bool>* stop,
                const RankBody& body) {
  RankRuntime runtime = runtime_of(setup, plan);
  with_ranks(runtime, setup, plan, stop, body);
}

void with_ranks(RankRuntime& runtime, const RunSetup& setup, const Plan& plan,
                const std::atomic<bool>* stop, const RankBody& body, bool limited) {
  check_thread_ranks(plan, runtime.processes());
  check_devices(*setup.platform);
  RankOptions options;
  options.threads = setup.threads;
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(setup.timeout * 1e3));
  RunSetup own = setup;
  if (&plan != setup.plan.get()) {  // another plan of the same model: it is that of all steps
    own.plan = {std::shared_ptr<const Plan>(), &plan};
    own.step_plans = nullptr;
    own.held_out_plan = nullptr;
  }
  RunSetup held_out = own;
  held_out.step_plans = nullptr;
  held_out.data = own.held_out_data;
  held_out.sample_offset = 0;
  held_out.trace.clear();
  std::vector<std::pair<OuterEvent, std::shared_ptr<const Plan>>> outer;
  if (const auto& steps = plan.programs.front().outer) {
    for (const OuterEvent& event : kinds_of_outer_events(*steps))
      outer.emplace_back(event, outer_plan(plan, event));
  }
  const Processes* processes = runtime.processes();
  const int before =  // ranks of this machine in the processes before this one
      processes == nullptr
          ? 0
          : processes->before_on_this_host() * static_cast<int>(runtime.here().size());
  runtime.run(
      [&](RankContext& context) {
        const at::NoGradGuard no_grad;
        const int local = before + context.rank - runtime.here().front();
        const at::Device device = device_of(*setup.platform, local);
        const DeviceScope on_device(*setup.platform, device);
        Ledger ledger;
        if (limited && setup.memory > 0) {
          ledger.set_limit(setup.memory, context.rank, setup.memory_hint);
        }
        MemoryWatch watch(ledger);
        take_workspace(device, ledger);
        Executor executor(plan.program_of(context.rank), context.rank, device, *context.source,
                          ledger, own, stop);
        for (std::size_t p = 1; p < own.plans().size(); ++p)
          executor.add_program(own.plans()[p]->program_of(context.rank));
        if (own.held_out_plan)
          executor.evaluate_by(own.held_out_plan->program_of(context.rank), held_out);
        for (const auto& [event, own_plan] : outer)
          executor.add_outer(own_plan->program_of(context.rank), event);
        executor.connect();
        if (!setup.goes_on) fill_parameters(executor, setup);
        body(executor, ledger);
        executor.await_updates();  // others still read this rank's parts
      },
      options, *setup.platform, plan.hash());
}

void fill_parameters(RankRun& rank, const RunSetup& setup) {
  const at::NoGradGuard no_grad;
  Ledger::Scope scope(rank.ledger(), Category::buffers);
  for (std::size_t p = 0; p < rank.program().parameters.size(); ++p)
    fill_parameter(rank, setup, static_cast<int>(p));
}

}  // namespace mw
