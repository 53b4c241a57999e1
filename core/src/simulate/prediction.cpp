#include "simulate/prediction.h"

#include <algorithm>

#include "engine/precision.h"
#include "simulate/flops.h"
#include "simulate/price.h"
#include "simulate/rank_view.h"

namespace mw {
namespace {

std::int64_t state_bytes(const Plan& plan, const Optimizer& optimizer) {
  return optimizer.bytes_per_element(scalar_type_of(plan.request.precision));
}

void take_time(Prediction& p, const StepTime& time, const Traffic& traffic) {
  p.step_seconds = time.step;
  p.compute_seconds = time.compute;
  p.exposed_seconds = time.exposed;
  p.bubble_fraction = time.step > 0 ? time.idle / time.step : 0;
  p.communication.clear();
  for (const auto& [key, use] : traffic) {
    const TransferTime& transfer = time.transfers.at(key);
    p.communication.push_back({key, use.calls, use.bytes, transfer.seconds, transfer.exposed});
  }
}

Json memory_json(const StageForecast& stage) {
  Json json{{"stage", stage.stage}};
  for (int c = 0; c < category_count; ++c) {
    json[name_of(static_cast<Category>(c))] = stage.memory.bytes[static_cast<std::size_t>(c)];
  }
  json["peak"] = stage.memory.peak;
  return json;
}

}  // namespace

Prediction predict(const Plan& plan, const Optimizer& optimizer, const Device& device,
                   int threads) {
  const Program& program = plan.program;
  const std::int64_t state = state_bytes(plan, optimizer);
  Prediction p;
  p.ranks = plan.ranks();
  p.parameters = plan.graph->parameter_count();
  const Flops flops = count_flops(program);
  p.flops_per_step = flops.model;
  p.hardware_flops_per_step = flops.hardware;

  StageForecast stage{program.stage, {}};
  std::int64_t everyone = 0;
  for (const RankClass& kind : rank_classes(program)) {
    const RankView rank(program, kind.at);
    const MemoryForecast memory = forecast_memory(rank, state);
    everyone += kind.ranks * memory.peak;
    if (memory.peak > stage.memory.peak) stage.memory = memory;
    const StepTime time =
        price_step(rank, device, static_cast<int>(state / program.element), threads);
    // Ranks meet in every step, so the slowest decides.
    if (time.step > p.step_seconds) take_time(p, time, forecast_traffic(rank));
  }
  p.stages.push_back(stage);
  p.memory_limit = device.memory;
  p.fits = (device.shared() ? everyone : stage.memory.peak) <= device.memory;

  const double tokens = static_cast<double>(plan.tokens_per_step());
  p.peak_flops = device.peak(p.ranks, program.element, threads);
  p.tokens_per_second = tokens / p.step_seconds;
  p.tokens_per_second_per_device = p.tokens_per_second / p.ranks;
  const double possible = p.peak_flops * p.step_seconds;
  p.mfu = p.flops_per_step / possible;
  p.hfu = p.hardware_flops_per_step / possible;
  p.mfu_6n = 6.0 * static_cast<double>(p.parameters) * tokens / possible;
  return p;
}

RankPrediction predict_rank(const Plan& plan, const Optimizer& optimizer, int rank) {
  const RankView view(plan.program, plan.mesh.coordinates(rank));
  return {forecast_memory(view, state_bytes(plan, optimizer)), forecast_traffic(view)};
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
                                     {"bytes", c.bytes},
                                     {"seconds", c.seconds},
                                     {"exposed_seconds", c.exposed_seconds}});
  }
  json["step_seconds"] = step_seconds;
  json["compute_seconds"] = compute_seconds;
  json["exposed_seconds"] = exposed_seconds;
  json["bubble_fraction"] = bubble_fraction;
  json["tokens_per_second"] = tokens_per_second;
  json["tokens_per_second_per_device"] = tokens_per_second_per_device;
  json["peak_flops"] = peak_flops;
  json["mfu"] = mfu;
  json["mfu_6n"] = mfu_6n;
  json["hfu"] = hfu;
  json["memory_limit"] = memory_limit;
  json["fits"] = fits;
  return json;
}

}  // namespace mw
