// Compares the losses of cells that must train alike, and mixes the order of runs.
#include "app/sweep/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "common/statistics.h"
#include "meshwright/engine/text.h"
#include "record/groups.h"

namespace mw {
namespace {

// Whether no label of a step counts, so that a result has no loss of it.
bool has_no_labels(const Json& result, std::size_t step) {
  const auto steps = result.find("steps_without_labels");
  return steps != result.end() && std::find(steps->begin(), steps->end(), step) != steps->end();
}

constexpr std::size_t first_steps = 10;
// By which factor a difference may grow from one step to the next: it was 66 at most where
// training is unstable.
constexpr double most_growth = 100;

double first_of(const Json& result, const char* key) {
  const Json list = result.value(key, Json::array());
  return list.empty() || !list.front().is_number() ? std::nan("") : list.front().get<double>();
}

// The relative difference of the first step's gradient norms; NaN where one overflowed or is
// missing.
double norm_difference(const Json& own, const Json& other) {
  const double a = first_of(own, "grad_norms"), b = first_of(other, "grad_norms");
  return std::abs(a - b) / std::max(std::abs(b), 1e-30);
}

}  // namespace

LossBound loss_bound(const std::string& precision) {
  if (precision == "fp64") return {1e-12, 1e-9, true, 1e-12};
  if (precision == "fp32") return {1e-5, 1e-3, true, 1e-5};
  return {2e-3, 3e-2, true, 5e-3};  // bf16, fp16
}

int counterpart(const std::vector<Cell>& cells, std::size_t cell, const std::string& like) {
  const auto values_of = [](const Cell& of) {
    AxisValues values;
    for (const CellValue& value : of.values) values.emplace_back(value.key, value.text);
    return values;
  };
  const AxisValues own = values_of(cells[cell]);
  const std::string* seed = cells[cell].text_of("seed");
  std::vector<AxisValues> values(cells.size());
  std::vector<const AxisValues*> candidates(cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].name == like) return i == cell ? -1 : static_cast<int>(i);
    const std::string* other_seed = cells[i].text_of("seed");
    if (seed != nullptr && other_seed != nullptr && *seed != *other_seed) continue;
    values[i] = values_of(cells[i]);
    if (has_value(values[i], like)) candidates[i] = &values[i];
  }
  const int found = nearest_values(own, candidates);
  return found == static_cast<int>(cell) ? -1 : found;
}

void check_like(const std::vector<Cell>& cells, const std::string& like, const char* key) {
  if (like.empty()) return;
  std::vector<std::string> known;
  for (const Cell& cell : cells) {
    known.push_back(cell.name);
    for (const CellValue& value : cell.values) known.push_back(value.text);
  }
  if (std::find(known.begin(), known.end(), like) != known.end()) return;
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  throw Error(Stage::options, "sweep.like", key,
              fmt::format("{}: no cell and no value of an axis is called {}", key, quote(like)),
              nearest_or_all(like, known));
}

void forget_judgement(Json& result) {
  const Json judged = result.value("same_loss_as", Json::object());
  result["status"] = "done";
  if (judged.contains("own_reason")) {
    result["reason"] = judged["own_reason"];
  } else if (!judged.empty()) {
    result["reason"] = nullptr;
  }
  result.erase("same_loss_as");
}

void judge(Json& result, const std::string& like, const Json* reference, const std::string& why,
           const LossBound& bound) {
  forget_judgement(result);
  Json found = {{"cell", like}, {"tolerance", bound.later}, {"first_tolerance", bound.first}};
  found["own_reason"] = result.value("reason", Json());
  const auto add_reason = [&](const std::string& text) {
    const Json& own = found["own_reason"];
    result["reason"] = own.is_string() ? own.get<std::string>() + "; " + text : text;
  };
  if (reference == nullptr) {
    found["compared"] = false;
    result["same_loss_as"] = found;
    add_reason("not compared: " + why);
    return;
  }
  const Json own = result.at("losses");  // a copy: `result` gets more keys, which moves it
  const Json& other = reference->at("losses");
  const std::size_t steps = std::min(own.size(), other.size());
  double worst = 0, first = 0, wrong = 0, limit = 0;
  std::size_t at = 0, wrong_at = steps;
  for (std::size_t s = 0; s < steps; ++s) {
    if (has_no_labels(result, s) && has_no_labels(*reference, s)) continue;
    const auto a = own[s].is_number() ? own[s].get<double>() : std::nan("");
    const auto b = other[s].is_number() ? other[s].get<double>() : std::nan("");
    double difference = std::abs(a - b) / std::max(std::abs(b), 1e-12);
    if (std::isnan(difference)) difference = INFINITY;
    const double may = s < first_steps ? bound.first
                       : bound.grows   ? std::max(bound.later, most_growth * worst)
                                       : bound.later;
    if (difference > may && wrong_at == steps) {
      wrong = difference;
      limit = may;
      wrong_at = s;
    }
    if (difference > worst) {
      worst = difference;
      at = s;
    }
    if (s < first_steps) first = worst;
    if (std::isinf(worst)) break;
  }
  found["compared"] = true;
  found["steps"] = steps;
  found["difference"] = worst;
  found["step"] = at;
  const double norms = norm_difference(result, *reference);
  const bool scaled = bound.norm > 0 && norms > bound.norm;
  if (std::isfinite(norms)) found["norm_difference"] = norms;
  if (bound.norm > 0) found["norm_tolerance"] = bound.norm;
  result["same_loss_as"] = found;
  if (wrong_at < steps) {
    result["status"] = "failed";
    add_reason(fmt::format(
        "trains differently: the loss of step {} is {} and {} has {}, {:.2g} apart relatively; up "
        "to {:.2g} may be{}",
        wrong_at,
        own[wrong_at].is_number() ? format_number(own[wrong_at].get<double>()) : "not finite", like,
        other[wrong_at].is_number() ? format_number(other[wrong_at].get<double>())
                                    : "one that is not finite",
        wrong, limit, bound.grows && wrong_at < first_steps ? " so early" : ""));
  } else if (scaled) {
    result["status"] = "failed";
    add_reason(fmt::format(
        "trains differently: its first gradient has the norm {} and that of {} has {}, {:.2g} "
        "apart relatively; up to {:.2g} may be, of the same weights. Verify says which gradient",
        format_number(first_of(result, "grad_norms")), like,
        format_number(first_of(*reference, "grad_norms")), norms, bound.norm));
  } else if (worst > std::max(bound.first, bound.later)) {
    add_reason(fmt::format(
        "its losses and those of {} are {:.2g} apart at step {}, grown little by little from "
        "{:.2g} in the first {} steps, as rounding does where training is unstable",
        like, worst, at, first, first_steps));
  }
}

ReportRuns runs_of(const SweepTable& sweep, const std::vector<Cell>& cells,
                   const std::vector<Json>& rows) {
  ReportRuns runs;
  runs.name = sweep.name;
  runs.baseline = sweep.baseline;
  runs.same_loss_as = sweep.like;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    ReportCell& cell = runs.cells.emplace_back();
    cell.name = cell.label = cells[i].name;
    cell.sweep = sweep.name;
    cell.held_to = sweep.like;
    for (const CellValue& value : cells[i].values) take_value(cell, value.key, value.text);
    if (!rows.empty()) {
      cell.status = rows[i].value("status", "queued");
      if (const Json why = rows[i].value("reason", Json()); why.is_string()) cell.reason = why;
      take_result(cell, rows[i]);
      take_run(cell, rows[i]);
    }
    cell.repeats = cells[i].repeats;
  }
  return runs;
}

std::vector<std::size_t> interleaved(const std::vector<Cell>& cells, std::int64_t seed) {
  std::vector<std::size_t> order;
  if (seed == 0) {
    for (std::size_t i = 0; i < cells.size(); ++i) order.push_back(i);
    return order;
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  const auto shuffle = [&](std::vector<std::size_t>& list) {
    for (std::size_t left = list.size(); left > 1; --left)
      std::swap(list[left - 1], list[random() % left]);
  };
  std::vector<std::vector<std::size_t>> groups = repeats_of(runs_of({}, cells).cells);
  for (auto& group : groups) shuffle(group);
  for (std::size_t round = 0; order.size() < cells.size(); ++round) {
    std::vector<std::size_t> now;
    for (const auto& group : groups)
      if (round < group.size()) now.push_back(group[round]);
    shuffle(now);
    order.insert(order.end(), now.begin(), now.end());
  }
  return order;
}

}  // namespace mw
