// fp16: losses beside fp32's with a scaled loss; what overflows is left out everywhere; a scale
// changes nothing else.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"
#include "two_bytes.h"

using namespace mw;
using namespace mw::test;

namespace {

using Mixes = std::vector<Mix>;

void overflows_then_trains(int mix, bool muon) {
  const Mixes mixes = {
      {"one rank", {}},
      {"dp x tp", {dp(2), tp(2)}},
      {"zero 3", {zero(2, 3)}},
      {"pp x zero", {pp(2, "1f1b", {1, 1}), zero(2, 1)}},
      {"PowerSGD, whose errors begin anew",
       {strategy("dp", {{"ways", 2}, {"bucket", 1 << 14}, {"hook", "powersgd"}})}}};
  Setup setup = small_in(mixes[mix].plan, Precision::fp16);
  setup.fp32_gradients = mix == 4;  // PowerSGD needs it
  setup.loss_scale = {{"init", std::ldexp(1, 40)}, {"backoff", 1.0 / 16}, {"interval", 3}};
  if (muon) {
    setup.optimizer = "muon";
    setup.optimizer_options = {{"lr", 0.02}};
  }
  const std::vector<StepReport> reports = steps_of(setup, 20, 3e-3);
  INFO(mixes[mix].name);
  REQUIRE(reports[0].update_left_out);
  CHECK(reports[0].loss_scale == std::ldexp(1, 40));
  CHECK(reports[1].loss_scale == std::ldexp(1, 36));
  // Nothing was updated: the next step has other tokens, but a first step's parameters.
  const auto good = std::find_if(reports.begin(), reports.end(),
                                 [](const StepReport& r) { return !r.update_left_out; });
  REQUIRE(good != reports.end());
  Setup unscaled = setup;
  unscaled.loss_scale = 1.0;
  const std::vector<StepReport> first = steps_of(unscaled, good - reports.begin() + 1, 0.0);
  CHECK(good->loss == Approx(first.back().loss).epsilon(1e-3));
  // The other run's errors are those of more steps.
  if (mix != 4) CHECK(good->grad_norm == Approx(first.back().grad_norm).epsilon(0.05));
  bool grew = false;  // after three good steps
  for (std::size_t i = 1; i < reports.size(); ++i)
    grew = grew || reports[i].loss_scale == 2 * reports[i - 1].loss_scale;
  CHECK(grew);
  CHECK(reports.back().loss < good->loss - 0.1);
}

}  // namespace

TEST_CASE("Losses in fp16 stay beside those in fp32, in every mix") {
  const std::int64_t steps = 24;
  static const std::vector<StepReport> full = steps_of(small_in({}, Precision::fp32), steps, 3e-3);
  REQUIRE(full.back().loss < full.front().loss - 0.5);
  const int mix = GENERATE(range(0, 7));
  const Mixes mixes = {
      {"one rank", {}},
      {"dp x tp", {dp(2), tp(2)}},
      {"zero 1", {zero(2, 1)}},
      {"zero 2", {zero(4, 2)}},
      {"zero 3 x tp", {zero(2, 3), tp(2)}},
      {"pp", {pp(2, "zb-h1", {1, 1})}},
      {"pp x zero x tp", {pp(2, "1f1b", {1, 1}), zero(2, 2), tp(2)}},
  };
  Setup setup = small_in(mixes[mix].plan, Precision::fp16);
  setup.loss_scale = "dynamic";
  setup.fp32_gradients = mix % 2 == 1;
  setup.fp32_sums = mix > 3;
  const std::vector<StepReport> narrow = steps_of(setup, steps, 3e-3);
  double gap = 0, norms = 0;
  for (std::int64_t i = 0; i < steps; ++i) {
    gap = std::max(gap, std::abs(narrow[i].loss / full[i].loss - 1));
    norms = std::max(norms, std::abs(narrow[i].grad_norm / full[i].grad_norm - 1));
    CHECK_FALSE(narrow[i].update_left_out);
    CHECK(narrow[i].loss_scale == 65536);
  }
  INFO(mixes[mix].name << ": largest gap " << gap << ", of norms " << norms);
  CHECK(gap > 1e-7);  // it is fp16 that ran
  CHECK(gap < 0.002);
  CHECK(norms < 0.05);
}

TEST_CASE("What a scale makes overflow is left out on all ranks, then it trains") {
  const int mix = GENERATE(range(0, 5));
  overflows_then_trains(mix, mix % 2 == 1);
}

TEST_CASE("... with the other optimizer", "[matrix]") {
  const int mix = GENERATE(range(0, 5));
  overflows_then_trains(mix, mix % 2 == 0);
}

TEST_CASE("Steps that are left out touch no parameter, state or count of steps") {
  class Overflows final
      : public LossScale {  // twice, as no norm of gradients times 2^1023 is finite
   public:
    double first() const override { return std::ldexp(1, 1023); }
    double next(std::int64_t step, double, bool, std::int64_t) const override {
      return step < 2 ? first() : 1024;
    }
  };
  class Later final : public TokenSource {  // its third step has the first step's tokens
   public:
    Later(std::shared_ptr<const TokenSource> from, std::int64_t by)
        : from_(std::move(from)), by_(by) {}
    std::int64_t vocab() const override { return from_->vocab(); }
    std::int64_t tokens() const override { return from_->tokens(); }
    void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
                std::int64_t* labels) const override {
      from_->sample(std::max<std::int64_t>(0, k - by_), sequence, inputs, labels);
    }

   private:
    std::shared_ptr<const TokenSource> from_;
    std::int64_t by_;
  };
  const bool muon = GENERATE(false, true);
  const int stage = GENERATE(1, 3);
  Setup setup = small_in({zero(2, stage)}, Precision::fp64);
  if (muon) {
    setup.optimizer = "muon";
    setup.optimizer_options = {{"lr", 0.02}, {"clip", 0.5}};
  }
  Experiment plain = experiment(setup), scaled = plain;
  scaled.loss_scale = std::make_shared<Overflows>();
  scaled.data = std::make_shared<Later>(plain.data, 2 * setup.batch);
  const auto parameters = [](const Experiment& e, std::int64_t steps, int& left_out) {
    std::vector<at::Tensor> made;
    with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
      for (std::int64_t step = 0; step < steps; ++step) {
        const StepOutcome outcome = executor.step(step, 1e-2);
        if (executor.rank() == 0 && outcome.update_left_out) ++left_out;
      }
      for (std::size_t b = 0; b < executor.program().buckets.size(); ++b) {
        const at::Tensor whole = executor.whole(static_cast<int>(b), false);
        if (executor.rank() == 0) made.push_back(whole.clone());
      }
    });
    return made;
  };
  int without = 0, with = 0;
  const std::vector<at::Tensor> want = parameters(plain, 2, without),
                                got = parameters(scaled, 4, with);
  CHECK(without == 0);
  CHECK(with == 2);
  REQUIRE(got.size() == want.size());
  for (std::size_t b = 0; b < got.size(); ++b) {
    CHECK((got[b] - want[b]).norm().item<double>() <= 1e-12 * want[b].norm().item<double>());
  }
}

TEST_CASE("In fp64 a scale of 1024 changes gradients by nothing but itself") {
  const int mix = GENERATE(range(0, 3));
  const Mixes mixes = {{"one rank", {}}, {"dp x tp", {dp(2), tp(2)}}, {"zero 2", {zero(2, 2)}}};
  const auto gradients = [&](const Json& scale) {
    Setup setup = small_in(mixes[mix].plan, Precision::fp64);
    setup.loss_scale = scale;
    const Experiment e = experiment(setup);
    std::vector<at::Tensor> made;
    class Gradients : public Watcher {
     public:
      explicit Gradients(std::vector<at::Tensor>& into) : into_(into) {}
      void computed(const Instruction&, int, int, const at::Tensor&) override {}
      void gradients(RankRun& executor) override {
        for (std::size_t b = 0; b < executor.program().buckets.size(); ++b) {
          const at::Tensor whole = executor.whole(static_cast<int>(b), true);
          if (executor.rank() == 0) into_.push_back(whole.clone());
        }
      }

     private:
      std::vector<at::Tensor>& into_;
    };
    with_ranks(e, *e.plan, nullptr, [&](RankRun& executor, Ledger&) {
      Gradients watcher(made);
      executor.watch(&watcher);
      const StepOutcome outcome = executor.step(0, 1e-3);
      if (std::abs(outcome.grad_norm) > 100) throw std::logic_error("the norm is scaled");
    });
    return made;
  };
  const std::vector<at::Tensor> plain = gradients(Json()), scaled = gradients(1024.0);
  REQUIRE(plain.size() == scaled.size());
  for (std::size_t b = 0; b < plain.size(); ++b) {
    const double norm = plain[b].norm().item<double>();
    CHECK((scaled[b] / 1024 - plain[b]).norm().item<double>() <= 1e-12 * norm);
  }
}

TEST_CASE("A mix with a scaled loss equals one rank with it") {
  Setup setup = small_in({zero(2, 2), tp(2)}, Precision::fp64);
  setup.loss_scale = GENERATE(Json("dynamic"), Json(1024.0));
  must_equal_one_rank(setup);
}

TEST_CASE("Among threads, which sum in fp32 anyway, fp32 reductions change no bit of a plain sum") {
  const Precision precision = GENERATE(Precision::bf16, Precision::fp16);
  const int mix = GENERATE(range(0, 3));
  const Mixes mixes = {{"dp", {dp(2)}}, {"tp", {tp(2)}}, {"zero 1", {zero(2, 1)}}};
  Setup setup = small_in(mixes[mix].plan, precision);
  setup.loss_scale = 1024.0;
  const std::vector<StepReport> narrow = steps_of(setup, 3, 3e-3);
  setup.fp32_sums = true;
  const std::vector<StepReport> wide = steps_of(setup, 3, 3e-3);
  for (std::size_t i = 0; i < narrow.size(); ++i) {
    CHECK(narrow[i].loss == wide[i].loss);
    CHECK(narrow[i].grad_norm == wide[i].grad_norm);
  }
}
