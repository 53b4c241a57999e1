// Makes a page of plans from plans and their predictions.
#include "draw/plan_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "draw/page.h"
#include "draw/placements.h"
#include "draw/timeline.h"
#include "meshwright/engine/forecast.h"
#include "meshwright/engine/rank_view.h"
#include "meshwright/engine/text.h"
#include "predict/pipeline.h"

namespace mw {
namespace {

constexpr int most_ranks = 512;             // most ranks that are drawn
constexpr std::size_t most_moments = 1500;  // most points of the curve of a stage's memory
constexpr std::size_t most_plans = 24;

Json mesh_json(const Plan& plan) {
  Json axes = Json::array();
  for (const Axis& axis : plan.mesh.axes()) {
    axes.push_back({{"name", page_text(axis.name, 60)},
                    {"ways", axis.ways},
                    {"role", axis.role == Role::none ? "" : name_of(axis.role)},
                    {"borrowed", axis.borrowed}});
  }
  Json ranks = Json::array();
  for (int rank = 0; rank < std::min(plan.ranks(), most_ranks); ++rank) {
    Json at = Json::array();
    for (const Axis& axis : plan.mesh.axes())
      at.push_back(plan.mesh.index_in_group(rank, axis.atoms));
    ranks.push_back({{"at", std::move(at)}, {"stage", plan.stage_of(rank)}});
  }
  return {{"axes", std::move(axes)}, {"size", plan.ranks()}, {"ranks", std::move(ranks)}};
}

Json rules_json(const Plan& plan) {
  Json rules = Json::array();
  for (const Rule& rule : plan.rules) {
    if (!plan.holds(rule)) continue;
    Json one = {{"dim", rule.dim.name()},
                {"axis", page_text(rule.axis, 60)},
                {"by", page_text(rule.strategy, 60)},
                {"where", rule.named || rule.where ? "some ops" : "all ops that have it"}};
    if (std::find(rules.begin(), rules.end(), one) == rules.end()) rules.push_back(std::move(one));
  }
  return rules;
}

Json placements_of(const Plan& plan) {
  Json stages = Json::array();
  for (const Json& stage : placements_json(plan)) {
    Json rows = Json::array();
    for (const PlacementRow& row : placement_rows(stage)) {
      rows.push_back({{"name", page_text(row.name(), 200)},
                      {"dims", join(row.dims)},
                      {"placement", row.placement},
                      {"shapes", row.shapes},
                      {"in_parts", row.in_parts}});
    }
    stages.push_back(
        {{"stage", stage["stage"]}, {"classes", stage["classes"]}, {"rows", std::move(rows)}});
  }
  return stages;
}

Json timeline_of(const Prediction& prediction) {
  TimelineRows rows;
  for (std::size_t s = 0; s < prediction.actions.size(); ++s) {
    std::vector<ActionRow> actions = action_rows(prediction.actions[s]);
    const int rank = actions.empty() ? 0 : actions.front().rank;
    rows.emplace_back(prediction.actions.size() > 1 ? fmt::format("stage {} (rank {})", s, rank)
                                                    : fmt::format("rank {}", rank),
                      std::move(actions));
  }
  return packed_timeline(rows);
}

// The most bytes that a rank holds in an interval of time.
struct MemoryInterval {
  double start = 0, end = 0;
  std::int64_t activations = 0, sum = 0;  // `sum`: activations, buffers and scratch
};

// The memory over time of the stage's rank with the highest peak, at the times of the stage's
// slowest rank.
std::vector<MemoryInterval> held_over_time(const Program& program, const MemoryTimeline& memory,
                                           const std::vector<TimedAction>& actions) {
  std::vector<MemoryInterval> held;
  std::size_t next = 0;
  double now = 0;
  const MemoryOfRun* before = nullptr;
  for (std::size_t i = 0; i < memory.moments.size(); ++i) {
    const MemoryOfRun& moment = memory.moments[i];
    const Segment& segment =
        program.segments[static_cast<std::size_t>(program.timeline[i].segment)];
    if (!is_shown(segment) || next >= actions.size()) {
      held.push_back({now, now, moment.activations, moment.sum});
    } else {
      TimedAction action = actions[next++];
      for (std::size_t lane = 1; lane < segment.lanes.size() && next < actions.size(); ++lane) {
        action.start = std::min(action.start, actions[next].start);
        action.end = std::max(action.end, actions[next++].end);
      }
      if (before != nullptr && action.start > now) {
        held.push_back({now, action.start, before->activations_after,
                        before->activations_after + before->buffers_after});
      }
      held.push_back({action.start, action.end, moment.activations, moment.sum});
      now = action.end;
    }
    before = &moment;
  }
  return held;
}

// Reduces a curve to at most `most_moments` intervals: each stands for several neighbours, with the
// bytes of the highest one.
std::vector<MemoryInterval> thinned_held(const std::vector<MemoryInterval>& held) {
  if (held.size() <= most_moments) return held;
  std::vector<MemoryInterval> out;
  for (std::size_t part = 0; part < most_moments; ++part) {
    const std::size_t begin = held.size() * part / most_moments,
                      end = held.size() * (part + 1) / most_moments;
    MemoryInterval one = held[begin];
    for (std::size_t i = begin; i < end; ++i) {
      if (held[i].sum > one.sum) {
        one.sum = held[i].sum;
        one.activations = held[i].activations;
      }
      one.end = held[i].end;
    }
    out.push_back(one);
  }
  return out;
}

Json memory_json(const Plan& plan, const Program& program, const Prediction& prediction,
                 std::int64_t libraries) {
  const DeviceScratch* scratch = plan.request.scratch.get();
  const auto stage = static_cast<std::size_t>(program.stage);
  Coordinates at;
  std::int64_t peak = -1;
  for (const RankClass& kind : rank_classes(program)) {
    const std::int64_t own = forecast_memory(RankView(program, kind.at, 0, scratch)).peak;
    if (own > peak) {
      peak = own;
      at = kind.at;
    }
  }
  const MemoryTimeline memory = memory_timeline(RankView(program, at, 0, scratch));
  std::vector<MemoryInterval> held;
  if (stage < prediction.actions.size())
    held = held_over_time(program, memory, prediction.actions[stage]);
  double peak_at = 0;
  std::int64_t highest = -1;
  for (const MemoryInterval& one : held) {
    if (one.sum <= highest) continue;
    highest = one.sum;
    peak_at = one.start;
  }
  const std::size_t all = held.size();
  Json points = Json::array();
  for (const MemoryInterval& one : thinned_held(held)) {
    points.push_back({page_number(1e3 * one.start), page_number(1e3 * one.end), one.activations,
                      one.sum - one.activations + libraries});
  }
  Json lasting = Json::object();
  for (const Category c : {Category::parameters, Category::gradients, Category::optimizer})
    lasting[name_of(c)] = memory.lasting[c];
  const MemoryForecast& most = prediction.stages.at(stage).memory;
  Json categories = Json::object();
  for (int c = 0; c < category_count; ++c)
    categories[name_of(static_cast<Category>(c))] = most[static_cast<Category>(c)];
  return {{"stage", program.stage},
          {"rank", program.mesh.rank(at)},
          {"lasting", std::move(lasting)},
          {"points", std::move(points)},
          {"works", all},
          {"peak", peak + libraries},
          {"peak_at", page_number(1e3 * peak_at)},
          {"categories", std::move(categories)},
          {"estimated", most.estimated}};
}

std::string bytes_of_rank(std::int64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

Json facts_json(const Plan& plan, const Prediction& p, std::int64_t memory_limit) {
  Json facts = Json::array();
  const auto add = [&facts](const char* what, const std::string& text) {
    if (!text.empty()) facts.push_back({what, page_text(text)});
  };
  add("mix", plan.mix());
  add("mesh", plan.mesh.describe());
  add("model",
      fmt::format("{}, {} parameters, {}", plan.request.model->name(),
                  count_text(static_cast<double>(p.parameters)), name_of(plan.request.precision)));
  add("batch",
      fmt::format("{} x {} tokens a step, {} of {}", plural(plan.request.batch, "sequence"),
                  plan.request.sequence,
                  plan.microbatches == 1 ? "1 microbatch"
                                         : fmt::format("{} microbatches", plan.microbatches),
                  plural(plan.microbatch, "sequence")));
  if (plan.programs.front().stage_atom >= 0)
    add("schedule", fmt::format("{} on {}", plan.schedule.name, plural(plan.stages(), "stage")));
  if (plan.request.recompute.kind != RecomputePolicy::Kind::none) {
    const Json recompute = plan.description().value("recompute", Json());
    add("recompute", recompute.is_string() ? recompute.get<std::string>() : recompute.dump());
  }
  if (memory_limit > 0) add("limit of a rank", bytes_of_rank(memory_limit));
  if (p.bound() > 0) {
    add("fits",
        p.memory_needed <= p.bound()
            ? fmt::format("yes: {} of {}", bytes_of_rank(p.memory_needed), bytes_of_rank(p.bound()))
            : fmt::format("no: {} needed, {} there", bytes_of_rank(p.memory_needed),
                          bytes_of_rank(p.bound())));
  }
  if (p.host_limit > 0 && p.host_needed > 0) {
    add("fits the hosts",
        p.host_fits() ? fmt::format("yes: {} of {} a node", bytes_of_rank(p.host_needed),
                                    bytes_of_rank(p.host_limit))
                      : fmt::format("no: {} needed of a node, {} there",
                                    bytes_of_rank(p.host_needed), bytes_of_rank(p.host_limit)));
  }
  add("hash", plan.hash());
  return facts;
}

}  // namespace

Json plan_page_data(const Plan& plan, const Prediction& prediction, std::int64_t memory_limit,
                    std::int64_t libraries) {
  Json json = {{"name", page_text(plan.mix(), 200)},
               {"facts", facts_json(plan, prediction, memory_limit)},
               {"mesh", mesh_json(plan)},
               {"rules", rules_json(plan)},
               {"placements", placements_of(plan)},
               {"timeline", timeline_of(prediction)},
               {"limit", memory_limit}};
  // The title of a page that shows only this plan.
  json["title"] = page_text(plan.mix().size() > 80 ? plan.mesh.describe() : plan.mix(), 200);
  json["notes"] = Json::array();
  for (const std::string& note : plan.notes) json["notes"].push_back(page_text(note));
  json["memory"] = Json::array();
  for (const Program& program : plan.programs)
    json["memory"].push_back(memory_json(plan, program, prediction, libraries));
  json["communication"] = Json::array();
  for (const CommunicationForecast& c : prediction.communication) {
    json["communication"].push_back({{"axis", page_text(c.key.axis, 60)},
                                     {"op", c.key.op},
                                     {"phase", c.key.phase},
                                     {"calls", c.calls},
                                     {"bytes", c.bytes},
                                     {"ms", page_number(1e3 * c.seconds)},
                                     {"exposed", page_number(1e3 * c.exposed_seconds)},
                                     {"basis", name_of(c.basis)}});
  }
  json["step"] = {{"ms", page_number(1e3 * prediction.step_seconds)},
                  {"compute", page_number(1e3 * prediction.compute_seconds)},
                  {"exposed", page_number(1e3 * prediction.exposed_seconds)},
                  {"copies", page_number(1e3 * prediction.host_copies.exposed)},
                  {"bubble", page_number(prediction.bubble_fraction)},
                  {"tokens", page_number(prediction.tokens_per_second)},
                  {"mfu", page_number(prediction.mfu)},
                  {"hfu", page_number(prediction.hfu)}};
  return json;
}

std::string plans_html(const std::string& script, std::vector<Json> plans) {
  Json data =
      page_data("plans", page_text(plans.size() == 1 ? plans.front()["title"].get<std::string>()
                                                     : "Plans of " + script,
                                   120));
  data["script"] = page_text(script, 300);
  data["notes"] = Json::array();
  if (plans.size() > most_plans) {
    data["notes"].push_back(
        fmt::format("The first {} of {} plans are on this page.", most_plans, plans.size()));
    plans.resize(most_plans);
  }
  data["plans"] = std::move(plans);
  return html_page(data["title"].get<std::string>(), data);
}

}  // namespace mw
