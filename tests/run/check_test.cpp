// The run-time check: silent on what is right, and on each kind of fault one error with its place.
#include <catch2/catch.hpp>

#include <limits>

#include "check/run_check.h"
#include "meshwright/passes.h"
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

TEST_CASE("A right mix passes, and its replicas are counted") {
  const int mix = GENERATE(0, 1, 2, 3, 4, 5);
  const Precision precision = GENERATE(Precision::fp64, Precision::fp32, Precision::bf16);
  Setup setup;
  setup.options["layers"] = 4;
  setup.microbatch = 2;
  setup.precision = precision;
  setup.plan = mix == 0   ? std::vector<StrategyChoice>{}
               : mix == 1 ? std::vector{dp(2), tp(2)}
               : mix == 2 ? std::vector{zero(2, 1), tp(2)}
               : mix == 3 ? std::vector{zero(4, 3, 2)}
               : mix == 4 ? std::vector{pp(2, "zb-h1", {2, 2}), zero(2, 2), tp(2)}
                          : std::vector{pp(2, "1f1b", {2, 2}), dp(2)};
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
