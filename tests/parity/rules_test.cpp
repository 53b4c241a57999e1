// Rules for some ops alone: a value of data is needed whole here and cut there, and each op gets
// its own rows of it. And ranks that are stages of a pipeline, which no rule may cut over.
#include <catch2/catch.hpp>

#include <functional>

#include "support/problems.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

using Where = std::function<bool(const Op&)>;

StrategyChoice rule(const std::string& axis, Role role, Dim dim, const Where& where) {
  return does(axis, {{axis, 2, role}}, [=](Draft& draft) { draft.shard_in(dim, axis, where); });
}

struct Case {
  std::string name;
  Dim dim;
  Role role;
  Where where;
};

Where of_layers(int low, int high) {
  return [=](const Op& op) { return op.layer >= low && op.layer < high; };
}
Where named(const std::string& part) {
  return [=](const Op& op) { return op.name.find(part) != std::string::npos; };
}

std::vector<Case> cases() {
  return {
      {"batch but in the embedding", "batch", Role::data, of_layers(0, 99)},
      {"batch in the first layer", "batch", Role::data, of_layers(0, 1)},
      {"batch in the layers", "batch", Role::data, of_layers(0, 2)},
      {"batch behind the layers", "batch", Role::data, of_layers(2, 99)},
      {"batch in the embedding", "batch", Role::data, of_layers(-1, 0)},
      {"batch in the embedding and a layer", "batch", Role::data, of_layers(-1, 1)},
      {"batch in the loss", "batch", Role::data, named("loss")},
      {"batch in the loss' sums", "batch", Role::data, named("loss.stats")},
      {"batch in the MLPs", "batch", Role::data, named("mlp")},
      {"seq in the embedding", "seq", Role::sequence, of_layers(-1, 0)},
      {"seq behind the layers", "seq", Role::sequence, of_layers(2, 99)},
      {"seq in the layers", "seq", Role::sequence, of_layers(0, 2)},
  };
}

}  // namespace

TEST_CASE("A rule for some ops alone gives one rank's gradients") {
  const std::vector<Case> all = cases();
  const auto index = GENERATE_COPY(range(std::size_t{0}, all.size()));
  const Case& one = all[index];
  const int beside = GENERATE(0, 1, 2, 3);
  Setup setup;
  setup.microbatch = beside == 0 ? 0 : 2;
  setup.plan = {rule("some", one.role, one.dim, one.where)};
  if (beside == 1) setup.plan.push_back(dp(2));
  if (beside == 2) setup.plan.insert(setup.plan.begin(), sp(2, "ring"));
  if (beside == 3) setup.plan.push_back(pp(2, "1f1b", {1, 1}));
  DYNAMIC_SECTION(one.name << " beside " << beside) {
    must_equal_one_rank(setup);
  }
}

TEST_CASE("Ranks that are stages cannot be cut over") {
  const Dim dim = GENERATE(as<Dim>{}, "vocab", "batch", "seq", "ffn", "heads");
  const bool store = GENERATE(false, true), first = GENERATE(false, true);
  if (store && (dim == Dim("batch") || dim == Dim("seq"))) return;
  const StrategyChoice own = does("own", {}, [=](Draft& draft) {
    store ? draft.store(dim, "pp", {}) : draft.shard(dim, "pp");
  });
  Setup setup;
  setup.plan = {pp(2, "1f1b", {1, 1})};
  setup.plan.insert(first ? setup.plan.begin() : setup.plan.end(), own);
  CHECK(thrown([&] { experiment(setup); }) == "rule.stages plan");
}
