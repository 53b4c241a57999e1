// Writes what a comparison found as text for people, and refuses pairs that cannot be compared.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "check/compare.h"
#include "meshwright/engine/mix.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

std::string what(const TensorDifference& d, const Graph& graph) {
  const auto from = [&](const std::vector<std::string>& ops) {
    return ops.empty() ? "" : fmt::format(" (from {})", fmt::join(ops, ", "));
  };
  const int op = op_of(graph, d.key);
  switch (d.key.kind) {
    case TensorKind::forward:
      if (d.key.read()) return fmt::format("what {} reads of {}", d.op, d.value);
      return fmt::format("the output of {}{}", d.op, from(producers(graph, graph.ops()[op])));
    case TensorKind::backward:
      return fmt::format("the gradient that reaches {}{}", d.op,
                         from(consumers(graph, graph.ops()[op])));
    case TensorKind::gradient:
      return fmt::format("the gradient of {}", d.value);
    case TensorKind::parameter:
      return fmt::format("{} after the update", d.value);
  }
  return "";
}

std::string short_name(const TensorDifference& d) {
  switch (d.key.kind) {
    case TensorKind::forward:
      return d.op + (d.key.read() ? ", reading " + d.value : ", output");
    case TensorKind::backward:
      return d.op + ", gradient of its output";
    case TensorKind::gradient:
      return d.value + ", gradient";
    case TensorKind::parameter:
      return d.value + ", after the update";
  }
  return "";
}

std::string number(double value) {
  return fmt::format("{:.1e}", value);
}

void add_row(TextTable& table, const std::string& name, const TensorDifference& d) {
  table.add({name, short_name(d), std::to_string(d.key.step), number(d.error), number(d.bound),
             fmt::format("{:.2g}", d.ratio())});
}

std::string name_of_sides(const Plan& a, const Plan& b, const CompareOutcome& o) {
  return fmt::format("a: {} in {}; b: {} in {}", a.mix(), o.precision_a, b.mix(), o.precision_b);
}

Json value_at(const Json& table, const char* key) {
  return table.contains(key) ? table.at(key) : Json();
}

std::string shown(const Json& value) {
  if (!value.is_object()) return describe(value);
  Json rest = value;
  const std::string kind = value.contains("kind") ? value["kind"].get<std::string>() + " " : "";
  rest.erase("kind");
  return kind + lua_text(rest);
}

// Lists the ops in the blocks, or in the graph, that a model of the user's own is made of
// (Model::made_of).
std::string ops_of(const Json& made_of) {
  std::vector<std::string> parts;
  for (const Json& part : made_of) {
    const char* key = part.is_object() && part.contains("graph") ? "graph" : "block";
    if (!part.is_object() || !part.contains(key)) continue;
    std::vector<std::string> ops;
    for (const Json& op : part[key].value("ops", Json::array())) {
      const Json options = op.value("options", Json());
      ops.push_back(op.value("op", "?") + (options.is_null() ? "" : " " + lua_text(options)));
    }
    parts.push_back(fmt::format("{} x ({})", part.value("layers", 1), join(ops)));
  }
  return join(parts, "; ");
}

}  // namespace

void check_comparable(const ComparedRun& a, const ComparedRun& b, std::int64_t steps,
                      Problems& problems) {
  const auto differ = [&](const std::string& key, const std::string& of_a, const std::string& of_b,
                          const std::string& hint) {
    problems.add(
        Stage::options, "compare.differs", key,
        fmt::format("{}: a has {}, b has {}; a comparison needs the same", key, of_a, of_b), hint);
  };
  const auto same = [&](const std::string& key, const Json& of_a, const Json& of_b) {
    if (of_a == of_b) return;
    differ(key, shown(of_a), shown(of_b),
           "write one table and give a and b what differs: plan, microbatch, recompute, precision");
  };
  const PlanRequest &x = a.setup.plan->request, &y = b.setup.plan->request;
  const auto model = [](const PlanRequest& request) {
    Json json = without_hidden(request.model_options.json());
    json["kind"] = request.model->name();
    for (const char* part : {"block", "embed", "head", "graph"}) json.erase(part);
    if (Json made_of = request.model->made_of(); !made_of.is_null())
      json["made_of"] = std::move(made_of);
    return json;
  };
  const Json of_a = model(x), of_b = model(y);
  const auto brief = [](Json json) {
    if (const auto found = json.find("made_of"); found != json.end()) {
      const std::string ops = ops_of(*found);
      json.erase("made_of");
      json["blocks"] = ops;
    }
    return shown(json);
  };
  if (of_a != of_b && brief(of_a) != brief(of_b)) {
    differ("model", brief(of_a), brief(of_b),
           "write one table and give a and b what differs: plan, microbatch, recompute, precision");
  } else if (of_a != of_b) {
    differ("model", brief(of_a), "the same ops, which take other values",
           "write one model's table and give it to both");
  }
  same("sequence", x.sequence, y.sequence);
  same("batch", x.batch, y.batch);
  for (const auto& [name, side] : {std::pair("a", &a.setup), std::pair("b", &b.setup)}) {
    if (!side->step_plans) continue;
    problems.add(
        Stage::options, "compare.steps", "microbatch",
        fmt::format("microbatch: the steps of {} have {} plans, and a comparison is of one each",
                    name, side->step_plans->plans.size()),
        "compare with the batch and the microbatches of one of its steps");
  }
  same("seed", a.setup.seed, b.setup.seed);
  same("data", without_numbers(a.asked.data_settings), without_numbers(b.asked.data_settings));
  same("weights", value_at(a.asked.table, "weights"), value_at(b.asked.table, "weights"));
  const auto optimizer = [](const PlanRequest& request) {
    return without_numbers(value_at(request.step_settings, "optimizer"));
  };
  same("optimizer", optimizer(x), optimizer(y));
  for (std::int64_t step = 0; step < steps; ++step) {
    const double rate_a = a.setup.schedule(step), rate_b = b.setup.schedule(step);
    if (rate_a == rate_b) continue;
    differ("schedule", fmt::format("lr {} at step {}", rate_a, step), fmt::format("{}", rate_b),
           "give both the same schedule and number of steps");
    break;
  }
}

std::string describe(const TensorDifference& d, const Graph& graph) {
  return fmt::format("{}, step {}: {:.1e}, bound {:.1e}", what(d, graph), d.key.step, d.error,
                     d.bound);
}

std::string advice(const CompareOutcome& o, const TensorDifference& d) {
  std::string text;
  if (d.key.read()) {
    text = "its producer agrees, so look at the collective or transfer between the two";
  } else if (d.key.kind == TensorKind::gradient) {
    text = "every activation and its gradient agree, so look at how it is accumulated and reduced";
  } else if (d.key.kind == TensorKind::parameter) {
    text =
        "every gradient agrees, so look at its optimizer and at how updated parameters are "
        "gathered";
  }
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const auto copies = [&](const char* side, double spread, int rank) {
    if (spread == 0 || d.key.kind < TensorKind::gradient) return;
    add(fmt::format("in {}, the copy on rank {} differs from the first copy by {:.1e}", side, rank,
                    spread));
  };
  copies("a", d.spread_a, d.rank_a);
  copies("b", d.spread_b, d.rank_b);
  switch (o.suspect) {
    case Suspect::a:
      add(fmt::format("plan a differs from one rank in float64: by {:.1e}, plan b by {:.1e}",
                      d.of_a, d.of_b));
      break;
    case Suspect::b:
      add(fmt::format("plan b differs from one rank in float64: by {:.1e}, plan a by {:.1e}",
                      d.of_b, d.of_a));
      break;
    case Suspect::both:
      add(fmt::format("both differ from one rank in float64: a {:.1e}, b {:.1e}", d.of_a, d.of_b));
      break;
    case Suspect::neither:
      break;
  }
  return text;
}

std::string note_of(const CompareOutcome& o) {
  if (o.equal) return "";
  std::vector<std::string> who;
  std::set<std::string> parameters;
  for (const auto& [side, lossy] : {std::pair("a", &o.lossy_a), std::pair("b", &o.lossy_b)}) {
    for (const std::string& hook : lossy->names) who.push_back(fmt::format("{} of {}", hook, side));
    parameters.insert(lossy->parameters.begin(), lossy->parameters.end());
  }
  if (who.empty()) return "";
  std::vector<std::string> gathering;
  for (const auto& [side, lossy] : {std::pair("a", &o.lossy_a), std::pair("b", &o.lossy_b)})
    for (const std::string& hook : lossy->gathering)
      gathering.push_back(fmt::format("{} of {}", hook, side));
  if (!gathering.empty())
    return fmt::format(
        "the hook {} gathers less than the parameters, by choice, so that every activation differs",
        fmt::join(gathering, " and "));
  // A lossy hook changes the gradients of the first step and, by the update, all that comes later.
  const bool before =
      o.first && o.first->key.step == 0 &&
      (o.first->key.kind < TensorKind::gradient ||
       (o.first->key.kind == TensorKind::gradient && parameters.count(o.first->value) == 0));
  return fmt::format("the hook {} sends less than the gradients, by choice; {}",
                     fmt::join(who, " and "),
                     before ? "but what parts first is not its doing"
                            : "all agrees up to the first gradients that it sums");
}

std::string describe(const CompareOutcome& o, const Plan& a, const Plan& b) {
  if (o.interrupted) return "interrupted before there was a verdict\n";
  std::string text =
      fmt::format("{}\n{}\n", name_of_sides(a, b, o),
                  o.same_bits ? "  equal, bit for bit"
                  : o.equal   ? "  equal: all differences are within what rounding explains"
                              : "  DIFFERENT: beyond what rounding explains");
  text += fmt::format(
      "  {} tensors in {}; largest relative errors: loss {:.1e}, gradients {:.1e}, parameters "
      "{:.1e}\n",
      o.tensors, plural(o.steps, "step"), o.loss, o.gradients, o.parameters);
  if (!o.same_bits) {
    TextTable table({"", "", "step", "error", "bound", "error/bound"}, {2, 3, 4, 5});
    if (o.first_bits) add_row(table, "first other bits", *o.first_bits);
    if (o.first) add_row(table, "first beyond bound", *o.first);
    if (o.first_gradient) add_row(table, "first parameter", *o.first_gradient);
    if (o.worst) add_row(table, "worst parameter", *o.worst);
    if (o.bound_ratio > 0) add_row(table, "nearest its bound", o.closest);
    text += table.text("  ");
  }
  const Graph& graph = *a.graph;
  if (o.first) {
    const std::string more = advice(o, *o.first);
    text += fmt::format("  first to part: {}{}{}\n", describe(*o.first, graph),
                        more.empty() ? "" : "\n    ", more);
  } else if (!o.equal) {
    text += fmt::format(
        "  every tensor agrees, but not what is reported: loss {:.1e} (bound {:.1e}), gradient "
        "norm {:.1e} (bound {:.1e}); look at how they are summed over the ranks\n",
        o.reported_loss.error, o.reported_loss.bound, o.reported_norm.error, o.reported_norm.bound);
  } else if (o.both_off) {
    text +=
        "  but both differ from one rank in float64 by more than rounding: see what verify says\n";
  }
  const std::string note = note_of(o);
  if (!note.empty()) text += "  " + note + "\n";
  if (o.moved_choices > 0) {
    text += fmt::format("  tokens chose other experts {} times, as rounding has it at a tie\n",
                        o.moved_choices);
  }
  return text;
}

}  // namespace mw
