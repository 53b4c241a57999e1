// Reads the description of a software stack, key by key.
#include "predict/stack.h"

#include <fmt/format.h>

#include "meshwright/engine/text.h"
#include "predict/fields.h"

namespace mw {
namespace {

const Fields<Stack>& stack_fields() {
  static const Fields<Stack> fields = [] {
    Fields<Stack> f;
    using S = Stack;
    const auto bytes = [&f](const char* name, const char* doc, double S::*member) {
      f.add(name, doc, member).range(0.0, 1e4).fallback(0.0);
    };
    const auto share = [&f](const char* name, const char* doc, double S::*member) -> Options& {
      return f.add(name, doc, member).range(0.0, 1.0);
    };
    f.options().text("kind", "says that the table describes a stack").fallback("stack");
    f.add("name", "what it is called", &S::name);
    f.add("changed",
          "keys that are other than in the description of that name, as mw.stack and --set note "
          "them",
          &S::changed)
        .optional();
    f.options()
        .table(
            "runs",
            "what the software can run, a list for each kind: `{ schedules = { \"1f1b\" }, zero = "
            "{ stage = { 1 } }, tp = true, apart = { … } }`; left out: everything")
        .optional();
    f.options()
        .list("measured",
              "configurations with a published step under this stack, each as `{ parameters, "
              "devices, ways of layers, model, sequence and experts, table }`")
        .optional();
    f.add("fitted", "says that devices' shares were fitted to steps of this stack, among others",
          &S::fitted)
        .fallback(false);
    f.add("flash", "generation of attention's kernel; 0: products and softmax apart", &S::flash)
        .range(0, 3);
    bytes("scores_forward", "bytes of a score in forward, where attention is in parts",
          &S::scores_forward);
    bytes("scores_backward", "bytes of a score in backward, where attention is in parts",
          &S::scores_backward);
    f.add("fused_heads",
          "softmax is one kernel where heads times sequences are a multiple of this; 0: always",
          &S::fused_heads)
        .range(0, 64)
        .fallback(0);
    f.options()
        .table("ops",
               "kinds of ops that stream, each as { forward = { passes, kernels, host }, … }")
        .fallback(Json::object());
    f.add("joined_projections", "linears of one input are one product", &S::joined_projections)
        .fallback(false);
    f.add("whole_recompute", "a layer that is computed again is computed to its end",
          &S::whole_recompute)
        .fallback(false);
    bytes("gradient_sum", "bytes of a parameter and microbatch to add its gradient up",
          &S::gradient_sum);
    bytes("loss_forward", "bytes of a logit in the loss's forward; 0: the program's",
          &S::loss_forward);
    bytes("loss_backward", "bytes of a logit in the loss's backward; 0: the program's",
          &S::loss_backward);
    bytes("logit_memory", "bytes of a logit that the loss holds beside the program's",
          &S::logit_memory);
    bytes("second_gradients", "bytes of a parameter in which gradients are kept a second time",
          &S::second_gradients);
    f.add("reserve", "share of what the allocator reserves that it has not given out", &S::reserve)
        .range(0.0, 0.9)
        .fallback(0.0);
    bytes("optimizer_bytes", "bytes of a parameter in an optimizer step; 0: the program's",
          &S::optimizer_bytes);
    f.add("product_bits", "bits of linears' operands: 8; 0: the program's", &S::product_bits)
        .range(0, 8)
        .fallback(0);
    f.add("narrow_gathers", "linears' operands are narrowed before they are gathered",
          &S::narrow_gathers)
        .fallback(false);
    bytes("product_casts", "bytes of each element that is narrowed for products",
          &S::product_casts);
    f.add("products", "factor on the device's share of its peak that products reach", &S::products)
        .range(0.1, 2.0)
        .fallback(1.0);
    f.add("grouped", "share of a product's rate that products of many experts at once reach",
          &S::grouped)
        .range(0.01, 1.0)
        .fallback(1.0);
    f.add("exchanged",
          "factor on an exchange's bytes, where its numbers are narrower than the program's",
          &S::exchanged)
        .range(0.01, 2.0)
        .fallback(1.0);
    f.add("exchange_nodes", "nodes that a token's copies go to; 0: any", &S::exchange_nodes)
        .range(0, 65536)
        .fallback(0);
    f.add("by_node", "a token goes once to each node, which hands it on", &S::by_node)
        .fallback(false);
    f.add("scattered_exchanges", "ranks with the same tokens exchange a part each, and gather it",
          &S::scattered_exchanges)
        .fallback(false);
    f.formerly("hidden_exchange", "pairs of works, in schedules: pp { schedule = \"dualpipev\" }");
    f.add("exchange_slowed", "seconds that compute loses for each second of an exchange beside it",
          &S::exchange_slowed)
        .range(0.0, 1.0)
        .optional();
    f.add("sequence_forward",
          "factor on the bytes that attention sends forward over the sequence's axes",
          &S::sequence_forward)
        .range(0.01, 1024.0)
        .fallback(1.0);
    f.add("sequence_backward",
          "factor on the bytes that attention sends backward over the sequence's axes",
          &S::sequence_backward)
        .range(0.01, 1024.0)
        .fallback(1.0);
    f.add("sequence_beside",
          "what the sequence's axes send goes beside transfers of data axes, and not behind them",
          &S::sequence_beside)
        .fallback(false);
    share("hidden_model", "share of collectives of model axes that products hide", &S::hidden_model)
        .fallback(0.0);
    f.add("reduced_whole", "gradients of a sharded update are all-reduced, not reduce-scattered",
          &S::reduced_whole)
        .fallback(false);
    f.formerly("update_gathers_hidden", "zero { overlap_gather }, in plans");
    f.add("backward_gathers", "how often sharded parameters are gathered for backward",
          &S::backward_gathers)
        .range(1.0, 3.0)
        .fallback(1.0);
    share("data_share", "share of a node's NICs that a collective of data axes gets",
          &S::data_share)
        .fallback(1.0);
    f.add("data_slowed",
          "seconds that compute loses for each second of a collective of data axes beside it",
          &S::data_slowed)
        .range(0.0, 1.0)
        .optional();
    f.add("hierarchical", "gathers over nodes take the best of ring and hierarchy",
          &S::hierarchical)
        .fallback(true);
    f.add("scattered_sends", "ranks of a stage send a part each, and gather it",
          &S::scattered_sends)
        .fallback(false);
    f.add("whole_rows", "an op of several kernels has buffers for all its rows between them",
          &S::whole_rows)
        .fallback(false);
    f.add("stages_wait", "a stage spends the time of each send and receive on it", &S::stages_wait)
        .fallback(false);
    f.add("host", "how many times the device's `launch` the host takes for an op", &S::host)
        .range(0.0, 100.0)
        .fallback(1.0);
    f.add("microbatch_host", "ops of the host for each microbatch's data, masks and loss",
          &S::microbatch_host)
        .range(0.0, 1e4)
        .fallback(0.0);
    return f;
  }();
  return fields;
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

const Options& stack_keys() {
  return stack_fields().options();
}

Stack read_stack(const Json& table, const std::string& path, Problems& problems) {
  Stack stack;
  const auto v = stack_fields().read(table, path, problems, stack);
  if (!v) return stack;
  if (v->has("runs")) stack.runs = SoftwareRuns::read(v->at("runs"), path + ".runs", problems);
  if (v->has("measured"))
    stack.measured = read_measured(v->at("measured"), path + ".measured", problems);
  if (stack.product_bits != 0 && stack.product_bits != 8) {
    const std::string key = path + ".product_bits";
    problems.add(Stage::options, "cluster.value", key,
                 fmt::format("{}: got {}", key, stack.product_bits),
                 "8 for products in fp8, 0 for the program's own numbers");
  }
  for (const auto& [kind, given] : v->at("ops").items()) {
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
