// Finds the published configuration that a plan is nearest to.
#include "predict/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::size_t numbers_of_step = 2 + std::size(measured_roles);

// The ratio of two numbers as a number of doublings, with fractions.
double doublings(double a, double b) {
  return std::abs(std::log2(a / b));
}

// Whether the numbers of both are within factors of two, and both split the same things.
bool is_near(const PublishedStep& a, const PublishedStep& b) {
  constexpr double most = 1 + 1e-9;
  bool near =
      doublings(a.parameters, b.parameters) <= most && doublings(a.devices, b.devices) <= most;
  for (std::size_t k = 0; k < a.ways.size(); ++k)
    near = near && doublings(a.ways[k], b.ways[k]) <= most && (a.ways[k] > 1) == (b.ways[k] > 1);
  return near;
}

double distance(const PublishedStep& a, const PublishedStep& b) {
  double sum = doublings(a.parameters, b.parameters) + doublings(a.devices, b.devices);
  for (std::size_t k = 0; k < a.ways.size(); ++k) sum += doublings(a.ways[k], b.ways[k]);
  return sum;
}

}  // namespace

Json PublishedStep::to_json() const {
  Json json = {{"parameters", parameters}, {"devices", devices}};
  for (std::size_t k = 0; k < ways.size(); ++k) json[name_of(measured_roles[k])] = ways[k];
  if (!table.empty()) json["table"] = table;
  return json;
}

std::string measured_text(const PublishedStep& step) {
  std::string text =
      fmt::format("{:.3g} B parameters on {:.0f} devices", step.parameters / 1e9, step.devices);
  for (std::size_t k = 0; k < step.ways.size(); ++k) {
    if (step.ways[k] > 1)
      text += fmt::format(", {} {:.0f} ways", name_of(measured_roles[k]), step.ways[k]);
  }
  return step.table.empty() ? text : fmt::format("{} ({})", text, step.table);
}

std::vector<PublishedStep> read_measured(const Json& list, const std::string& path,
                                         Problems& problems) {
  std::vector<PublishedStep> steps;
  for (const Json& given : list) {
    const bool whole = given.is_array() && given.size() == numbers_of_step + 1 &&
                       given.back().is_string() &&
                       std::all_of(given.begin(), given.end() - 1, [](const Json& number) {
                         return number.is_number() && number.get<double>() >= 1;
                       });
    if (!whole) {
      const std::string key = fmt::format("{}[{}]", path, steps.size() + 1);
      problems.add(Stage::options, "cluster.value", key,
                   fmt::format("{}: got {}", key, describe(given)),
                   "{ parameters, devices, ways of layers, model, sequence and experts, \"table\" "
                   "}, numbers from 1 on");
      return steps;
    }
    PublishedStep step;
    step.parameters = given[0].get<double>();
    step.devices = given[1].get<double>();
    for (std::size_t k = 0; k < step.ways.size(); ++k) step.ways[k] = given[2 + k].get<double>();
    step.table = given.back().get<std::string>();
    steps.push_back(std::move(step));
  }
  return steps;
}

PublishedStep sizes_of(const Plan& plan) {
  PublishedStep sizes;
  sizes.parameters = static_cast<double>(plan.graph->parameter_count());
  sizes.devices = plan.ranks();
  for (const Axis& axis : plan.mesh.axes()) {
    for (std::size_t k = 0; k < sizes.ways.size(); ++k) {
      if (axis.role == measured_roles[k]) sizes.ways[k] *= axis.ways;
    }
  }
  return sizes;
}

std::optional<NearestMeasured> nearest_measured(const std::vector<PublishedStep>& measured,
                                                const PublishedStep& sizes) {
  const PublishedStep* nearest = nullptr;
  const auto key = [&](const PublishedStep& one) {
    return std::pair(!is_near(one, sizes), distance(one, sizes));
  };
  for (const PublishedStep& one : measured) {
    if (nearest == nullptr || key(one) < key(*nearest)) nearest = &one;
  }
  if (nearest == nullptr) return std::nullopt;
  return NearestMeasured{*nearest, is_near(*nearest, sizes)};
}

}  // namespace mw
