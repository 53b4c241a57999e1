// The table of redistributions, and what a Megatron-style mix costs by it.
#include <catch2/catch.hpp>

#include <map>

#include "plan/derive.h"
#include "support/setup.h"

using namespace mw;
using namespace mw::test;

namespace {

std::string text(const std::vector<Move>& list, const Mesh& mesh) {
  std::string all;
  for (const Move& m : list) {
    all += (all.empty() ? "" : ", ") + std::string(name_of(m.kind)) + "@" + mesh.name_of(m.atoms);
  }
  return all;
}

// Collectives of a segment by kind and axis.
std::map<std::string, int> count(const Program& program, const std::string& segment) {
  std::map<std::string, int> counts;
  for (const Instruction& i : program.segments[program.segment(segment)].code) {
    if (i.code != Code::start) continue;
    const std::string what = i.bucket >= 0 ? "reduce" : name_of(i.move.kind);
    ++counts[what + "@" + program.mesh.name_of(i.move.atoms)];
  }
  return counts;
}

}  // namespace

TEST_CASE("The table of redistributions") {
  const Mesh mesh({{"a", 2}, {"b", 2}});
  const Placement R = Placement::replicate(), P = Placement::partial();
  const Placement X = Placement::shard("x"), Y = Placement::shard("y");
  auto from = [&](const Layout& f, const Layout& t) { return text(moves(f, t, mesh), mesh); };
  CHECK(from({R, R}, {R, R}).empty());
  CHECK(from({P, R}, {R, R}) == "all-reduce@a");
  CHECK(from({P, R}, {X, R}) == "reduce-scatter@a");
  CHECK(from({X, R}, {R, R}) == "all-gather@a");
  CHECK(from({X, R}, {Y, R}) == "all-to-all@a");
  CHECK(from({R, R}, {X, R}) == "slice@a");
  CHECK(from({R, R}, {P, R}) == "keep@a");
  // Alike on adjacent atoms: one collective over both.
  CHECK(from({P, P}, {R, R}) == "all-reduce@a*b");
  CHECK(from({X, X}, {R, R}) == "all-gather@a*b");
  // The inner atom gathers first, the outer slices first.
  CHECK(from({X, Y}, {R, R}) == "all-gather@b, all-gather@a");
  CHECK(from({R, X}, {X, R}) == "all-gather@b, slice@a");
  CHECK(from({X, R}, {P, R}) == "all-gather@a, keep@a");
  // An atom inside that cuts the same dim lets go of it first, and cuts again after.
  CHECK(from({X, X}, {R, X}) == "all-gather@a*b, slice@b");
  CHECK(from({R, X}, {X, X}) == "all-gather@b, slice@a, slice@b");
  CHECK(from({X, Y}, {Y, Y}) == "all-gather@b, all-to-all@a, slice@b");
  // A slice that can come first makes the reduction after it smaller.
  CHECK(from({R, P}, {X, X}) == "slice@a, reduce-scatter@b");
  CHECK(from({P, P}, {X, X}) == "reduce-scatter@a*b");
}

TEST_CASE("tp costs Megatron's collectives: two all-reduces a layer each way") {
  Setup setup;
  setup.plan = {tp(2)};
  const Program program = experiment(setup).plan->programs.front();
  const int layers = 2;
  // Beside the layers: the embedding's sum, the logits' max and the loss' sums forward; the head's
  // input gradient backward.
  CHECK(count(program, "forward") == std::map<std::string, int>{{"all-reduce@tp", 2 * layers + 3}});
  CHECK(count(program, "backward") ==
        std::map<std::string, int>{{"all-reduce@tp", 2 * layers + 1}});
}

TEST_CASE("dp costs nothing but the gradients' reduction") {
  Setup setup;
  setup.plan = {dp(4, 1 << 30, true)};
  const Program program = experiment(setup).plan->programs.front();
  CHECK(count(program, "forward").empty());
  CHECK(count(program, "backward").empty());
  CHECK(count(program, "backward.last") == std::map<std::string, int>{{"reduce@dp", 1}});
  REQUIRE(program.buckets.size() == 1);
  CHECK(program.buckets[0].parameters.size() == program.parameters.size());
}

TEST_CASE("Buckets respect their size and follow the order of backward") {
  Setup setup;
  setup.plan = {dp(2, 20'000, true)};
  const Program program = experiment(setup).plan->programs.front();
  REQUIRE(program.buckets.size() > 2);
  std::vector<bool> seen(program.parameters.size(), false);
  const Coordinates first(program.mesh.atoms().size(), 0);
  for (const Bucket& bucket : program.buckets) {
    std::int64_t bytes = 0;
    for (int p : bucket.parameters) {
      CHECK_FALSE(seen[p]);
      seen[p] = true;
      bytes += program.local_bytes(program.slots[program.parameters[p].gradient_slot], first);
    }
    CHECK((bytes <= 20'000 || bucket.parameters.size() == 1));
  }
  CHECK(std::count(seen.begin(), seen.end(), true) == static_cast<int>(seen.size()));
  // The head's gradient is ready first, the embedding's last.
  const auto name = [&](int p) { return program.name_of_parameter(p); };
  CHECK(name(program.buckets.front().parameters.front()) == "head.weight");
  CHECK(name(program.buckets.back().parameters.back()) == "embedding.weight");
}

TEST_CASE("Keys that tp cannot cut stay whole, and so do their weights") {
  Setup setup;
  setup.options["kv_heads"] = 2;
  setup.plan = {tp(4)};
  const Experiment e = experiment(setup);
  for (const ProgramParameter& p : e.plan->programs.front().parameters) {
    const std::string& name = e.plan->graph->value(p.value).name;
    if (name.find("attention.k") != std::string::npos) CHECK(p.stored[0].is_replicate());
    if (name.find("attention.q") != std::string::npos)
      CHECK(p.stored[0] == Placement::shard("heads"));
  }
  CHECK(verify(e).equal);
}

namespace {

// An op for placements alone, which nobody runs.
class Placed final : public OpType {
 public:
  std::string kind() const override { return "placed"; }
  OpTraits traits(const Op& op) const override {
    OpTraits traits;
    traits.backward_reads_input.assign(op.inputs.size(), false);
    traits.backward_reads_output.assign(op.output_dims.size(), false);
    return traits;
  }
  void forward(const Op&, OpCall&) const override {}
  Cost cost(const Op&, Piece, const LocalDims&, int) const override { return {}; }
};

}  // namespace

TEST_CASE("What is added to a sum that an op carries on counts once") {
  Graph graph;
  graph.set_dim("batch", 4);
  graph.set_dim("ffn", 8);
  graph.set_dim("hidden", 8);
  const int x = graph.add_parameter("x", {"batch", "ffn"}, {}, {});
  const int bias = graph.add_parameter("bias", {"hidden"}, {}, {});
  Op contracts;
  contracts.type = std::make_shared<Placed>();
  contracts.name = "contracts";
  contracts.inputs = {{x, {"batch", "ffn"}}};
  const int sum = graph.add(contracts, {{"", {"batch", "hidden"}}})[0];
  Op carries = contracts;
  carries.name = "carries";
  carries.inputs = {{sum, {"batch", "hidden"}}, {bias, {"hidden"}}};
  carries.inputs[0].linear = true;
  carries.inputs[1].additive = true;
  const int out = graph.add(carries, {{"", {"batch", "hidden"}}})[0];
  const Mesh mesh({{"tp", 2}});
  Rule rule;
  rule.dim = "ffn";
  rule.axis = "tp";
  Problems problems;
  const Derived derived = derive(graph, mesh, {rule}, {}, problems);
  CHECK(problems.empty());
  CHECK(derived.layout[sum][0].is_partial());
  CHECK(derived.layout[out][0].is_partial());
  const View& view = derived.views[derived.view_of[1][1]];
  CHECK(view.need[0].is_partial());
  CHECK(view.gradient[0].is_replicate());
  CHECK(text(*view.forward, mesh) == "keep@tp");
}

TEST_CASE("Slots are released: nothing is left of a microbatch but what is persistent") {
  Setup setup;
  setup.plan = {dp(2), tp(2)};
  setup.microbatch = 3;
  const Program program = experiment(setup).plan->programs.front();
  for (const char* backward : {"backward", "backward.last"}) {
    std::vector<int> made(program.slots.size(), 0), gone(program.slots.size(), 0);
    for (const std::string& segment : {std::string("forward"), std::string(backward)}) {
      for (const Instruction& i : program.segments[program.segment(segment)].code) {
        for (const auto* list : {&i.outputs, &i.saved, &i.grad_inputs}) {
          for (int slot : *list)
            if (slot >= 0 && !program.slots[slot].persistent) made[slot] = 1;
        }
        for (int slot : i.release) ++gone[slot];
      }
    }
    CHECK(made == gone);
  }
}
