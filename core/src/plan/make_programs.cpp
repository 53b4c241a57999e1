// Turns a draft into finished programs: derives, builds, makes the schedule, runs the passes in
// their order, and checks what came of it.
#include "plan/build.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/engine/forecast.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/engine/text.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/stage_balance.h"
#include "meshwright/weave.h"
#include "plan/derive.h"
#include "plan/divide.h"
#include "plan/matched.h"
#include "plan/stages.h"

namespace mw {
namespace {

// Gradient accumulation on one stage: one microbatch after the other.
Schedule accumulate(const ScheduleRequest& request) {
  Schedule schedule;
  schedule.name = "accumulate";
  schedule.microbatches = request.microbatches;
  schedule.stage_of = {0};
  schedule.order.resize(1);
  for (int m = 0; m < request.microbatches; ++m) {
    schedule.order[0].push_back({0, Work::forward, m});
    schedule.order[0].push_back({0, Work::backward, m});
  }
  return schedule;
}

class ProgramMaker {
 public:
  ProgramMaker(Plan& plan, Draft& draft, Problems& problems)
      : plan_(plan),
        draft_(draft),
        whole_(draft.problems().empty()),
        problems_(problems),
        divided_(divide(plan.graph, draft)) {
    plan.graph = divided_.graph;
    if (draft.pipeline()) {
      pipeline_ = *draft.pipeline();
      if (pipeline_.balances) balance();
    } else {
      pipeline_.schedule = accumulate;
    }
    request_.stages = pipeline_.axis.empty() ? 1 : plan.mesh.axis(pipeline_.axis).ways;
    request_.microbatches = static_cast<int>(plan.microbatches);
    request_.times = pipeline_.times;
    limit_ = plan.request.schedule ? 0 : pipeline_.memory_limit;
    request_.memory_limit = pipeline_.stage_of.empty() && !pipeline_.axis.empty() ? 0 : limit_;
    const auto parts = static_cast<int>(pipeline_.layers.size());
    request_.chunks = std::max(1, parts / request_.stages);
  }

  // Takes the request's layers for each stage, if it has any, and else notes where stages have
  // uneven numbers of layers.
  void balance() {
    if (!plan_.request.stage_layers.empty()) pipeline_.layers = plan_.request.stage_layers;
    plan_.stage_layers = pipeline_.layers;
    if (!plan_.request.stage_layers.empty() ||
        pipeline_.layers ==
            even_layers(plan_.graph->layers, static_cast<int>(pipeline_.layers.size())))
      return;
    const auto& values = plan_.graph->values();
    const bool frozen =
        std::any_of(values.begin(), values.end(), [](const Value& value) { return value.frozen; });
    plan_.notes.push_back(fmt::format(
        "{} gives its stages {} layers, because {}; layout = \"even\" divides them evenly",
        pipeline_.axis, fmt::join(pipeline_.layers, ", "),
        frozen ? "the embedding and the head cost something, and frozen weights less"
               : "the embedding and the head cost as much as layers"));
  }

  void run(std::vector<WrongWays>& wrong) {
    refuse_on_stages(draft_, problems_);
    const Derived derived = derive(*plan_.graph, plan_.mesh, divided_.rules, draft_.storage(),
                                   problems_, draft_.rotations());
    wrong.insert(wrong.end(), derived.wrong_ways.begin(), derived.wrong_ways.end());
    // An axis whose rule was refused is idle for that reason, and is not refused again.
    if (problems_.empty() && whole_) refuse_idle_axes(draft_, derived, asked(), problems_);
    if (plan_.request.placements_only) return;
    // The strategy places the virtual stages, or else a schedule does that needs no times.
    if (pipeline_.stage_of.empty() && !pipeline_.axis.empty()) {
      make_schedule();
      if (!problems_.empty()) return;
      pipeline_.stage_of = plan_.schedule.stage_of;
      request_.memory_limit = limit_;
      plan_.schedule = {};  // made again, once times are known
    }
    if (!problems_.empty()) return;
    const Partition partition = part_layers(*plan_.graph, plan_.mesh, pipeline_, problems_);
    if (!problems_.empty()) return;
    plan_.imbalance = draft_.imbalance();
    plan_.programs = build(plan_.graph, plan_.mesh, derived, partition, build_options());
    for (Program& program : plan_.programs) program.batch_ways = plan_.batch_ways;
    if (std::count(plan_.sizes.begin(), plan_.sizes.end(), plan_.microbatch) < plan_.microbatches) {
      for (Program& program : plan_.programs) {
        for (std::int64_t size : plan_.sizes) program.batches.push_back(size * plan_.batch_ways);
      }
    }
    const std::vector<bool> sliced = slice_ops(plan_.programs, draft_.slices(), problems_);
    RecomputeSet again = resolve(plan_.request.recompute, *plan_.graph, problems_);
    for (std::size_t op = 0; op < sliced.size(); ++op) again.ops[op] = again.ops[op] || sliced[op];
    const OffloadSet away = resolve(plan_.request.offload, *plan_.graph, problems_);
    if (!problems_.empty()) return;
    for (Program& program : plan_.programs) recompute(program, again);
    if (away.any()) offload(away);
    if (draft_.pipeline()) weigh();
    if (!pipeline_.splits) {
      for (Program& program : plan_.programs) {
        std::erase_if(program.segments, [](const Segment& segment) {
          return segment.kind == SegmentKind::dgrad || segment.kind == SegmentKind::wgrad;
        });
      }
    }
    if (limit_ > 0) {
      keep_limit(partition);
    } else {
      make_schedule();
      if (problems_.empty()) finish(partition);
    }
  }

 private:
  BuildOptions build_options() const {
    BuildOptions options;
    options.microbatches = static_cast<int>(plan_.microbatches);
    options.threads = threads_of_rank(plan_.ranks(), plan_.request.threads);
    options.dtype = plan_.request.precision;
    // Counts (Value::counts) must be exact: gradients have fp32 at least.
    const std::vector<int> parameters = plan_.graph->parameters();
    const bool counts = std::any_of(parameters.begin(), parameters.end(),
                                    [&](int value) { return plan_.graph->value(value).counts; });
    const Dtype wide = wider(options.dtype, Dtype::fp32);
    options.gradient_dtype = plan_.request.fp32_gradients || counts ? wide : options.dtype;
    options.optimizer_dtype = wide;
    options.reduce_dtype = plan_.request.fp32_sums ? wide : options.dtype;
    options.optimizer = plan_.request.optimizer;
    options.order = divided_.order;
    options.document_parts = divided_.document_parts;
    options.update_needs_totals =
        plan_.request.may_leave_out || (options.optimizer && options.optimizer->clip() > 0);
    options.imbalance = plan_.imbalance.factor;
    options.split = draft_.pipeline().has_value();
    return options;
  }

  std::map<std::string, PluginPlace> asked() const {
    std::map<std::string, PluginPlace> who;
    for (const StrategyChoice& choice : plan_.request.strategies) {
      for (const AxisRequest& axis : choice.axes) who[axis.name] = {choice.name, choice.path};
    }
    return who;
  }

  void offload(const OffloadSet& set) {
    Offloaded most;
    int stage = 0;
    for (Program& program : plan_.programs) {
      const Offloaded done = offload_activations(program, set);
      if (done.bytes <= most.bytes) continue;
      most = done;
      stage = program.stage;
    }
    std::string note = "offload: nothing that forward keeps goes to host memory";
    if (most.tensors > 0) {
      note = fmt::format(
          "offload: {} of a microbatch, {} in all, go to host memory{}",
          plural(most.tensors, "tensor"), format_bytes(static_cast<double>(most.bytes)),
          plan_.programs.size() > 1 ? fmt::format(" on stage {}, where most do", stage) : "");
    }
    plan_.notes.push_back(note);
    const int layers = most_layers();
    if (most.tensors == 0 || set.prefetch < layers) return;
    const bool chunked = static_cast<int>(plan_.programs.front().stage_of.size()) > plan_.stages();
    plan_.notes.push_back(fmt::format(
        "offload: prefetch = {} brings back all of {} as backward begins: copies are made, and a "
        "backward holds what it would without them; a prefetch of fewer layers holds less",
        set.prefetch,
        fmt::format("a {}'s {}", chunked ? "chunk" : "stage", plural(layers, "layer"))));
  }

  int most_layers() const {
    std::map<int, std::set<int>> layers;  // by virtual stage
    const Program& program = plan_.programs.front();
    for (std::size_t op = 0; op < program.vstage_of.size(); ++op) {
      const int layer = program.graph->ops()[op].layer;
      if (program.vstage_of[op] >= 0 && layer >= 0 && layer < program.graph->layers)
        layers[program.vstage_of[op]].insert(layer);
    }
    std::size_t most = 0;
    for (const auto& [vstage, own] : layers) most = std::max(most, own.size());
    return static_cast<int>(most);
  }

  // A schedule counts the activations that works leave behind, not what they hold in passing: if
  // that is too much, a lower limit is tried.
  void keep_limit(const Partition& partition) {
    const std::vector<Program> built = plan_.programs;
    double held = limit_;
    for (int attempt = 0; attempt < 5; ++attempt) {
      request_.memory_limit -= held - limit_;
      if (request_.memory_limit <= 0) break;
      try {
        plan_.schedule = pipeline_.schedule(request_);
      } catch (const Error& error) {
        if (draft_.pipeline()->adapts) break;
        problems_.add(error);
        return;
      }
      plan_.programs = built;
      finish(partition);
      if (!problems_.empty()) return;
      held = most_activations().first;
      if (held <= limit_) return;
      if (!draft_.pipeline()->adapts) break;
    }
    plan_.programs = built;
    request_.memory_limit = 0;
    make_schedule();
    if (problems_.empty()) finish(partition);
    if (problems_.empty()) refuse_memory();
  }

  void finish(const Partition& partition) {
    Problems found;
    check(plan_.schedule, request_, found);
    for (Problem p : found.list()) {
      p.key = key_in(key_in(pipeline_.place, "schedule"), p.key);
      problems_.add(std::move(p));
    }
    if (problems_.empty() && plan_.schedule.stage_of != partition.stage_of) {
      problems_.add(
          Stage::plan, "schedule.stages", key_in(pipeline_.place, "schedule"),
          fmt::format("the schedule {} places virtual stages on stages {}, the plan on {}",
                      plan_.schedule.name, fmt::join(plan_.schedule.stage_of, " "),
                      fmt::join(partition.stage_of, " ")),
          "make both the same");
    }
    if (problems_.empty() && !pipeline_.splits && plan_.schedule.splits()) {
      problems_.add(Stage::plan, "schedule.splits", key_in(pipeline_.place, "schedule"),
                    fmt::format("the schedule {} splits backwards into I and W, but its strategy "
                                "declares that it does not",
                                plan_.schedule.name),
                    "set Pipeline::splits");
    }
    if (!problems_.empty()) return;
    add_timelines(plan_.programs, partition, plan_.schedule);
    std::vector<Pass> passes = draft_.passes();
    std::stable_sort(passes.begin(), passes.end(),
                     [](const Pass& a, const Pass& b) { return a.order < b.order; });
    if (plan_.request.first_passes >= 0 &&
        plan_.request.first_passes < static_cast<int>(passes.size()))
      passes.resize(plan_.request.first_passes);
    plan_.passes.clear();
    for (const Pass& pass : passes) plan_.passes.push_back({pass.name, pass.strategy, pass.place});
    if (!check_passes(passes)) return;
    const WeaveBy by{pipeline_.weave.get(), plan_.request.seconds, pipeline_.strategy,
                     pipeline_.place};
    for (Program& program : plan_.programs) {
      try {
        for (const Pass& pass : passes) run_held(pass, program);
        if (!check_reductions(program)) return;
        drop_unused(program);
        complete(program, passes);
        weave(program, by);
      } catch (const Stopped&) {
        throw;
      } catch (const Error& error) {
        problems_.add(error);
        return;
      }
    }
    order_receives(plan_.programs);
    note_passes(passes);
    check_shared_hooks();
  }

  // Adds the passes' notes to the plan's, each once, as programs may be finished for several
  // schedules.
  void note_passes(const std::vector<Pass>& passes) {
    for (const Pass& pass : passes) {
      if (!pass.note) continue;
      try {
        const std::string note = call_plugin({pass.strategy, pass.place}, "described a pass",
                                             [&] { return pass.note(plan_.programs); });
        if (!note.empty() && std::count(plan_.notes.begin(), plan_.notes.end(), note) == 0)
          plan_.notes.push_back(note);
      } catch (const Error& error) {
        problems_.add(error);
      }
    }
  }

  // Refuses passes for the sums of gradients over an axis along which no gradient is summed.
  bool check_passes(const std::vector<Pass>& passes) {
    std::vector<bool> summed(plan_.mesh.atoms().size(), false);
    for (const Program& program : plan_.programs) {
      for (const Bucket& bucket : program.buckets) {
        for (int atom : bucket.reduce_atoms)
          summed[atom] = summed[atom] || (!bucket.counts && !bucket.frozen);
      }
    }
    const auto any = [&](const Axis& axis) {
      return std::any_of(axis.atoms.begin(), axis.atoms.end(), [&](int a) { return summed[a]; });
    };
    for (const Pass& pass : passes) {
      if (pass.axis.empty() || (pass.order != Pass::reductions && pass.order != Pass::storage))
        continue;
      const Axis& axis = plan_.mesh.axis(pass.axis);
      if (axis.ways == 1 || any(axis)) continue;
      std::vector<std::string> names;
      for (const Axis& other : plan_.mesh.axes()) {
        if (other.ways > 1 && any(other)) names.push_back(other.name);
      }
      problems_.add(attributed(
          {pass.strategy, pass.place},
          {Stage::plan, "pass.axis", "",
           fmt::format("the pass \"{}\" is for sums of gradients over {}, and no gradient is "
                       "summed there",
                       pass.name, axis.name),
           names.empty() ? "no axis has such sums" : "axes with such sums: " + join(names)}));
    }
    return problems_.empty();
  }

  // The most bytes of activations that a stage's first rank holds, and that stage.
  std::pair<double, int> most_activations() const {
    std::pair<double, int> most{0, 0};
    for (const Program& program : plan_.programs) {
      const RankView rank(program, program.first(), 0, plan_.request.scratch.get());
      const auto held = static_cast<double>(forecast_memory(rank)[Category::activations]);
      most = std::max(most, {held, program.stage});
    }
    return most;
  }

  // Gives the numbers of the plan that was made without the limit.
  void refuse_memory() {
    const auto [held, stage] = most_activations();
    problems_.add(
        Stage::plan, "schedule.memory", key_in(pipeline_.place, "memory"),
        fmt::format("{}.memory: the schedule {} cannot keep activations within {:.0f} bytes "
                    "a rank; without a limit it holds {:.0f} on stage {}",
                    pipeline_.strategy, plan_.schedule.name, limit_, held, stage),
        fmt::format("raise the limit to {:.0f}, make microbatches smaller, or take a "
                    "schedule that holds less",
                    held));
  }

  // Puts the works' times and sizes into the request for a schedule.
  void weigh() {
    if (request_.times.empty()) request_.times = work_times(plan_.programs);
    if (request_.memory_limit > 0) request_.bytes = work_bytes(plan_.programs);
  }

  // Refuses stages that share a bucket and have different hooks for it: they reduce it together.
  void check_shared_hooks() {
    std::map<std::string, std::string> hooks;  // identity of the hook, by name of the bucket
    for (const Program& program : plan_.programs) {
      for (const Bucket& bucket : program.buckets) {
        if (bucket.stages.empty()) continue;
        const std::string hook = bucket.hook ? bucket.hook->identity() : "none";
        const auto [known, fresh] = hooks.emplace(bucket.name, hook);
        if (fresh || known->second == hook) continue;
        problems_.add(
            Stage::plan, "hook.differs", "plan",
            fmt::format("plan: {} is on several stages, and they chose different hooks for its "
                        "gradient: {} and {}",
                        bucket.name, known->second, hook),
            "let the choice follow from the bucket alone, not from when it is asked");
        return;
      }
    }
  }

  // Reductions in every microbatch need gradients that each rank keeps whole.
  bool check_reductions(const Program& program) {
    for (const Bucket& bucket : program.buckets) {
      if (bucket.shard_atoms.empty() || !bucket.reduce_per_microbatch) continue;
      problems_.add(
          Stage::plan, "hook.parts", "plan",
          fmt::format("plan: no reduction in every microbatch for gradients that are summed in "
                      "parts over {} ({} parameters of {})",
                      program.mesh.name_of(bucket.shard_atoms), bucket.parameters.size(),
                      bucket.name),
          "reduce after the last microbatch alone; whoever keeps parts says when they are reduced");
      return false;
    }
    return true;
  }

  void make_schedule() {
    if (plan_.request.schedule) {
      plan_.schedule = *plan_.request.schedule;
      return;
    }
    try {
      plan_.schedule = pipeline_.schedule(request_);
    } catch (const Error& error) {
      problems_.add(error);
    }
  }

  Plan& plan_;
  const Draft& draft_;
  const bool whole_;  // whether nothing of the draft was refused
  Problems& problems_;
  const DividedGraph divided_;
  Pipeline pipeline_;
  ScheduleRequest request_;
  double limit_ = 0;  // bytes of activations of a rank; 0: none
};

}  // namespace

void make_programs(Plan& plan, Draft& draft, Problems& problems, std::vector<WrongWays>& wrong) {
  ProgramMaker(plan, draft, problems).run(wrong);
}

}  // namespace mw
