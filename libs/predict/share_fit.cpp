// Fits shares by least squares whose weights are one over the errors, along straight lines between
// logarithms that are drawn anew in each round.
#include "predict/share_fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace mw {
namespace {

constexpr int fit_rounds = 12;
constexpr double farthest = 0.4;  // of a logarithm in one round: no line is straight further
constexpr std::size_t most_left_out = 50;
constexpr double least_error = 1e-3;  // below which errors do not weigh more

struct Line {
  at::Tensor slopes;  // rows by shares
  at::Tensor at;      // logarithms of predicted over measured
};

at::Tensor errors_of(const std::vector<double>& predicted, const std::vector<double>& measured) {
  std::vector<double> logs;
  for (std::size_t r = 0; r < measured.size(); ++r)
    logs.push_back(std::log(std::max(predicted[r], 1e-30) / measured[r]));
  return at::tensor(logs, at::kDouble);
}

class Fit {
 public:
  Fit(const std::vector<Share>& shares, const std::vector<double>& measured,
      const PredictRows& predict, double error, double change)
      : shares_(shares), measured_(measured), predict_(predict), error_(error), change_(change) {
    for (const Share& share : shares) {
      low_.push_back(std::log(share.low / share.value));
      high_.push_back(std::log(share.high / share.value));
    }
  }

  FittedShares run() {
    std::vector<double> x(shares_.size(), 0);
    Line line = line_at(x);
    double best = cost(line.at, x);
    for (int round = 0; round < fit_rounds; ++round) {
      const std::vector<double> wanted = solved(line, x, farthest, /*without=*/-1);
      bool better = false;
      for (double part = 1; part > 0.05 && !better; part /= 2) {
        std::vector<double> tried = x;
        for (std::size_t k = 0; k < x.size(); ++k) tried[k] += part * (wanted[k] - x[k]);
        const double own = cost(errors_of(predict_(values_of(tried)), measured_), tried);
        better = own < best * (1 - 1e-6);
        if (!better) continue;
        best = own;
        x = tried;
      }
      if (!better) break;
      line = line_at(x);
    }
    return result(line, x);
  }

 private:
  std::vector<double> values_of(const std::vector<double>& x) const {
    std::vector<double> values;
    for (std::size_t k = 0; k < x.size(); ++k) values.push_back(shares_[k].value * std::exp(x[k]));
    return values;
  }

  Line line_at(const std::vector<double>& x) const {
    Line line;
    line.at = errors_of(predict_(values_of(x)), measured_);
    line.slopes = at::zeros({std::ssize(measured_), std::ssize(shares_)}, at::kDouble);
    for (std::size_t k = 0; k < x.size(); ++k) {
      const double step = x[k] + 0.02 <= high_[k] ? 0.02 : -0.02;
      std::vector<double> moved = x;
      moved[k] += step;
      const at::Tensor there = errors_of(predict_(values_of(moved)), measured_);
      line.slopes.select(1, static_cast<std::int64_t>(k)).copy_((there - line.at) / step);
    }
    return line;
  }

  double cost(const at::Tensor& errors, const std::vector<double>& x) const {
    double sum = errors.abs().sum().item<double>() / error_;
    for (const double each : x) sum += 0.5 * each * each / (change_ * change_);
    return sum;
  }

  // The best along the line, no further than `reach` from `x`; `without`: a row that does not
  // count.
  std::vector<double> solved(const Line& line, const std::vector<double>& x, double reach,
                             std::int64_t without) const {
    const auto n = std::ssize(shares_);
    const at::Tensor from = at::tensor(x, at::kDouble);
    at::Tensor low = at::tensor(low_, at::kDouble), high = at::tensor(high_, at::kDouble);
    low = at::maximum(low, from - reach);
    high = at::minimum(high, from + reach);
    at::Tensor now = from.clone();
    for (int again = 0; again < 100; ++again) {
      const at::Tensor left = line.at + at::mv(line.slopes, now - from);
      at::Tensor weight = (left.abs().clamp_min(least_error) * error_).reciprocal();
      if (without >= 0) weight[without] = 0;
      const at::Tensor weighed = line.slopes * weight.unsqueeze(1);
      const at::Tensor normal =
          at::mm(line.slopes.t(), weighed) + at::eye(n, at::kDouble) / (change_ * change_);
      const at::Tensor pull = at::mv(weighed.t(), left) + now / (change_ * change_);
      const at::Tensor change = at::linalg_solve(normal, pull);
      now = at::minimum(at::maximum(now - 0.7 * change, low), high);
    }
    return {now.data_ptr<double>(), now.data_ptr<double>() + n};
  }

  FittedShares result(const Line& line, const std::vector<double>& x) const {
    FittedShares fitted;
    fitted.values = values_of(x);
    for (std::size_t k = 0; k < x.size(); ++k) {
      const at::Tensor own = line.slopes.select(1, static_cast<std::int64_t>(k));
      fitted.told.push_back(own.abs().max().item<double>() > 1e-3);
    }
    for (std::size_t r = 0; r < measured_.size(); ++r) {
      const auto row = static_cast<std::int64_t>(r);
      fitted.predicted.push_back(measured_[r] * std::exp(line.at[row].item<double>()));
      if (measured_.size() < 2 || measured_.size() > most_left_out) continue;
      const at::Tensor moved =
          at::tensor(solved(line, x, INFINITY, row), at::kDouble) - at::tensor(x, at::kDouble);
      const double there =
          line.at[row].item<double>() + at::dot(line.slopes[row], moved).item<double>();
      fitted.left_out.push_back(measured_[r] * std::exp(there));
    }
    return fitted;
  }

  const std::vector<Share>& shares_;
  const std::vector<double>& measured_;
  const PredictRows& predict_;
  const double error_, change_;
  std::vector<double> low_, high_;
};

}  // namespace

FittedShares fit_shares(const std::vector<Share>& shares, const std::vector<double>& measured,
                        const PredictRows& predict, double error, double change) {
  return Fit(shares, measured, predict, error, change).run();
}

}  // namespace mw
