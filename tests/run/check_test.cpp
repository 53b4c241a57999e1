// The run-time check: silent on what is right, and on each kind of fault one error with its place.
#include <catch2/catch.hpp>

#include <limits>

#include "meshwright/passes.h"
#include "observers/run_check.h"
#include "support/setup.h"
#include "support/train.h"

using namespace mw;
using namespace mw::test;

namespace {

CheckReport checked(const Setup& setup, std::int64_t steps = 2) {
  Experiment e = experiment(setup);
  e.check = true;
  e.steps = steps;
  return train(e, nullptr, nullptr).check;
}

// The run fails, and says all of this; what it says.
std::string fails(const Setup& setup, const std::vector<std::string>& parts, double lr = 1e-3) {
  Experiment e = experiment(setup);
  e.check = true;
  e.schedule = [lr](std::int64_t) { return lr; };
  std::string said;
  try {
    train(e, nullptr, nullptr);
  } catch (const Error& error) {
    said = error.problems().front().message;
  }
  for (const std::string& part : parts) CHECK_THAT(said, Catch::Contains(part));
  return said;
}

// Edits the derived program.
StrategyChoice fault(const std::function<void(Program&)>& edit) {
  return does("fault", {}, [=](Draft& draft) { draft.add_pass({"fault", edit}); });
}

// Changes one bit of what a rank keeps after a step: of the first parameter of its first bucket, or
// of the optimizer's first state of that. The steps which follow do not round it away.
class FlippedBit : public RunObserver {
 public:
  FlippedBit(int rank, std::int64_t step, bool state) : rank_(rank), step_(step), state_(state) {}
  void step(RankRun& rank, StepEnd& end) override {
    if (rank.rank() != rank_ || end.step != step_) return;
    const FlatSlots& flat = rank.program().buckets.front().flat;
    const at::Tensor& kept = rank.kept(state_ ? flat.states.front() : flat.stored);
    auto* byte = static_cast<unsigned char*>(kept.mutable_data_ptr());
    byte[2] ^= 0x40;
  }

 private:
  const int rank_;
  const std::int64_t step_;
  const bool state_;
};

// Mixes that keep replicas, but for the first, which is one rank.
std::vector<StrategyChoice> checked_plan(int mix) {
  return mix == 0   ? std::vector<StrategyChoice>{}
         : mix == 1 ? std::vector{dp(2), tp(2)}
         : mix == 2 ? std::vector{zero(2, 1), tp(2)}
         : mix == 3 ? std::vector{zero(4, 3, 2)}
         : mix == 4 ? std::vector{pp(2, "zb-h1", {2, 2}), zero(2, 2), tp(2)}
                    : std::vector{pp(2, "1f1b", {2, 2}), dp(2)};
}

struct Parted {
  std::string said;  // empty: nothing was found
  std::int64_t steps = 0;
};

// A run of ten steps in which a rank parts after the third, or its state after the fourth, so that
// no update has read it before a comparison that then comes. There is one every `every` steps.
Parted parted(const Setup& setup, std::int64_t every, bool state, int rank = 1) {
  Experiment e = experiment(setup);
  e.check_every = every;
  e.steps = 10;
  FlippedBit flips(rank, state ? 3 : 2, state);
  Parted came;
  try {
    train(
        e, nullptr, [&](const StepReport&) { ++came.steps; }, nullptr, &flips);
  } catch (const Error& error) {
    CHECK(error.problems().front().code == "check.replicas");
    came.said = error.problems().front().message;
  }
  return came;
}

}  // namespace

TEST_CASE("A sum of bits tells places, signs of zero and NaNs apart") {
  const at::Tensor x = at::arange(70000, at::kFloat), y = x.clone();
  CHECK(sum_of_bits(x) == sum_of_bits(y));
  y[69999] = 1;
  CHECK(sum_of_bits(x) != sum_of_bits(y));
  CHECK(sum_of_bits(x) != sum_of_bits(x.flip(0)));
  CHECK(sum_of_bits(at::zeros({3})) != sum_of_bits(at::zeros({3}).neg()));
  CHECK(sum_of_bits(at::zeros({3}, at::kBFloat16)) != sum_of_bits(at::ones({3}, at::kBFloat16)));
  CHECK(sum_of_bits(at::zeros({2})) != sum_of_bits(at::zeros({3})));
  for (const auto type :
       {at::kDouble, at::kLong, at::kFloat, at::kBFloat16, at::kHalf, at::kBool}) {
    const at::Tensor z = at::arange(5).to(type), before = z.clone();
    CHECK(sum_of_bits(z) == sum_of_bits(before));
    CHECK(z.equal(before));  // looking changes nothing
  }
}

TEST_CASE("A hash of bits tells places apart") {
  const at::Tensor x = at::arange(70000, at::kFloat), y = x.clone();
  CHECK(hash_of_bits(x) == hash_of_bits(y));
  y[69999] = 1;
  CHECK(hash_of_bits(x) != hash_of_bits(y));
  CHECK(hash_of_bits(at::zeros({3})) != hash_of_bits(at::zeros({3}).neg()));
  CHECK(hash_of_bits(at::zeros({2})) != hash_of_bits(at::zeros({3})));
  CHECK(hash_of_bits(x.view({2, 35000}).t()) == hash_of_bits(x.view({2, 35000}).t().contiguous()));
}

TEST_CASE("A check of replicas passes right mixes, after every so many steps and the last") {
  const int mix = GENERATE(0, 1, 2, 3, 4, 5, 6);
  Setup setup;
  setup.options["layers"] = 4;
  setup.microbatch = 2;
  setup.precision = GENERATE(Precision::fp32, Precision::bf16);
  setup.plan = checked_plan(mix);
  if (mix == 5) setup.make_gpt();
  if (mix == 6) setup.options["tied"] = true;
  Experiment e = experiment(setup);
  e.check_every = 2;
  e.steps = 5;
  std::map<std::int64_t, std::int64_t> calls;  // by step, under the phase `check`
  const CheckReport report = train(e, nullptr, [&](const StepReport& step) {
                               for (const auto& [key, use] : step.ranks.front().communication)
                                 if (key.phase == "check") calls[step.step] += use.calls;
                             }).check;
  CHECK(report.steps == 5);
  CHECK(report.compared == 3);  // after steps 1, 3 and 4
  CHECK(report.every == 2);
  CHECK(report.tensors > 0);
  CHECK((report.replicas > 0) == (mix > 0));
  CHECK(report.unused.empty());
  // One call each, booked with the step that follows.
  CHECK(calls == (mix == 0 ? std::map<std::int64_t, std::int64_t>()
                           : std::map<std::int64_t, std::int64_t>{{2, 1}, {4, 1}}));
}

TEST_CASE("A rank that parts is found at the next comparison, with its parameter and axis") {
  const bool state = GENERATE(false, true);
  Setup setup;
  setup.precision = Precision::fp32;
  setup.plan = {dp(2), tp(2)};
  const Parted soon = parted(setup, 4, state);
  INFO(soon.said);
  CHECK(soon.steps == 4);
  const std::string first = state ? "check: state " : "check: the parameter ";
  CHECK_THAT(soon.said, Catch::Contains(first) && Catch::Contains("(step 3)") &&
                            Catch::Contains("rank") && Catch::Contains("Replicate over "));
  const Parted late = parted(setup, 100, state);
  INFO(late.said);
  CHECK(late.steps == 10);
  CHECK_THAT(late.said, Catch::Contains("(step 9)"));
}

TEST_CASE("What one rank alone keeps may be anything; shards are compared with their replicas") {
  Setup setup;
  setup.precision = Precision::fp32;
  setup.plan = {zero(4, 3)};
  CHECK(parted(setup, 4, true).said.empty());
  setup.plan = {zero(4, 3, 2)};
  CHECK_THAT(parted(setup, 4, true).said,
             Catch::Contains("of the optimizer of ") && Catch::Contains("(step 3)"));
}

TEST_CASE("A right mix passes, and its replicas are counted") {
  const int mix = GENERATE(0, 1, 2, 3, 4, 5);
  const Precision precision = GENERATE(Precision::fp64, Precision::fp32, Precision::bf16);
  Setup setup;
  setup.options["layers"] = 4;
  setup.microbatch = 2;
  setup.precision = precision;
  setup.plan = checked_plan(mix);
  if (mix == 5) setup.make_gpt();
  const CheckReport report = checked(setup);
  CHECK(report.steps == 2);
  CHECK(report.tensors > 100);
  CHECK((report.replicas > 0) == (mix > 0));
  CHECK(report.unused.empty());
}

TEST_CASE("A sum over ranks that is missing is named with its op and axis") {
  Setup setup;
  setup.plan = {
      tp(2), fault([](Program& program) {
        for (Segment& segment : program.segments) {
          const auto start =
              std::find_if(segment.code.begin(), segment.code.end(), [](const Instruction& i) {
                return i.code == Code::start && i.move.kind == Move::Kind::all_reduce &&
                       i.label.starts_with("layers.1.mlp");
              });
          if (start == segment.code.end() || segment.kind != SegmentKind::forward) continue;
          segment.code.erase(std::find_if(start, segment.code.end(), [&](const Instruction& i) {
            return i.code == Code::wait && i.pending == start->pending;
          }));
          start->code = Code::copy;
        }
      })};
  fails(setup, {"layers.1.mlp", "Replicate over tp", "step 0, microbatch 0"});
}

TEST_CASE("Parameters that part are named after the step") {
  Setup setup;
  setup.plan = {dp(2), fault([](Program& program) {
                  program.buckets[0].reduce_atoms.clear();
                  for (Segment& segment : program.segments) {
                    std::erase_if(segment.code, [](const Instruction& i) { return i.bucket == 0; });
                  }
                })};
  fails(setup, {"the parameters of ", "Replicate over dp", "step 0"});
}

TEST_CASE("What is no longer finite is named with its op and step") {
  Setup setup;
  setup.precision = Precision::fp32;
  setup.plan = {dp(2)};
  const std::string said =
      fails(setup, {"check: the gradient that reaches layers.1.mlp.down", "step 1"}, 1e30);
  CHECK_THAT(said, Catch::Contains("NaN") || Catch::Contains("Inf"));
}

TEST_CASE("A tensor that does not lie as its placement says is refused with both shapes") {
  Setup setup;
  setup.plan = {tp(2), fault([](Program& program) {
                  for (Slot& slot : program.slots) {
                    if (slot.name != "layers.0.attention.q" || slot.persistent) continue;
                    for (Placement& p : slot.layout) p = Placement::replicate();
                  }
                })};
  fails(setup, {"layers.0.attention.q", "its placement"});
}

TEST_CASE("Parameters without a gradient are named") {
  Setup setup;
  setup.plan = {dp(2), fault([](Program& program) {
                  int p = 0;
                  while (program.name_of_parameter(p) != "layers.1.mlp.up.weight") ++p;
                  for (Segment& segment : program.segments) {
                    for (Instruction& i : segment.code) {
                      for (int& slot : i.grad_inputs) {
                        if (slot == program.parameters[p].gradient_slot) slot = -1;
                      }
                    }
                  }
                })};
  CHECK(checked(setup).unused == std::vector<std::string>{"layers.1.mlp.up.weight"});
}
