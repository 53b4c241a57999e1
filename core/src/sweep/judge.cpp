// Compares the losses of cells that must train alike, and gathers repeated runs.
#include "sweep/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"

namespace mw {
namespace {

bool is_repeat(const CellValue& value) {
  return value.key == "seed" || value.key == "repeat";
}

}  // namespace

double loss_tolerance(const std::string& precision) {
  if (precision == "fp64") return 1e-9;
  if (precision == "fp32") return 1e-3;
  return 3e-2;  // bf16, fp16
}

int counterpart(const std::vector<Cell>& cells, std::size_t cell, const std::string& like) {
  int found = -1;
  int most = -1;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].name == like) return i == cell ? -1 : static_cast<int>(i);
    const auto& values = cells[i].values;
    const bool has = std::any_of(values.begin(), values.end(),
                                 [&](const CellValue& value) { return value.text == like; });
    if (!has) continue;
    int shared = 0;
    bool other_seed = false;
    for (const CellValue& value : values) {
      const std::string* own = cells[cell].text_of(value.key);
      if (own != nullptr && *own == value.text) ++shared;
      if (own != nullptr && *own != value.text && value.key == "seed") other_seed = true;
    }
    if (other_seed || shared <= most) continue;
    most = shared;
    found = static_cast<int>(i);
  }
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
  const std::string near = did_you_mean(like, known);
  if (known.size() > 12) known.resize(12);
  throw Error(Stage::options, "sweep.like", key,
              fmt::format("{}: no cell and no value of an axis is called {}", key, quote(like)),
              near.empty() ? "there are: " + join_quoted(known) : near);
}

void judge(Json& result, const std::string& like, const Json* reference, const std::string& why,
           double tolerance) {
  result["status"] = "done";
  result["reason"] = nullptr;
  Json found = {{"cell", like}, {"tolerance", tolerance}};
  if (reference == nullptr) {
    found["compared"] = false;
    result["reason"] = "not compared: " + why;
    result["same_loss_as"] = found;
    return;
  }
  const Json& own = result.at("losses");
  const Json& other = reference->at("losses");
  const std::size_t steps = std::min(own.size(), other.size());
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t s = 0; s < steps; ++s) {
    const auto a = own[s].is_number() ? own[s].get<double>() : std::nan("");
    const auto b = other[s].is_number() ? other[s].get<double>() : std::nan("");
    const double difference = std::abs(a - b) / std::max(std::abs(b), 1e-12);
    if (difference <= worst) continue;  // not so if one of them is NaN
    worst = std::isnan(difference) ? INFINITY : difference;
    at = s;
    if (std::isinf(worst)) break;
  }
  found["compared"] = true;
  found["steps"] = steps;
  found["difference"] = worst;
  found["step"] = at;
  result["same_loss_as"] = found;
  if (worst <= tolerance) return;
  result["status"] = "failed";
  result["reason"] = fmt::format(
      "trains differently: the loss of step {} is {} and {} has {}, {:.2g} apart relatively; up to "
      "{:.2g} may be",
      at, own[at].is_number() ? format_number(own[at].get<double>()) : "not finite", like,
      other[at].is_number() ? format_number(other[at].get<double>()) : "one that is not finite",
      worst, tolerance);
}

std::string group_name(const Cell& cell) {
  std::string name;
  for (const CellValue& value : cell.values) {
    if (is_repeat(value)) continue;
    name += name.empty() ? "" : " ";
    name += value.shown ? value.text : value.key + "=" + value.text;
  }
  return name.empty() ? "base" : name;
}

std::vector<std::vector<std::size_t>> groups_of(const std::vector<Cell>& cells) {
  std::vector<std::vector<std::size_t>> groups;
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto [group, fresh] = known.emplace(group_name(cells[i]), groups.size());
    if (fresh) groups.emplace_back();
    groups[group->second].push_back(i);
  }
  return groups;
}

}  // namespace mw
