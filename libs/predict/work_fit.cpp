// Fits seconds of instructions to their sizes, by relative error and without negative rates.
#include "predict/work_fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "common/statistics.h"
#include "meshwright/options.h"

namespace mw {
namespace {

// The ratios of measured to fitted seconds along the fitted seconds, a point for each doubling: the
// median of the nearest samples, so that a single one bends nothing.
LogCurve ratios(const std::vector<WorkSample>& samples, const WorkFit& fit) {
  std::vector<std::pair<double, double>> all, points;
  for (const WorkSample& s : samples) {
    const double sum = fit.sum(s.size);
    if (sum > 0) all.emplace_back(std::log(sum), s.seconds / sum);
  }
  std::sort(all.begin(), all.end());
  const std::size_t near = all.size() < 20 ? 3 : 5;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    double middle = 0;
    for (; end < all.size() && all[end].first <= all[begin].first + std::log(2); ++end)
      middle += all[end].first;
    middle /= static_cast<double>(end - begin);
    begin = end;
    auto nearest = all;
    std::sort(nearest.begin(), nearest.end(), [&](const auto& a, const auto& b) {
      return std::abs(a.first - middle) < std::abs(b.first - middle);
    });
    std::vector<double> values;
    for (std::size_t k = 0; k < std::min(near, nearest.size()); ++k)
      values.push_back(nearest[k].second);
    points.emplace_back(std::exp(middle), median(values));
  }
  return LogCurve(std::move(points));
}

}  // namespace

std::vector<double> fit_factors(const std::vector<std::vector<double>>& rows,
                                const std::vector<double>& wanted, std::vector<double> of) {
  if (of.empty()) of = wanted;
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto n = rows.empty() ? 0 : static_cast<std::int64_t>(rows.front().size());
  std::vector<double> flat;
  for (const std::vector<double>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  const at::Tensor weights = at::tensor(of, at::kDouble).reciprocal();
  at::Tensor a = at::tensor(flat, at::kDouble).view({count, n}) * weights.unsqueeze(1);
  const at::Tensor b = at::tensor(wanted, at::kDouble) * weights;
  const at::Tensor scale = at::linalg_vector_norm(a, 2, 0);
  a /= scale.clamp_min(1e-300);
  at::Tensor best = at::zeros({n}, at::kDouble);
  double least = b.square().sum().item<double>();  // the error where all factors are 0
  // Every set of factors that are not zero is tried: there are a handful of factors.
  for (std::int64_t set = 1; set < std::int64_t{1} << n; ++set) {
    std::vector<std::int64_t> taken;
    for (std::int64_t k = 0; k < n; ++k) {
      if ((set >> k & 1) != 0 && scale[k].item<double>() > 0) taken.push_back(k);
    }
    const auto size = static_cast<std::int64_t>(taken.size());
    if (size < __builtin_popcountll(static_cast<std::uint64_t>(set)) || size > count) continue;
    const at::Tensor which = at::tensor(taken, at::kLong), part = a.index_select(1, which);
    const at::Tensor x =
        std::get<0>(at::linalg_lstsq(part, b.unsqueeze(1), std::nullopt, "gelsd")).squeeze(1);
    if (x.lt(0).any().item<bool>()) continue;
    const double error = (at::mv(part, x) - b).square().sum().item<double>();
    if (error >= least * (1 - 1e-9)) continue;
    least = error;
    best = at::zeros({n}, at::kDouble).index_put({which}, x / scale.index_select(0, which));
  }
  return {best.data_ptr<double>(), best.data_ptr<double>() + n};
}

std::vector<double> fit_robustly(const std::vector<std::vector<double>>& rows,
                                 const std::vector<double>& wanted, std::vector<double> of,
                                 double usual) {
  if (of.empty()) of = wanted;
  std::vector<double> factors = fit_factors(rows, wanted, of);
  for (int round = 0; round < 10; ++round) {
    std::vector<double> weighed = of;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const double sum = std::inner_product(rows[r].begin(), rows[r].end(), factors.begin(), 0.0);
      const double error = std::abs(sum - wanted[r]) / of[r];
      if (error > usual) weighed[r] *= std::sqrt(error / usual);
    }
    factors = fit_factors(rows, wanted, weighed);
  }
  return factors;
}

double WorkFit::sum(const WorkSize& size) const {
  return size.kernels * call + size.flops * flop + size.bytes * byte + size.dots * dot;
}

double WorkFit::seconds(const WorkSize& size) const {
  const double all = sum(size);
  return all * ratio.at(all);
}

WorkFit fit_work(const std::vector<WorkSample>& samples) {
  WorkFit fit;
  fit.samples = static_cast<int>(samples.size());
  if (samples.empty()) return fit;
  std::vector<std::vector<double>> rows;
  std::vector<double> wanted;
  for (const WorkSample& s : samples) {
    rows.push_back({s.size.kernels, s.size.flops, s.size.bytes, s.size.dots});
    wanted.push_back(s.seconds);
  }
  const std::vector<double> factors = fit_robustly(rows, wanted);
  fit.call = factors[0];
  fit.flop = factors[1];
  fit.byte = factors[2];
  fit.dot = factors[3];
  if (samples.size() >= 4) fit.ratio = ratios(samples, fit);
  for (const WorkSample& s : samples)
    fit.error += std::abs(fit.seconds(s.size) / s.seconds - 1) / fit.samples;
  return fit;
}

Json WorkFit::to_json() const {
  return {{"call", call},
          {"flop", flop},
          {"byte", byte},
          {"dot", dot},
          {"ratio", ratio.to_json()},
          {"samples", samples},
          {"error", error}};
}

WorkFit WorkFit::from_json(const Json& json) {
  WorkFit fit;
  fit.call = json.at("call").get<double>();
  fit.flop = json.at("flop").get<double>();
  fit.byte = json.at("byte").get<double>();
  fit.dot = json.at("dot").get<double>();
  for (const double each : {fit.call, fit.flop, fit.byte, fit.dot}) {
    if (!(each >= 0) || !std::isfinite(each)) throw std::invalid_argument("a rate is negative");
  }
  fit.ratio = LogCurve::from_json(json.at("ratio"));
  const auto samples = whole_number(json.at("samples"));
  if (!samples || *samples < 0 || *samples > std::numeric_limits<int>::max())
    throw std::invalid_argument("samples");
  fit.samples = static_cast<int>(*samples);
  fit.error = json.at("error").get<double>();
  return fit;
}

}  // namespace mw
