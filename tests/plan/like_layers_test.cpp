// Layers that are alike share what follows from their kind. A plan equals the one that is made of
// the same model without any two ops alike, and its work does not grow with the layers.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>

#include "draw/listing.h"
#include "meshwright/builder.h"
#include "plan/derive.h"
#include "predict/clusters.h"
#include "predict/prediction.h"
#include "predict/setups.h"
#include "support/rebuilt_graph.h"

using namespace mw;
using namespace mw::test;

namespace {

// How often ops were asked what they are and what they cost.
struct Questions {
  int traits = 0, costs = 0;
  friend bool operator==(const Questions&, const Questions&) = default;
};

// An op type that does what another one does.
class Wrapped final : public OpType {
 public:
  Wrapped(std::shared_ptr<const OpType> type, std::shared_ptr<Questions> asked)
      : type_(std::move(type)), asked_(std::move(asked)) {}
  std::string kind() const override { return type_->kind(); }
  OpClass op_class() const override { return type_->op_class(); }
  OpTraits traits(const Op& op) const override {
    ++asked_->traits;
    return type_->traits(op);
  }
  void forward(const Op& op, OpCall& call) const override { type_->forward(op, call); }
  void backward(const Op& op, OpCall& call) const override { type_->backward(op, call); }
  void dgrad(const Op& op, OpCall& call) const override { type_->dgrad(op, call); }
  void wgrad(const Op& op, OpCall& call) const override { type_->wgrad(op, call); }
  Cost cost(const Op& op, Piece piece, const LocalDims& dims, int element) const override {
    ++asked_->costs;
    return type_->cost(op, piece, dims, element);
  }

 private:
  std::shared_ptr<const OpType> type_;
  std::shared_ptr<Questions> asked_;
};

// A model whose ops have wrapped types: each its own, so that none is like another, or one for all
// that had the same.
class Rewritten final : public Model {
 public:
  Rewritten(std::shared_ptr<const Model> model, bool apart)
      : asked(std::make_shared<Questions>()), model_(std::move(model)), apart_(apart) {
    set_name(model_->name());
  }
  std::int64_t vocab() const override { return model_->vocab(); }
  Json made_of() const override { return model_->made_of(); }
  Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    return rebuilt(model_->build(batch, sequence, tokens),
                   [this](const std::shared_ptr<const OpType>& type) { return wrapped(type); });
  }

  const std::shared_ptr<Questions> asked;

 private:
  std::shared_ptr<const OpType> wrapped(const std::shared_ptr<const OpType>& type) const {
    if (apart_) return std::make_shared<Wrapped>(type, asked);
    std::shared_ptr<const OpType>& known = known_[type];
    if (!known) known = std::make_shared<Wrapped>(type, asked);
    return known;
  }

  const std::shared_ptr<const Model> model_;
  const bool apart_;
  mutable std::map<std::shared_ptr<const OpType>, std::shared_ptr<const OpType>> known_;
};

// Every other layer's queries see a window alone, and the last layer has another width.
class Alternating final : public Model {
 public:
  Alternating() { set_name("alternating"); }
  std::int64_t vocab() const override { return 50; }
  Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    Builder b("alternating", batch, sequence, tokens);
    b.graph.layers = 7;
    b.decoder_dims(50, 48, 12, 4, 40);
    b.dim("narrow", 24, false, "ffn");
    int x = b.embed();
    for (b.layer = 0; b.layer < b.graph.layers; ++b.layer) {
      int h = b.rms_norm(b.name("norm"), x);
      const int q = b.linear_to(b.name("q"), h, {"heads", "head_dim"});
      const int k = b.linear_to(b.name("k"), h, {"kv_heads", "head_dim"});
      const int v = b.linear_to(b.name("v"), h, {"kv_heads", "head_dim"});
      h = b.attention(b.name("attention"), q, k, v, {b.layer % 2 == 0 ? 4 : 0});
      x = b.add(b.name("add"), x, b.linear_to(b.name("o"), h, {"hidden"}));
      const Dim width = b.layer == 6 ? Dim("narrow") : Dim("ffn");
      h = b.gelu(b.name("gelu"), b.linear_to(b.name("up"), x, {width}));
      x = b.add(b.name("mlp"), x, b.linear_to(b.name("down"), h, {"hidden"}));
    }
    b.head_and_loss(x);
    return std::move(b.graph);
  }
};

std::shared_ptr<const Plan> planned(const Setup& setup, std::shared_ptr<const Model> model) {
  PlanRequest request = experiment(setup).plan->request;
  if (model) request.model = std::move(model);
  Problems problems;
  auto plan = make_plan(request, problems);
  problems.throw_if_any();
  return plan;
}

// Equal, but for numbers of `digits` significant digits alike; 0: of all.
bool equal(const Json& a, const Json& b, int digits) {
  if (digits > 0 && a.is_number_float() && b.is_number_float())
    return a.get<double>() ==
           Approx(b.get<double>()).epsilon(std::pow(10.0, -digits)).margin(1e-15);
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (!a.is_structured()) return a == b;
  return std::equal(a.begin(), a.end(), b.begin(),
                    [&](const Json& x, const Json& y) { return equal(x, y, digits); });
}

// `digits`: a ring that is like another is played once, and its seconds are added up apart.
void same_without_sharing(const Setup& setup, const std::shared_ptr<const Model>& model = nullptr,
                          int digits = 0) {
  const auto shared = planned(setup, model);
  INFO(shared->mix());
  const auto apart =
      planned(setup, std::make_shared<Rewritten>(shared->request.model, /*apart=*/true));
  CHECK(shared->hash() == apart->hash());
  REQUIRE(shared->stages() == apart->stages());
  for (int s = 0; s < shared->stages(); ++s)
    CHECK(listing(shared->programs[s]) == listing(apart->programs[s]));
  const ClusterMachine machine = round_machine();
  CHECK(equal(predict(*shared, machine).to_json(), predict(*apart, machine).to_json(), digits));
}

Setup setup_of(std::vector<StrategyChoice> plan, std::int64_t layers = 7) {
  Setup setup;
  setup.options["layers"] = layers;
  setup.plan = std::move(plan);
  setup.microbatch = 1;
  return setup;
}

StrategyChoice in_odd_layers() {
  return does("odd", {{"odd", 2}}, [](Draft& draft) {
    draft.shard_where("ffn", "odd", [](const Op& op) { return op.layer % 2 == 1; });
    draft.shard_where("hidden", "odd", [](const Op& op) { return op.layer == 3; });
  });
}

}  // namespace

TEST_CASE("A plan is the same where no op is known to be like another") {
  SECTION("layers alike") {
    same_without_sharing(setup_of({}));
    same_without_sharing(setup_of({dp(2), tp(2), sp()}));
    same_without_sharing(setup_of({zero(2, 3), tp(2)}));
    same_without_sharing(setup_of({sp(4, "ring"), dp(2)}), nullptr, 12);
    same_without_sharing(setup_of({sp(3, "ring")}), nullptr, 12);  // whose shards differ in size
    same_without_sharing(setup_of({sp(2, "ulysses"), tp(2)}));
  }
  SECTION("stages cut at odd places") {
    same_without_sharing(setup_of({pp(3, "1f1b", {1, 4, 2}), zero(2, 1), tp(2), sp()}));
    same_without_sharing(setup_of({pp(2, "interleaved", {2, 1, 3, 1}), zero(2, 2)}));
    same_without_sharing(setup_of({pp(2, "zb-h1", {3, 4}), dp(2)}));
  }
  SECTION("tied embeddings") {
    Setup setup = setup_of({pp(3, "1f1b", {2, 2, 3}), dp(2)});
    setup.make_gpt();
    same_without_sharing(setup);
  }
  SECTION("experts after dense layers") {
    Setup setup = setup_of({zero(2, 1), ep(2), tp(2)});
    setup.make_moe();
    setup.options["dense_layers"] = 3;
    same_without_sharing(setup);
    setup.plan = {pp(2, "1f1b", {2, 5}), dp(2), ep(2)};
    setup.options["balance"] = "bias";
    same_without_sharing(setup);
  }
  SECTION("windows that alternate, a layer of another width") {
    for (const auto& plan : {std::vector<StrategyChoice>{tp(2), dp(2)},
                             {pp(2, "1f1b", {3, 4}), zero(2, 2)},
                             {sp(2, "allgather")}})
      same_without_sharing(setup_of(plan), std::make_shared<Alternating>());
  }
  SECTION("rules of single layers") {
    same_without_sharing(setup_of({in_odd_layers(), dp(2)}));
    same_without_sharing(setup_of({pp(2, "1f1b", {3, 4}), in_odd_layers(), tp(2)}));
  }
  SECTION("recompute of every other layer") {
    Setup setup = setup_of({dp(2), tp(2)});
    setup.recompute.kind = RecomputePolicy::Kind::full;
    setup.recompute.every = 2;
    same_without_sharing(setup);
  }
}

TEST_CASE("What ops are asked does not grow with the layers") {
  const auto asked = [](std::vector<StrategyChoice> (*plan)(int layers), int layers,
                        const char* kind = "llama") {
    Setup setup = setup_of(plan(layers), layers);
    if (kind == std::string("moe")) {
      setup.make_moe();
      setup.options["dense_layers"] = 2;
    }
    const auto model =
        std::make_shared<Rewritten>(experiment(setup).plan->request.model, /*apart=*/false);
    const auto made = planned(setup, model);
    const ClusterMachine machine = round_machine();
    predict(*made, machine);
    return *model->asked;
  };
  const auto flat = [](int) { return std::vector<StrategyChoice>{zero(2, 3), tp(2), sp()}; };
  CHECK(asked(flat, 4) == asked(flat, 24));
  CHECK(asked(flat, 4, "moe") == asked(flat, 24, "moe"));
  const auto stages = [](int layers) {
    return std::vector<StrategyChoice>{pp(2, "1f1b", {layers / 2, layers / 2}), dp(2)};
  };
  CHECK(asked(stages, 4) == asked(stages, 24));
  // Stages parted by what their layers cost.
  const auto parted = [](int) {
    return std::vector<StrategyChoice>{
        strategy("pp", {{"ways", 2}, {"schedule", "1f1b"}, {"layout", "auto"}}), dp(2)};
  };
  CHECK(asked(parted, 4) == asked(parted, 24));
}

TEST_CASE("As many ops are placed, whatever the layers") {
  const auto placed = [](int layers, bool odd) {
    Setup setup = setup_of({}, layers);
    const auto model = experiment(setup).plan->request.model;
    const Graph graph = model->build(2, 8, 16);
    const Mesh mesh({{"dp", 2}, {"tp", 2}});
    std::vector<Rule> rules{{"dp", "batch", "dp", {}}, {"tp", "ffn", "tp", {}}};
    if (odd) rules[1].where = [](const Op& op) { return op.layer % 2 == 1; };
    Problems problems;
    const Derived derived = derive(graph, mesh, rules, {}, problems);
    CHECK(problems.empty());
    return derived.placed;
  };
  CHECK(placed(4, false) == placed(40, false));
  CHECK(placed(4, true) == placed(40, true));
  CHECK(placed(4, true) > placed(4, false));
}

TEST_CASE("A graph of another batch shares the ops of the first") {
  for (const char* kind : {"llama", "gpt", "moe"}) {
    Setup setup;
    if (kind == std::string("gpt")) setup.make_gpt();
    if (kind == std::string("moe")) setup.make_moe();
    const auto model = experiment(setup).plan->request.model;
    REQUIRE(model->batch_is_a_size());
    const Graph one = model->build(3, 8, 96), other = model->build(12, 8, 96);
    const Graph resized = other.with_size("batch", 3);
    CHECK(&resized.ops() == &other.ops());
    CHECK(other.size("batch") == 12);
    REQUIRE(one.values().size() == resized.values().size());
    for (const auto& [dim, info] : one.dims()) CHECK(resized.size(dim) == info.size);
    for (std::size_t v = 0; v < one.values().size(); ++v) {
      const Value &a = one.values()[v], &b = resized.values()[v];
      CHECK((a.name == b.name && a.dims == b.dims && a.producer == b.producer));
    }
    REQUIRE(one.ops().size() == resized.ops().size());
    for (std::size_t o = 0; o < one.ops().size(); ++o) {
      const Op &a = one.ops()[o], &b = resized.ops()[o];
      CHECK((a.name == b.name && a.kind() == b.kind() && a.outputs == b.outputs));
    }
    Graph longer = resized;
    longer.add_data("more", {"batch"}, Scalar::index);
    CHECK(longer.values().size() == resized.values().size() + 1);
    CHECK(other.values().size() == resized.values().size());
  }
}
