// Predicts a plan's step: seconds, memory of each stage, bytes of each axis, tokens per second
// and MFU.
#include "predict/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/rank_view.h"
#include "predict/node_memory.h"
#include "predict/pipeline.h"
#include "predict/recompute_gain.h"
#include "predict/step_counts.h"

namespace mw {
namespace {

// `traffic` has in each row the most that any rank sends.
void add_communication(Prediction& p, const std::vector<StepTime>& stages, const Traffic& traffic) {
  for (const auto& [key, use] : traffic) {
    CommunicationForecast row{key, use.calls, use.bytes};
    for (const StepTime& stage : stages) {
      const auto found = stage.transfers.find(key);
      if (found == stage.transfers.end()) continue;
      const double seconds = found->second.seconds, exposed = found->second.exposed;
      row.mean_exposed_seconds += exposed / static_cast<double>(stages.size());
      // Among stages that spend equally long, the one that hides least is taken.
      const bool longer = seconds > row.seconds * (1 + 1e-9);
      const bool alike = !longer && seconds >= row.seconds * (1 - 1e-9);
      if (!longer && !(alike && exposed > row.exposed_seconds)) continue;
      row.seconds = seconds;
      row.exposed_seconds = exposed;
      row.basis = found->second.basis();
    }
    p.communication.push_back(row);
  }
}

StepShares shares_of(const std::vector<StepTime>& stages) {
  StepShares shares;
  double all = 0;
  const auto add = [&](double& to, double seconds) {
    to += seconds;
    all += seconds;
  };
  for (const StepTime& stage : stages) {
    add(shares.compute, stage.compute);
    add(shares.bubble, stage.idle);
    add(shares.host_copies, stage.host_copies.exposed);
    for (const auto& [key, transfer] : stage.transfers)
      add(shares.exposed[key.axis], transfer.exposed);
  }
  if (all <= 0) return shares;
  shares.compute /= all;
  shares.bubble /= all;
  shares.host_copies /= all;
  for (auto& [axis, share] : shares.exposed) share /= all;
  return shares;
}

// What a stage's ranks hold, and which rank the others wait for.
struct StageRanks {
  StageForecast forecast;
  std::unique_ptr<RankView> slowest;
  double cpu = 0;  // core seconds of a step, of all ranks of the stage together
  // Mean and highest seconds of a step, if every rank had that rank's work; 0: all alike.
  double mean = 0, most = 0;
};

// The parameters that a token goes through: of the experts only those that it chose.
double active_parameters(const Graph& graph) {
  double active = 0;
  for (int value : graph.parameters()) {
    const Dims& dims = graph.value(value).dims;
    const bool some = !graph.sparse.dims.empty() &&
                      std::find(dims.begin(), dims.end(), graph.sparse.dims.front()) != dims.end();
    active += (some ? graph.sparse.share : 1) * static_cast<double>(graph.count(value));
  }
  return active;
}

void scale_times(Prediction& p, double share) {
  for (double* seconds :
       {&p.step_seconds, &p.compute_seconds, &p.exposed_seconds, &p.host_copies.seconds,
        &p.host_copies.exposed, &p.host_updates.seconds, &p.host_updates.exposed})
    *seconds *= share;
  if (p.documents) {
    p.documents->mean *= share;
    p.documents->p95 *= share;
  }
  for (StageParts& part : p.parts) {
    for (double* seconds : {&part.compute, &part.exposed, &part.host_copies, &part.bubble})
      *seconds *= share;
  }
  for (CommunicationForecast& c : p.communication) {
    c.seconds *= share;
    c.exposed_seconds *= share;
    c.mean_exposed_seconds *= share;
  }
  for (auto& stage : p.actions) {
    for (TimedAction& action : stage) {
      action.start *= share;
      action.end *= share;
    }
  }
  for (auto& stage : p.instructions) {
    for (InstructionTime& time : stage) {
      time.start *= share;
      time.end *= share;
    }
  }
}

// Where ranks share cores, a rank that is done leaves its share to the others: the step takes what
// the work of all takes, or the longest rank alone.
void share_cores(Prediction& p, const StageRanks& ranks, double turns) {
  if (ranks.most <= 0) return;
  scale_times(p, std::max(ranks.mean, ranks.most / turns) / ranks.most);
}

// Whether `bytes` fill `room` less than `others` fill `theirs`; a room that is not known is 0.
bool less_full(std::int64_t bytes, std::int64_t room, std::int64_t others, std::int64_t theirs) {
  if (room == theirs || room <= 0 || theirs <= 0) return bytes < others;
  return static_cast<double>(bytes) / static_cast<double>(room) <
         static_cast<double>(others) / static_cast<double>(theirs);
}

// Makes the rank the stage's fullest one if it is fuller than the fullest so far.
void take_fuller(StageForecast& stage, const RankView& rank, const MemoryForecast& memory,
                 const Machine& machine) {
  DeviceRoom device;
  if (!machine.memory_together()) device = machine.device_of(rank.program().mesh.rank(rank.at()));
  if (!less_full(stage.memory.peak, stage.device.bytes, memory.peak, device.bytes)) return;
  stage.memory = memory;
  stage.device = std::move(device);
  stage.beside = machine.beside_program(rank, memory);
}

StageRanks look_at(const Program& program, const Machine& machine, int threads,
                   TotalMemory& together, NodeMemory& hosts, Traffic& traffic) {
  StageRanks found;
  found.forecast.stage = program.stage;
  double slowest = -1;
  const auto classes = rank_classes(program);
  const auto by_device = machine.by_device(program, classes);
  const bool alike = classes.size() == 1 && by_device.front().size() == 1;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    auto view = std::make_unique<RankView>(program, classes[c].at, 0, machine.scratch());
    MemoryForecast memory = forecast_memory(*view);
    memory[Category::buffers] += machine.kept_by_libraries();
    memory.peak += machine.kept_by_libraries();
    together.add(classes[c], memory);
    hosts.add(program, classes[c], memory);
    found.forecast.most = highest_of(found.forecast.most, memory);
    take_most(traffic, forecast_traffic(*view));
    for (const RankClass& kind : by_device[c]) {
      if (kind.at != view->at())
        view = std::make_unique<RankView>(program, kind.at, 0, machine.scratch());
      take_fuller(found.forecast, *view, memory, machine);
      if (const Machine* cores = machine.by_core_seconds()) {
        const StepTime alone = price_step(*view, *cores, threads);
        double own = alone.compute;
        for (const auto& [key, transfer] : alone.transfers) own += transfer.seconds;
        found.cpu += own * static_cast<double>(kind.ranks);
      }
      const double seconds = alike ? 0 : price_step(*view, machine, threads).step;
      found.mean += seconds * static_cast<double>(kind.ranks) / program.mesh.size();
      if (found.slowest && seconds <= slowest) continue;
      slowest = seconds;
      found.slowest = std::make_unique<RankView>(program, kind.at, 0, machine.scratch());
    }
  }
  found.most = slowest;
  return found;
}

// How many instructions a run of the segment plays.
std::size_t length_of(const Program& program, int segment) {
  std::size_t length = 0;
  for (const Instruction& i : program.segments[segment].code)
    length += i.ring ? ring_length(program, i) : 1;
  return length;
}

Json memory_json(const StageForecast& stage) {
  Json json{{"stage", stage.stage}};
  for (int c = 0; c < category_count; ++c) {
    json[name_of(static_cast<Category>(c))] = stage.memory.bytes[static_cast<std::size_t>(c)];
  }
  json["peak"] = stage.memory.peak;
  json["scratch_basis"] = stage.memory.measured ? "measured" : "estimated";
  if (!stage.device.name.empty()) {
    json["device"] = stage.device.name;
    json["device_memory"] = stage.device.bytes;
  }
  return json;
}

// Prices the drawn step whose load is nearest to the mean, and sets `ranks` to the ranks that
// decide its time. Every other step is taken to lie on the line through the times of the steps with
// the least and the most load. `shared`: ranks take turns on cores, so that a step takes as long as
// the work of all ranks together.
PipelineTime price_documents(const Plan& plan, int op, const Machine& machine, int threads,
                             bool shared, std::vector<RankView>& ranks, Prediction& p) {
  const std::vector<StepWork> drawn = draw_steps(plan, op);
  DocumentForecast& found = p.documents.emplace();
  found.steps = static_cast<std::int64_t>(drawn.size());
  const auto steps = static_cast<double>(drawn.size());
  const auto group = [&](const StepWork& work) {
    const std::vector<int> groups = work.by_load();
    return shared ? groups[groups.size() / 2] : groups.back();
  };
  std::vector<double> loads;
  found.ranks = found.microbatches = 0;
  for (const StepWork& work : drawn) {
    loads.push_back(work.load(group(work)));
    found.work += work.mean() / steps;
    found.ranks += work.imbalance_of_ranks() / steps;
    found.microbatches += work.imbalance_of_microbatches() / steps;
  }
  std::vector<RankView> chosen;
  const auto price = [&](std::size_t step) {
    const auto work = std::make_shared<const StepWork>(drawn[step]);
    chosen.clear();
    chosen.reserve(ranks.size());
    for (const RankView& rank : ranks)
      chosen.emplace_back(rank.program(), work->slowest_of(rank, group(*work), found.context), 0,
                          rank.scratch(), work);
    return price_pipeline(chosen, machine, threads);
  };
  std::vector<std::size_t> order(loads.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return loads[a] < loads[b]; });
  const std::size_t least = order.front(), most = order.back();
  const double low = price(least).step, range = loads[most] - loads[least];
  // Where ranks share sequences, a step with more load may be the shorter one.
  const double slope = range > 0 ? std::max(0.0, price(most).step - low) / range : 0;
  const auto seconds = [&](double load) { return low + slope * (load - loads[least]); };
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / steps;
  found.mean = seconds(mean);
  found.p95 = seconds(loads[order[static_cast<std::size_t>(std::ceil(0.95 * steps)) - 1]]);
  PipelineTime time = price(*std::min_element(order.begin(), order.end(), [&](auto a, auto b) {
    return std::abs(loads[a] - mean) < std::abs(loads[b] - mean);
  }));
  ranks = std::move(chosen);
  return time;
}

}  // namespace

static Prediction predict_step(const Plan& plan, const Machine& machine, int threads, bool traced) {
  const Dtype dtype = plan.programs.front().dtype;
  Prediction p;
  p.priced_for = machine.name();
  p.cannot_run = machine.cannot_run(plan.request);
  p.undeclared = undeclared_work(*plan.graph);
  p.ranks = plan.ranks();
  if (!machine.memory_together()) p.devices = machine.room();
  p.parameters = plan.graph->parameter_count();

  TotalMemory together;
  NodeMemory hosts;
  std::vector<RankView> slowest;
  slowest.reserve(plan.programs.size());
  std::vector<Coordinates> ranks;  // coordinates of the slowest ranks
  Traffic traffic;
  StageRanks last;
  for (const Program& program : plan.programs) {
    last = look_at(program, machine, threads, together, hosts, traffic);
    p.stages.push_back(last.forecast);
    p.cpu_seconds += last.cpu;
    ranks.push_back(last.slowest->at());
    slowest.push_back(std::move(*last.slowest));
  }
  for (const Program& program : plan.programs) {
    std::size_t count = 0;
    for (const SegmentRun& run : program.timeline) count += length_of(program, run.segment);
    traced = traced && count <= most_instructions_recorded;
  }
  PipelineTime time = price_pipeline(slowest, machine, threads);
  const double turns = machine.turns(p.ranks, threads);
  const int op = plan.request.priced_data ? attention_of_documents(*plan.graph) : -1;
  if (op >= 0) {
    const double of_whole_rows = time.step;
    time = price_documents(plan, op, machine, threads, turns > 1, slowest, p);
    p.cpu_seconds *= time.step / of_whole_rows;
    for (std::size_t s = 0; s < ranks.size(); ++s) ranks[s] = slowest[s].at();
  }
  // In a second pass: where instructions are played one by one, the sums of times differ in their
  // last bits.
  if (traced)
    p.instructions = price_pipeline(slowest, machine, threads, /*traced=*/true).instructions;
  const Flops flops = count_flops(plan.programs, p.documents ? p.documents->work : 1);
  p.flops_per_step = flops.model;
  p.hardware_flops_per_step = flops.hardware;
  p.step_seconds = time.step;
  p.bubble_fraction = time.bubble;
  p.shares = shares_of(time.stages);
  p.actions = time.actions;
  for (std::size_t s = 0; s < p.actions.size(); ++s) {
    for (TimedAction& action : p.actions[s]) action.rank = plan.mesh.rank(ranks[s]);
  }
  const auto stages = static_cast<double>(time.stages.size());
  for (std::size_t s = 0; s < time.stages.size(); ++s) {
    const StepTime& stage = time.stages[s];
    p.parts.push_back({stage.compute, stage.exposed, stage.host_copies.exposed, stage.idle});
    p.compute_seconds += stage.compute / stages;
    p.exposed_seconds += stage.exposed / stages;
    p.host_copies.seconds += stage.host_copies.seconds / stages;
    p.host_copies.exposed += stage.host_copies.exposed / stages;
    p.host_updates.seconds += stage.host_updates.seconds / stages;
    p.host_updates.exposed += stage.host_updates.exposed / stages;
  }
  add_communication(p, time.stages, traffic);
  if (turns > 1 && ranks.size() == 1) share_cores(p, last, turns);
  if (const double stragglers = machine.stragglers(p.ranks); stragglers > 1)
    scale_times(p, stragglers);
  const StageForecast& fullest = p.fullest();
  p.memory_limit = machine.memory_together() ? machine.memory() : fullest.device.bytes;
  p.memory_needed = machine.memory_together() ? together.bytes() : fullest.memory.peak;
  if (const HostMemory host = machine.host(); host.ranks > 0) {
    p.host_needed = hosts.most(plan, host.ranks);
    p.host_limit = host.bytes;
    p.host_ranks = std::min(host.ranks, p.ranks);
  }
  p.fits = p.memory_needed <= p.memory_limit && p.host_fits();
  // Ranks that share a machine that does not hold them would never run there.
  if ((machine.room() > 0 && p.ranks > machine.room()) || (!p.fits && machine.memory_together()))
    p.untimed = "these ranks are more than this machine holds";
  p.step_error = machine.error();
  p.compute_basis = machine.basis();
  p.beside_basis = machine.beside_basis();

  const double tokens = static_cast<double>(plan.tokens_per_step());
  p.peak_flops = machine.peak(p.ranks, dtype, threads);
  p.tokens_per_second = tokens / p.step_seconds;
  p.tokens_per_second_per_device = p.tokens_per_second / p.ranks;
  const double possible = p.peak_flops * p.step_seconds;
  p.mfu = p.flops_per_step / possible;
  p.hfu = p.hardware_flops_per_step / possible;
  p.mfu_6n = 6.0 * active_parameters(*plan.graph) * tokens / possible;
  return p;
}

// Adds what outer steps take to the prediction of a step.
static void add_outer_steps(const Plan& plan, const Machine& machine, int threads, Prediction& p) {
  const OuterSteps& outer = *plan.programs.front().outer;
  const std::string between = plan.programs.front().name_of(RankSet{outer.atoms});
  p.outer = OuterForecast{.every = outer.every, .fragments = outer.fragments};
  for (const OuterEvent& event : kinds_of_outer_events(outer)) {
    const Prediction other = predict_step(*outer_plan(plan, event), machine, threads, false);
    p.raise_memory(other);
    p.outer->seconds += other.step_seconds;
    p.outer->communication.emplace_back(event, other.communication);
    for (const CommunicationForecast& row : other.communication) {
      if (row.key.axis != between) continue;
      p.outer->bytes += row.bytes;
      // What the steps until the outer step ends do not hide.
      if (!event.ends)
        p.outer->seconds +=
            std::max(0.0, row.seconds - static_cast<double>(outer.delay) * p.step_seconds);
    }
  }
  const double share =
      p.step_seconds / (p.step_seconds + p.outer->seconds / static_cast<double>(outer.every));
  for (double* rate :
       {&p.tokens_per_second, &p.tokens_per_second_per_device, &p.mfu, &p.mfu_6n, &p.hfu})
    *rate *= share;
}

Prediction predict(const Plan& plan, const Machine& machine, int threads, bool traced) {
  Prediction p = predict_step(plan, machine, threads, traced);
  if (plan.programs.front().outer) add_outer_steps(plan, machine, threads, p);
  return p;
}

void Prediction::as_measured() {
  if (!outer) return;
  const auto after = static_cast<double>(outer->communication.size()),  // steps with an outer step
      every = static_cast<double>(outer->every);
  const double before = step_seconds + outer->seconds / every;
  if (2 * after > every) step_seconds += outer->seconds / std::min(after, every);
  for (double* rate : {&tokens_per_second, &tokens_per_second_per_device, &mfu, &mfu_6n, &hfu})
    *rate *= before / step_seconds;
}

void Prediction::raise_memory(const Prediction& other) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].memory = highest_of(stages[s].memory, other.stages[s].memory);
    stages[s].most = highest_of(stages[s].most, other.stages[s].most);
  }
  memory_needed = std::max(memory_needed, other.memory_needed);
  host_needed = std::max(host_needed, other.host_needed);
  fits = fits && other.fits;
}

RankPrediction predict_rank(const Plan& plan, int rank) {
  const RankView view(plan.program_of(rank), plan.mesh.coordinates(rank));
  return {forecast_memory(view), forecast_traffic(view)};
}

Basis Prediction::step_basis() const {
  Basis worst = compute_basis;
  for (const CommunicationForecast& c : communication) {
    const double share = parts.size() > 1 ? c.mean_exposed_seconds : c.exposed_seconds;
    if (share > negligible_share * step_seconds) worst = std::max(worst, c.basis);
  }
  return worst;
}

const char* Prediction::memory_basis() const {
  const auto counted = [](const StageForecast& stage) { return stage.memory.measured; };
  return std::all_of(stages.begin(), stages.end(), counted) ? "counted" : "estimated";
}

std::size_t Prediction::busiest() const {
  return static_cast<std::size_t>(
      std::min_element(parts.begin(), parts.end(),
                       [](const auto& a, const auto& b) { return a.bubble < b.bubble; }) -
      parts.begin());
}

const StageForecast& Prediction::fullest() const {
  return *std::max_element(stages.begin(), stages.end(), [&](const auto& a, const auto& b) {
    return less_full(a.memory.peak, bound_of(a.device.bytes), b.memory.peak,
                     bound_of(b.device.bytes));
  });
}

std::int64_t Prediction::highest_peak() const {
  std::int64_t most = 0;
  for (const StageForecast& stage : stages) most = std::max(most, stage.most.peak);
  return most;
}

std::int64_t StageForecast::reported() const {
  std::int64_t bytes = memory.peak;
  for (const NamedBytes& each : beside) bytes += each.bytes;
  return bytes;
}

std::int64_t StageForecast::in_use() const {
  std::int64_t bytes = reported();
  for (const NamedBytes& each : beside) bytes -= each.name == reserve_name ? each.bytes : 0;
  return bytes;
}

const StageForecast& Prediction::most_reported() const {
  return *std::max_element(stages.begin(), stages.end(), [](const auto& a, const auto& b) {
    return less_full(a.reported(), a.device.bytes, b.reported(), b.device.bytes);
  });
}

void Prediction::forget_machine(std::string why) {
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  untimed = std::move(why);
  priced_for.clear();
  cannot_run.clear();
  for (double* number : {&step_seconds, &compute_seconds, &exposed_seconds, &tokens_per_second,
                         &tokens_per_second_per_device, &peak_flops, &mfu, &mfu_6n, &hfu})
    *number = unknown;
  host_copies = host_updates = {};
  parts.clear();
  cpu_seconds = step_error = 0;
  held_out_seconds.reset();
  if (outer) {
    outer->seconds = unknown;
    outer->communication.clear();
  }
  documents.reset();
  pitfalls.clear();
  for (CommunicationForecast& c : communication)
    c.seconds = c.exposed_seconds = c.mean_exposed_seconds = unknown;
  for (auto& stage : actions) stage.clear();
  for (auto& stage : instructions) stage.clear();
  // Without a machine, what is needed is what each rank needs on a device of its own.
  for (StageForecast& stage : stages) stage.device = {};
  memory_needed = fullest().memory.peak;
  memory_limit = 0;
  fits = true;
}

bool Prediction::nearly_full() const {
  return fits && bound() > 0 &&
         static_cast<double>(memory_needed) > nearly_full_share * static_cast<double>(bound());
}

bool Prediction::reported_above() const {
  const StageForecast& most = most_reported();
  return fits && most.device.bytes > 0 && most.reported() > most.device.bytes;
}

Room Prediction::room() const {
  if (reported_above()) {
    const StageForecast& most = most_reported();
    return most.in_use() > most.device.bytes ? Room::runs_out : Room::over;
  }
  return nearly_full() ? Room::nearly_full : Room::ample;
}

const char* name_of(Room room) {
  switch (room) {
    case Room::ample:
      return "";
    case Room::nearly_full:
      return "nearly full";
    case Room::over:
      return "over";
    case Room::runs_out:
      break;
  }
  return "runs out";
}

void Prediction::limit_memory(std::int64_t bytes) {
  const bool bounds =
      bytes > 0 && std::any_of(stages.begin(), stages.end(), [&](const StageForecast& stage) {
        return bytes < stage.device.bytes;
      });
  if (!bounds) return;
  rank_limit = bytes;
  memory_needed = fullest().memory.peak;
  memory_limit = fullest().device.bytes;
  fits = memory_needed <= bound() && host_fits();
}

Json Prediction::to_json() const {
  Json json;
  json["ranks"] = ranks;
  json["parameters"] = parameters;
  json["flops_per_step"] = flops_per_step;
  json["hardware_flops_per_step"] = hardware_flops_per_step;
  json["memory"] = Json::array();
  for (const StageForecast& stage : stages) json["memory"].push_back(memory_json(stage));
  json["communication"] = Json::array();
  for (const CommunicationForecast& c : communication) {
    json["communication"].push_back({{"axis", c.key.axis},
                                     {"op", c.key.op},
                                     {"phase", c.key.phase},
                                     {"calls", c.calls},
                                     {"bytes", c.bytes}});
    if (!timed()) continue;
    json["communication"].back()["seconds"] = c.seconds;
    json["communication"].back()["exposed_seconds"] = c.exposed_seconds;
    json["communication"].back()["basis"] = name_of(c.basis);
    if (parts.size() > 1)
      json["communication"].back()["mean_exposed_seconds"] = c.mean_exposed_seconds;
  }
  json["bubble_fraction"] = bubble_fraction;
  if (timed()) {
    json["priced_for"] = priced_for;
    if (!cannot_run.empty()) json["cannot_run"] = cannot_run;
    if (!undeclared.empty()) json["undeclared_work"] = undeclared;
    json["step_seconds"] = step_seconds;
    json["step_basis"] = name_of(step_basis());
    if (step_error > 0) json["step_error"] = step_error;
    if (cpu_seconds > 0) json["cpu_seconds"] = cpu_seconds;
    json["compute_seconds"] = compute_seconds;
    json["compute_basis"] = name_of(compute_basis);
    json["exposed_seconds"] = exposed_seconds;
    if (host_copies.seconds > 0) {
      json["host_copy_seconds"] = host_copies.seconds;
      json["exposed_host_copy_seconds"] = host_copies.exposed;
    }
    if (host_updates.seconds > 0) {
      json["host_update_seconds"] = host_updates.seconds;
      json["exposed_host_update_seconds"] = host_updates.exposed;
    }
    if (parts.size() > 1) {
      for (std::size_t s = 0; s < parts.size(); ++s)
        json["stages"].push_back({{"stage", stages[s].stage},
                                  {"compute_seconds", parts[s].compute},
                                  {"exposed_seconds", parts[s].exposed},
                                  {"exposed_host_copy_seconds", parts[s].host_copies},
                                  {"bubble_seconds", parts[s].bubble}});
    }
    json["tokens_per_second"] = tokens_per_second;
    json["tokens_per_second_per_device"] = tokens_per_second_per_device;
    json["peak_flops"] = peak_flops;
    json["mfu"] = mfu;
    json["mfu_6n"] = mfu_6n;
    json["hfu"] = hfu;
  }
  json["peak_bytes"] = fullest().memory.peak;
  json["memory_basis"] = memory_basis();
  if (const StageForecast& most = most_reported(); !most.beside.empty()) {
    json["reported_bytes"] = most.reported();
    json["reported_basis"] = name_of(beside_basis);
    for (const NamedBytes& each : most.beside) json["beside_program"][each.name] = each.bytes;
  }
  json["memory_needed"] = memory_needed;
  if (memory_limit > 0) {  // 0: not known
    json["memory_limit"] = memory_limit;
    json["fits"] = fits;
    json["nearly_full"] = nearly_full();
  }
  if (host_needed > 0) {
    json["host_needed"] = host_needed;
    if (host_limit > 0) json["host_limit"] = host_limit;
  }
  add_waste(*this, json);
  if (!pitfalls.empty()) json["pitfalls"] = pitfalls;
  if (documents) json["documents"] = documents->to_json();
  if (held_out_seconds && timed()) json["held_out_seconds"] = *held_out_seconds;
  if (outer) {
    json["outer"] = {
        {"every", outer->every}, {"fragments", outer->fragments}, {"bytes", outer->bytes}};
    if (timed()) json["outer"]["seconds"] = outer->seconds;
  }
  return json;
}

}  // namespace mw
