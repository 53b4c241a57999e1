// Fits seconds of instructions to their sizes, by relative error and without negative rates.
#include "predict/work_fit.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/statistics.h"

namespace mw {
namespace {

// Solves a symmetric system by Gauss's elimination; false if it has no single solution.
bool solve(std::vector<std::vector<double>> a, std::vector<double>& b) {
  const std::size_t n = b.size();
  for (std::size_t k = 0; k < n; ++k) {
    std::size_t pivot = k;
    for (std::size_t r = k + 1; r < n; ++r) {
      if (std::abs(a[r][k]) > std::abs(a[pivot][k])) pivot = r;
    }
    if (std::abs(a[pivot][k]) < 1e-12) return false;
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    for (std::size_t r = k + 1; r < n; ++r) {
      const double share = a[r][k] / a[k][k];
      for (std::size_t c = k; c < n; ++c) a[r][c] -= share * a[k][c];
      b[r] -= share * b[k];
    }
  }
  for (std::size_t k = n; k-- > 0;) {
    for (std::size_t c = k + 1; c < n; ++c) b[k] -= a[k][c] * b[c];
    b[k] /= a[k][k];
  }
  return true;
}

// Ratios along the fitted seconds, a point for each doubling: the median of the nearest samples, so
// that a single one bends nothing.
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
  const std::size_t n = rows.empty() ? 0 : rows.front().size();
  std::vector<double> best(n, 0);
  double least = 0;  // with no factor
  for (std::size_t r = 0; r < rows.size(); ++r) least += std::pow(wanted[r] / of[r], 2);
  // Every set of factors that are not zero: there are a handful of factors.
  for (unsigned set = 1; set < (1U << n); ++set) {
    std::vector<std::size_t> taken;
    std::vector<double> scale;
    for (std::size_t k = 0; k < n; ++k) {
      if ((set >> k & 1U) == 0) continue;
      double square = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) square += std::pow(rows[r][k] / of[r], 2);
      if (square <= 0) break;
      taken.push_back(k);
      scale.push_back(1 / std::sqrt(square));
    }
    if (taken.size() != static_cast<std::size_t>(__builtin_popcount(set)) ||
        taken.size() > rows.size())
      continue;
    std::vector<std::vector<double>> a(taken.size(), std::vector<double>(taken.size(), 0));
    std::vector<double> x(taken.size(), 0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t i = 0; i < taken.size(); ++i) {
        const double left = rows[r][taken[i]] / of[r] * scale[i];
        x[i] += left * wanted[r] / of[r];
        for (std::size_t j = 0; j < taken.size(); ++j)
          a[i][j] += left * rows[r][taken[j]] / of[r] * scale[j];
      }
    }
    if (!solve(a, x) || std::any_of(x.begin(), x.end(), [](double v) { return v < 0; })) continue;
    std::vector<double> factors(n, 0);
    for (std::size_t i = 0; i < taken.size(); ++i) factors[taken[i]] = x[i] * scale[i];
    double error = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      double sum = 0;
      for (std::size_t k = 0; k < n; ++k) sum += rows[r][k] * factors[k];
      error += std::pow((sum - wanted[r]) / of[r], 2);
    }
    if (error < least * (1 - 1e-9)) {
      least = error;
      best = factors;
    }
  }
  return best;
}

std::vector<double> fit_robustly(const std::vector<std::vector<double>>& rows,
                                 const std::vector<double>& wanted, std::vector<double> of,
                                 double usual) {
  if (of.empty()) of = wanted;
  std::vector<double> factors = fit_factors(rows, wanted, of);
  for (int round = 0; round < 10; ++round) {
    std::vector<double> weighed = of;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      double sum = 0;
      for (std::size_t k = 0; k < rows[r].size(); ++k) sum += rows[r][k] * factors[k];
      const double error = std::abs(sum - wanted[r]) / of[r];
      if (error > usual) weighed[r] *= std::sqrt(error / usual);
    }
    factors = fit_factors(rows, wanted, weighed);
  }
  return factors;
}

double WorkFit::sum(const WorkSize& size) const {
  return call + size.flops * flop + size.bytes * byte + size.dots * dot;
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
    rows.push_back({1, s.size.flops, s.size.bytes, s.size.dots});
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
  fit.samples = json.at("samples").get<int>();
  fit.error = json.at("error").get<double>();
  return fit;
}

}  // namespace mw
