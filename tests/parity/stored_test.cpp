// Parameters stored otherwise than they are used: gathered before use, gradients reduce-scattered.
// What ZeRO-3 will stand on, also where a strategy already cuts the dim, and with a split backward.
#include <catch2/catch.hpp>

#include "../support/problems.h"
#include "equal.h"

using namespace mw;
using namespace mw::test;

namespace {

// Data parallelism with parameters stored in parts along `dim`; perhaps with a split backward.
class Stored : public Rules {
 public:
  Stored(std::string axis, int ways, Dims dims, Dim dim, bool split)
      : Rules(axis, ways, std::move(dims)), on_(axis), dim_(dim), split_(split) {}
  void edit(Draft& draft) const override {
    Rules::edit(draft);
    draft.store(dim_, on_, {});
    if (!split_) return;
    draft.pipeline({"", {}, {}, delayed_wgrads, {}, 0});
  }

 private:
  std::string on_;
  Dim dim_;
  bool split_;
};

}  // namespace

TEST_CASE("Parameters stored in parts give the same gradients") {
  const Dim dim = GENERATE(as<Dim>{}, "hidden", "vocab", "heads");
  const bool split = GENERATE(false, true), is_gpt = GENERATE(false, true);
  const bool tp_inner = GENERATE(false, true);
  Setup setup;
  if (is_gpt) {
    setup.model = "gpt";
    setup.options = {{"layers", 1}, {"hidden", 48}, {"heads", 12}, {"vocab", 50}, {"tied", true}};
  }
  setup.options["layers"] = 1;
  setup.microbatch = 3;
  setup.plan = {choice("zero", std::make_shared<Stored>("dp", 2, Dims{"batch"}, dim, split))};
  setup.plan.insert(tp_inner ? setup.plan.end() : setup.plan.begin(), tp(2));
  DYNAMIC_SECTION(dim.name() << " split " << split << " gpt " << is_gpt << " tp inner "
                             << tp_inner) {
    check_equal(setup);
  }
}

TEST_CASE("Parameters stored in parts on the axis that cuts the compute") {
  Setup setup;
  setup.model = "gpt";
  setup.options = {{"layers", 1}, {"hidden", 48}, {"heads", 12}, {"vocab", 50}, {"tied", true}};
  setup.plan = {
      choice("tp", std::make_shared<Stored>("tp", 2, Dims{"heads", "kv_heads", "ffn", "vocab"},
                                            "hidden", false))};
  check_equal(setup);
}

TEST_CASE("Storage rules that cannot be are refused") {
  Setup setup;
  setup.plan = {choice("zero", std::make_shared<Stored>("dp", 2, Dims{"batch"}, "seq", false))};
  CHECK(thrown([&] { experiment(setup); }) == "storage.matches-nothing plan");
  setup.plan = {
      choice("zero", std::make_shared<Stored>("dp", 12, Dims{"batch"}, "kv_heads", false))};
  CHECK(thrown([&] { experiment(setup); }).starts_with("storage.ways plan.ways"));
}

TEST_CASE("Ulysses beside tp: heads cut twice, sequences between") {
  class Ulysses : public Strategy {
   public:
    std::vector<AxisRequest> axes() const override { return {{"cp", 2, {}}}; }
    void edit(Draft& draft) const override {
      draft.shard("seq", "cp");
      const auto attention = [](const Op& op) { return op.kind() == "attention"; };
      draft.shard_in("heads", "cp", attention);
      draft.shard_in("kv_heads", "cp", attention);
    }
  };
  const bool cp_outer = GENERATE(false, true);
  Setup setup;
  setup.plan = {choice("cp", std::make_shared<Ulysses>())};
  setup.plan.insert(cp_outer ? setup.plan.end() : setup.plan.begin(), tp(2));
  check_equal(setup);
}
