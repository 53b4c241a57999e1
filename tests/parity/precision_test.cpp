// bf16: losses beside fp32's, masters that keep what bf16 cannot,
// the same numbers in every mix's parts.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"
#include "two_bytes.h"

using namespace mw;
using namespace mw::test;

namespace {

Setup half(std::vector<StrategyChoice> plan, Precision precision = Precision::bf16) {
  return small_in(std::move(plan), precision);
}

std::vector<double> losses(const Setup& setup, std::int64_t steps, double lr) {
  std::vector<double> list;
  for (const StepReport& report : steps_of(setup, steps, lr)) list.push_back(report.loss);
  return list;
}

double largest_gap(const std::vector<double>& a, const std::vector<double>& b) {
  double gap = 0;
  for (std::size_t i = 0; i < a.size(); ++i) gap = std::max(gap, std::abs(a[i] - b[i]) / b[i]);
  return gap;
}

std::vector<Mix> mixes_in_bf16() {
  return {
      {"one rank", {}},
      {"dp", {dp(2)}},
      {"tp", {tp(2)}},
      {"zero 1", {zero(2, 1)}},
      {"zero 2", {zero(4, 2)}},
      {"zero 3", {zero(2, 3)}},
      {"pp", {pp(2, "zb-h1", {1, 1})}},
      {"pp x zero x tp", {pp(2, "1f1b", {1, 1}), zero(2, 3), tp(2)}},
      {"zero, offloaded", {zero(2, 3, 1, 1, false, 1 << 12, "parameters")}},
  };
}

void beside_fp32(const Mix& mix, bool wide) {
  const std::int64_t steps = 24;
  static const std::vector<double> full = losses(half({}, Precision::fp32), steps, 3e-3);
  REQUIRE(full.back() < full.front() - 0.5);
  Setup setup = half(mix.plan);
  setup.fp32_gradients = wide;
  const std::vector<double> narrow = losses(setup, steps, 3e-3);
  const double gap = largest_gap(narrow, full);
  INFO(mix.name << (wide ? ", fp32 gradients" : "") << ": largest gap " << gap);
  CHECK(gap > 1e-6);  // it is bf16 that ran
  CHECK(gap < 0.01);
}

}  // namespace

TEST_CASE("Losses in bf16 stay beside those in fp32, in every mix") {
  const int mix = GENERATE(range(0, 9));
  beside_fp32(mixes_in_bf16()[mix], mix % 2 == 1);
}

TEST_CASE("... with gradients in the other width", "[matrix]") {
  const int mix = GENERATE(range(0, 9));
  beside_fp32(mixes_in_bf16()[mix], mix % 2 == 0);
}

TEST_CASE("Updates too small for bf16 add up in the masters") {
  // AdamW's first steps are of lr's size; one is far below half a bf16 step of most weights.
  const std::int64_t steps = 60;
  const double lr = 2e-5;
  const std::vector<double> full = losses(half({}, Precision::fp32), steps, lr);
  const std::vector<double> narrow = losses(half({zero(2, 1)}), steps, lr);
  const double gained = full.front() - full.back();
  REQUIRE(gained > 0.005);
  CHECK(narrow.front() - narrow.back() == Approx(gained).epsilon(0.25));
}

TEST_CASE("Where a step's update in host memory is made changes no bit") {
  const int stage = GENERATE(1, 2, 3);
  const std::string offload = stage == 3 ? "parameters" : "optimizer";
  Setup setup = half({zero_on_host(2, stage, offload, false)});
  const std::vector<double> at_the_end = losses(setup, 6, 1e-3);
  setup.plan = {zero_on_host(2, stage, offload, true)};
  CHECK(losses(setup, 6, 1e-3) == at_the_end);  // beside the forward
  setup.may_leave_out = false;
  setup.optimizer_options.erase("clip");
  const std::vector<double> beside_backward = losses(setup, 6, 1e-3);
  setup.plan = {zero_on_host(2, stage, offload, false)};
  setup.may_leave_out = true;
  CHECK(losses(setup, 6, 1e-3) == beside_backward);
  CHECK(beside_backward != at_the_end);  // which clips
}

TEST_CASE("What is kept in bf16 and in fp32") {
  const Experiment e = experiment(half({zero(2, 3)}));
  with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
    for (const Bucket& bucket : executor.program().buckets) {
      const FlatSlots& flat = bucket.flat;
      if (executor.kept(flat.stored).scalar_type() != at::kBFloat16)
        throw std::logic_error("parameters");
      if (executor.kept(flat.reduced).scalar_type() != at::kBFloat16)
        throw std::logic_error("gradients");
      if (executor.kept(flat.master).scalar_type() != at::kFloat) throw std::logic_error("master");
      for (int state : flat.states) {
        if (executor.kept(state).scalar_type() != at::kFloat) throw std::logic_error("state");
      }
      // The masters begin at more than bf16 has, and the parameters at their rounding.
      if (!executor.kept(flat.master).to(at::kBFloat16).equal(executor.kept(flat.stored)))
        throw std::logic_error("fill");
    }
  });
}
