// Models of a script's own, from what their blocks record: the graphs that they make.
#include <catch2/catch.hpp>
#include <functional>

#include "meshwright/block_op.h"
#include "meshwright/model.h"
#include "support/registered.h"

namespace mw::test {
namespace {

// What mw.model's block records: op n takes outputs of earlier ones, 0 is the block's input.
struct Tape {
  Json ops = Json::array();
  int append(const char* op, const std::vector<int>& inputs, const Json& options,
             const char* name = "") {
    Json list = Json::array();
    for (int input : inputs) list.push_back(Json::array({input, 1}));
    ops.push_back({{"op", op}, {"inputs", list}, {"options", options}, {"$at", "a.lua:7"}});
    if (*name != '\0') ops.back()["name"] = name;
    return static_cast<int>(ops.size());
  }
  Json returns(int op) const {
    return {{"ops", ops}, {"result", Json::array({op, 1})}, {"$at", "a.lua:5"}};
  }
};

const Json sizes{{"hidden", 16}, {"heads", 4}, {"kv_heads", 2}, {"ffn", 24}, {"vocab", 19}};

Json own(const Json& dims, const Json& block) {
  return {{"dims", dims}, {"layers", 2}, {"block", Json::array({block})}};
}

// mw.llama's layer, in the names that it has there.
Json llama_block() {
  Tape t;
  const int h = t.append("rms_norm", {0}, Json::object(), "attention_norm");
  const int a = t.append("attention", {h}, Json::object(), "attention");
  const int x = t.append("add", {0, a}, nullptr, "attention_add");
  const int n = t.append("rms_norm", {x}, Json::object(), "mlp_norm");
  const int m = t.append("mlp", {n}, Json::object(), "mlp");
  return t.returns(t.append("add", {x, m}, nullptr, "mlp_add"));
}

std::string refused(const Json& given) {
  try {
    test::made<Model>("model", "model", given);
  } catch (const Error& error) {
    const Problem& first = error.problems().front();
    return first.code + " " + first.key + " " + first.place;
  }
  return "nothing";
}

std::string refused(const std::function<int(Tape&)>& block, const Json& dims = sizes) {
  Tape t;
  const int result = block(t);
  return refused(own(dims, t.returns(result)));
}

}  // namespace

TEST_CASE("A llama written as a block is mw.llama's graph, op for op") {
  Json llama = sizes;
  llama["layers"] = 2;
  const Graph theirs = made<Model>("model", "llama", llama)->build(2, 6, 24);
  const Graph ours = made<Model>("model", "model", own(sizes, llama_block()))->build(2, 6, 24);
  REQUIRE(ours.ops().size() == theirs.ops().size());
  for (std::size_t i = 0; i < ours.ops().size(); ++i) {
    const Op &a = ours.ops()[i], &b = theirs.ops()[i];
    INFO(b.name);
    CHECK(a.name == b.name);
    CHECK(a.kind() == b.kind());
    CHECK(a.layer == b.layer);
    CHECK(a.outputs == b.outputs);
    CHECK((a.output_dims == b.output_dims));
    CHECK((a.whole == b.whole));
    CHECK((a.follows == b.follows));
    REQUIRE(a.inputs.size() == b.inputs.size());
    for (std::size_t n = 0; n < a.inputs.size(); ++n) {
      CHECK(a.inputs[n].value == b.inputs[n].value);
      CHECK((a.inputs[n].dims == b.inputs[n].dims));
    }
  }
  REQUIRE(ours.values().size() == theirs.values().size());
  for (std::size_t i = 0; i < ours.values().size(); ++i) {
    CHECK(ours.value(static_cast<int>(i)).name == theirs.value(static_cast<int>(i)).name);
    CHECK(ours.value(static_cast<int>(i)).init.std == theirs.value(static_cast<int>(i)).init.std);
  }
  CHECK(ours.loss == theirs.loss);
  // A parameter lies under its own name in a checkpoint, unless the block says another.
  const int q = ours.find("layers.1.attention.q.weight");
  CHECK(ours.value(q).hf.name == "layers.1.attention.q.weight");
}

TEST_CASE("A dim that is like another says so, and has its own size") {
  Json dims = sizes;
  dims["narrow"] = {{"$value", 8}, {"like", "ffn"}};
  dims["one"] = {{"$value", 1}, {"like", "kv_heads"}};
  Tape t;
  const int h = t.append("rms_norm", {0}, nullptr);
  const int a = t.append("attention", {h}, {{"kv_heads", "one"}, {"window", 4}});
  const int m = t.append("mlp", {h}, "narrow");
  const int w = t.append("mlp", {h}, "ffn");
  const int x = t.append("add", {t.append("add", {0, a}, nullptr), m}, nullptr);
  const int k = t.append("linear", {h}, {{"to", {"kv_heads", "head_dim"}}});
  const int o = t.append("linear", {k}, {{"to", "hidden"}});
  const Json block = t.returns(t.append("add", {t.append("add", {x, w}, nullptr), o}, nullptr));
  const Graph graph = made<Model>("model", "model", own(dims, block))->build(1, 8, 8);
  CHECK((graph.dims().at("narrow").like == Dim("ffn")));
  CHECK_FALSE(graph.dims().at("narrow").even);
  CHECK(graph.dims().at("one").even);
  CHECK(graph.size("one") == 1);
  const int key = graph.find("layers.0.attention.k.weight");
  CHECK((graph.value(key).dims == Dims{"one", "head_dim", "hidden"}));
  // Unnamed ops of one kind are numbered.
  CHECK(graph.find("layers.1.mlp_2.up.weight") >= 0);
  CHECK(graph.find("layers.1.linear_2.weight") >= 0);
}

TEST_CASE("A model of one's own refuses what cannot be, at the script's line") {
  const auto plain = [](Tape& t) { return t.append("attention", {0}, nullptr); };
  Json no_ffn = sizes;
  no_ffn.erase("ffn");
  CHECK(refused(plain, no_ffn) == "nothing");
  CHECK(refused(plain) == "model.unused model.dims.ffn ");
  CHECK(refused([](Tape& t) { return t.append("linear", {0}, "ffn"); }) ==
        "model.dims model.block a.lua:5");
  CHECK(refused([](Tape& t) {
          return t.append("add", {0, t.append("linear", {0}, "ffn")}, nullptr);
        }) == "model.dims model.block a.lua:7");
  CHECK(refused([](Tape& t) { return t.append("rmsnorm", {0}, nullptr); }) ==
        "option.choice model.block a.lua:7");
  CHECK(refused([](Tape& t) {
          return t.append("linear", {0}, {{"to", "ffn"}, {"too", 1}});
        }) == "option.unknown model.block a.lua:7");
  CHECK(refused([&](Tape& t) {
          t.append("mlp", {0}, nullptr);
          return plain(t);
        }) == "model.unused model.block a.lua:7");
  CHECK(refused([&](Tape& t) {
          const int h = t.append("mlp", {0}, nullptr, "h");
          return t.append("add", {h, t.append("attention", {0}, nullptr, "h")}, nullptr);
        }) == "model.twice model.block a.lua:7");
  Json nothing = {{"ops", Json::array()}, {"got", "nothing"}, {"$at", "a.lua:5"}};
  CHECK(refused(own(no_ffn, nothing)) == "function.result model.block a.lua:5");
  Json dims = no_ffn;
  dims["seq"] = 8;
  CHECK(refused(plain, dims) == "model.twice model.dims.seq ");
  dims = no_ffn;
  dims["one"] = {{"$value", 1}, {"like", "kv_head"}};
  CHECK(refused(plain, dims) == "model.dims model.dims.one ");
  dims = no_ffn;
  dims["vocab"] = "many";
  CHECK(refused(plain, dims) == "option.type model.dims.vocab ");
}

}  // namespace mw::test
