// Reads the description of a software stack, key by key.
#include "predict/stack.h"

#include <fmt/format.h>

#include "base/json_text.h"
#include "meshwright/options.h"

namespace mw {
namespace {

const Options& stack_options() {
  static const Options options = [] {
    Options o;
    const auto bytes = [&o](const char* name, const char* doc) {
      o.number(name, doc).range(0.0, 1e4).fallback(0.0);
    };
    const auto share = [&o](const char* name, const char* doc, double fallback) {
      o.number(name, doc).range(0.0, 1.0).fallback(fallback);
    };
    o.text("kind", "that it is one").fallback("stack");
    o.text("name", "what it is called");
    o.integer("flash", "generation of attention's kernel; 0: products and softmax apart")
        .range(0, 3);
    bytes("scores_forward", "of a score, where attention is in parts");
    bytes("scores_backward", "...");
    o.integer("fused_heads", "heads times sequences are a multiple of it, or softmax is in parts")
        .range(0, 64)
        .fallback(0);
    bytes("unfused_forward", "of a score, more, where softmax is in parts");
    bytes("unfused_backward", "...");
    o.table("ops", "of each kind of op that streams: { forward = { passes, kernels, host }, … }")
        .fallback(Json::object());
    o.boolean("joined_projections", "linears of one input are one product").fallback(false);
    o.boolean("whole_recompute", "a layer that is computed again is so to its end").fallback(false);
    bytes("gradient_sum", "of a parameter and microbatch, to add its gradient up");
    bytes("loss_forward", "of a logit; 0: the program's");
    bytes("loss_backward", "...");
    bytes("embedding_backward", "of an element of the embedding's gradient");
    bytes("optimizer_bytes", "of a parameter in a step; 0: the program's");
    o.integer("product_bits", "of linears' operands: 8; 0: the program's").range(0, 8).fallback(0);
    bytes("product_casts", "of each element that is narrowed for products");
    o.number("grouped", "of a product's rate, products of many experts at once")
        .range(0.01, 1.0)
        .fallback(1.0);
    o.number("exchanged", "of an exchange's bytes, by narrower numbers than the program's")
        .range(0.01, 2.0)
        .fallback(1.0);
    o.integer("exchange_nodes", "nodes that a token's copies go to; 0: any")
        .range(0, 65536)
        .fallback(0);
    o.boolean("by_node", "a token goes once to each node, which hands it on").fallback(false);
    share("hidden_exchange", "share of exchanges that another microbatch's compute hides", 0);
    o.number("exchange_slowed", "of each second of a hidden one, what compute loses")
        .range(0.0, 1.0)
        .optional();
    share("hidden_model", "share of collectives of model axes that products hide", 0);
    o.boolean("update_gathers_hidden", "parameters are gathered beside the next forward")
        .fallback(false);
    o.number("backward_gathers", "how often sharded parameters are gathered for backward")
        .range(1.0, 3.0)
        .fallback(1.0);
    share("data_share", "of a node's NICs that a collective of data axes gets", 1);
    o.number("data_slowed", "of each second of theirs, what compute loses beside them")
        .range(0.0, 1.0)
        .optional();
    o.boolean("hierarchical", "gathers over nodes take the best of ring and hierarchy")
        .fallback(true);
    o.boolean("scattered_sends", "ranks of a stage send a part each, and gather it")
        .fallback(false);
    o.boolean("stages_wait", "a stage spends the time of each send and receive on it")
        .fallback(false);
    o.number("host", "of the device's launch").range(0.0, 100.0).fallback(1.0);
    o.number("bucket_host", "ops of the host for each transfer of a bucket")
        .range(0.0, 1e3)
        .fallback(1.0);
    return o;
  }();
  return options;
}

bool read_way(const Json& given, StreamedOp::Way& way) {
  if (given.is_null()) return true;
  if (!given.is_array() || given.empty() || given.size() > 3) return false;
  double* const parts[] = {&way.passes, &way.kernels, &way.host};
  for (std::size_t k = 0; k < given.size(); ++k) {
    if (!given[k].is_number() || given[k].get<double>() < 0) return false;
    *parts[k] = given[k].get<double>();
  }
  return true;
}

}  // namespace

Stack read_stack(const Json& table, const std::string& path, Problems& problems) {
  Problems found;
  const Values v = stack_options().read(table, path, found);
  problems.add(found);
  Stack stack;
  if (!found.empty()) return stack;
  stack.name = v.text("name");
  stack.flash = v.int32("flash");
  stack.scores_forward = v.number("scores_forward");
  stack.scores_backward = v.number("scores_backward");
  stack.fused_heads = v.int32("fused_heads");
  stack.unfused_forward = v.number("unfused_forward");
  stack.unfused_backward = v.number("unfused_backward");
  stack.joined_projections = v.flag("joined_projections");
  stack.whole_recompute = v.flag("whole_recompute");
  stack.gradient_sum = v.number("gradient_sum");
  stack.loss_forward = v.number("loss_forward");
  stack.loss_backward = v.number("loss_backward");
  stack.embedding_backward = v.number("embedding_backward");
  stack.optimizer_bytes = v.number("optimizer_bytes");
  stack.product_bits = v.int32("product_bits");
  stack.product_casts = v.number("product_casts");
  stack.grouped = v.number("grouped");
  stack.exchanged = v.number("exchanged");
  stack.exchange_nodes = v.int32("exchange_nodes");
  stack.by_node = v.flag("by_node");
  stack.hidden_exchange = v.number("hidden_exchange");
  if (v.has("exchange_slowed")) stack.exchange_slowed = v.number("exchange_slowed");
  if (stack.product_bits != 0 && stack.product_bits != 8) {
    const std::string key = path + ".product_bits";
    problems.add(Stage::options, "cluster.value", key,
                 fmt::format("{}: got {}", key, stack.product_bits),
                 "8 for products in fp8, 0 for the program's own numbers");
  }
  stack.hidden_model = v.number("hidden_model");
  stack.update_gathers_hidden = v.flag("update_gathers_hidden");
  stack.backward_gathers = v.number("backward_gathers");
  stack.data_share = v.number("data_share");
  if (v.has("data_slowed")) stack.data_slowed = v.number("data_slowed");
  stack.hierarchical = v.flag("hierarchical");
  stack.scattered_sends = v.flag("scattered_sends");
  stack.stages_wait = v.flag("stages_wait");
  stack.host = v.number("host");
  stack.bucket_host = v.number("bucket_host");
  for (const auto& [kind, given] : v.at("ops").items()) {
    if (kind.starts_with('$')) continue;
    StreamedOp op;
    bool good = given.is_object();
    if (good) {
      for (const auto& [key, way] : given.items()) {
        const bool forward = key == "forward";
        good =
            good && (key.starts_with('$') || ((forward || key == "backward") &&
                                              read_way(way, forward ? op.forward : op.backward)));
      }
    }
    if (!good) {
      const std::string key = path + ".ops." + kind;
      problems.add(Stage::options, "cluster.value", key,
                   fmt::format("{}: got {}", key, describe(given)),
                   "{ forward = { passes, kernels, host }, backward = { … } }, numbers from 0 on");
      continue;
    }
    stack.ops[kind] = op;
  }
  return stack;
}

}  // namespace mw
