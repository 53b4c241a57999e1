// Parameters stored otherwise than they are used: gathered before use, gradients reduce-scattered.
// What ZeRO-3 will stand on, also where a strategy already cuts the dim, and with a split backward.
#include <catch2/catch.hpp>

#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

// No plugin stores otherwise than it computes: `dims` are cut by the axis,
// parameters stored along `dim`.
StrategyChoice stored(const std::string& axis, int ways, const Dims& dims, Dim dim) {
  return does(axis, {{axis, ways, {}}}, [=](Draft& draft) {
    for (Dim each : dims) draft.shard(each, axis);
    draft.store(dim, axis, {});
  });
}

}  // namespace

TEST_CASE("Parameters stored in parts give the same gradients") {
  const Dim dim = GENERATE(as<Dim>{}, "hidden", "vocab", "heads");
  const bool split = GENERATE(false, true), is_gpt = GENERATE(false, true);
  const bool tp_inner = GENERATE(false, true);
  Setup setup;
  if (is_gpt) setup.make_gpt();
  setup.options["layers"] = 1;
  setup.microbatch = 3;
  setup.plan = {stored("dp", 2, {"batch"}, dim)};
  setup.plan.insert(tp_inner ? setup.plan.end() : setup.plan.begin(), tp(2));
  if (split) setup.plan.insert(setup.plan.begin(), delayed_wgrads());
  DYNAMIC_SECTION(dim.name() << " split " << split << " gpt " << is_gpt << " tp inner "
                             << tp_inner) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Parameters stored in parts on the axis that cuts the compute") {
  Setup setup;
  setup.make_gpt();
  setup.options["layers"] = 1;
  setup.plan = {stored("tp", 2, {"heads", "kv_heads", "ffn", "vocab"}, "hidden")};
  must_equal_one_rank(setup);
}

TEST_CASE("Storage rules that cannot be are refused") {
  Setup setup;
  setup.plan = {stored("zero", 2, {"batch"}, "seq")};
  CHECK(thrown([&] { experiment(setup); }) == "storage.matches-nothing plan");
  setup.plan = {stored("zero", 12, {"batch"}, "kv_heads")};
  CHECK(thrown([&] { experiment(setup); }).starts_with("storage.ways plan.ways"));
}

TEST_CASE("Ulysses beside tp: heads cut twice, sequences between") {
  const bool cp_outer = GENERATE(false, true);
  Setup setup;
  setup.plan = {sp(2, "ulysses")};
  setup.plan.insert(cp_outer ? setup.plan.end() : setup.plan.begin(), tp(2));
  must_equal_one_rank(setup);
}
