// Refuses plans that are too large to count or to make in seconds, and asks the checks of finished
// plans.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <initializer_list>
#include <mutex>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/optimizer.h"

namespace mw {
namespace {

constexpr std::int64_t most_of_dim = INT32_MAX;

// The elements of a tensor of these dims, as a real: the product may be beyond any integer.
double elements_of(const Graph& graph, const Dims& dims) {
  double product = graph.sparse.has(dims) ? graph.sparse.share : 1;
  for (Dim dim : dims) product *= static_cast<double>(graph.size(dim));
  return product;
}

std::string product_of(const Graph& graph, const Dims& dims) {
  std::string text;
  for (Dim dim : dims)
    text += fmt::format("{}{} {}", text.empty() ? "" : " x ", dim.name(), graph.size(dim));
  return text;
}

// Counts the elements of several values, and finds the largest of them.
struct Sum {
  double elements = 0, largest = 0;
  const Value* value = nullptr;
  void add(const Graph& graph, const Value& v) {
    const double count = elements_of(graph, v.dims);
    elements += count;
    if (value != nullptr && count <= largest) return;
    largest = count;
    value = &v;
  }
};

void refuse(const Graph& graph, const Sum& sum, const char* key, const char* what,
            Problems& problems) {
  Dim widest = sum.value->dims.front();
  for (Dim dim : sum.value->dims) {
    if (graph.size(dim) > graph.size(widest)) widest = dim;
  }
  problems.add(
      Stage::plan, "plan.size", key,
      fmt::format("{} {:.3g} elements, more than a plan can hold ({:.3g}); the largest is {}, {}",
                  what, sum.elements, most_elements, sum.value->name,
                  product_of(graph, sum.value->dims)),
      fmt::format("make {} smaller than {}, or another of these", widest.name(),
                  graph.size(widest)));
}

struct PlanChecks {
  std::vector<PlanCheck> list;
  std::mutex mutex;
  std::set<std::string> right;  // plans that passed all checks, by what_is_checked()
};

// What identifies a plan that was checked: its hash, and the C++ classes of its optimizer's ops,
// which are no part of the hash and are checked too. Names would not do: two plugins may give their
// optimizers one name.
std::string what_is_checked(const Plan& plan) {
  std::set<std::string> updates;
  for (const Program& program : plan.programs) {
    for (const Bucket& bucket : program.buckets) {
      if (!bucket.rule) continue;
      const std::initializer_list<const UpdateOp*> ops = {bucket.rule->direction,
                                                          bucket.rule->whole, bucket.rule->apply};
      for (const UpdateOp* op : ops)
        if (op != nullptr) updates.insert(fmt::format("{} {}", fmt::ptr(&typeid(*op)), op->name()));
    }
  }
  return fmt::format("{} {}", plan.hash(), fmt::join(updates, " "));
}

PlanChecks& plan_checks() {
  static PlanChecks checks;
  return checks;
}

}  // namespace

void check_sizes(const Graph& step, Problems& problems) {
  bool good = true;
  for (const auto& [dim, info] : step.dims()) {
    if (info.size <= most_of_dim) continue;
    problems.add(Stage::plan, "plan.size", "model",
                 fmt::format("model: the dim {} would be {}, more than a plan can hold ({})",
                             dim.name(), info.size, most_of_dim),
                 fmt::format("nearest: {}", most_of_dim));
    good = false;
  }
  if (!good) return;
  Sum parameters, values;
  for (const Value& value : step.values())
    (value.source == Value::Source::parameter ? parameters : values).add(step, value);
  if (parameters.elements > most_elements)
    refuse(step, parameters, "model", "model: its parameters would have", problems);
  if (values.elements > most_elements)
    refuse(step, values, "batch", "batch: the tensors of a step would have", problems);
}

double PlanSize::works() const {
  return 3.0 * static_cast<double>(vstages) * static_cast<double>(microbatches);
}

double PlanSize::work() const {
  const auto n = static_cast<double>(ops), s = static_cast<double>(stages);
  const double each = stages > 1 ? 4.5 + 0.08 * s : 1.2;
  return 60 * n + 1.1 * n * s + 0.05 * n * static_cast<double>(vstages) + each * works();
}

void check_work(const PlanSize& size, const Graph& graph, Problems& problems) {
  double parameters = 0;
  for (int value : graph.parameters()) parameters += elements_of(graph, graph.value(value).dims);
  if (parameters * static_cast<double>(size.microbatches) > most_elements) {
    problems.add(Stage::plan, "plan.size", "microbatch",
                 fmt::format("microbatch: {} microbatches of a model of {:.3g} parameters are more "
                             "than a plan can hold ({:.3g} together)",
                             size.microbatches, parameters, most_elements),
                 "larger microbatches, or a smaller batch");
    return;
  }
  if (size.work() <= most_work) return;
  PlanSize one = size;
  one.microbatches = 1;
  if (one.work() > most_work) {
    problems.add(
        Stage::plan, "plan.size", "model",
        fmt::format("model: {} layers of {} ops in {} virtual stages are more than a plan can hold",
                    graph.layers, size.ops, size.vstages),
        size.stages > 1 ? "fewer layers, or fewer stages and chunks" : "fewer layers");
    return;
  }
  const double each = size.work() - one.work();
  const auto most = static_cast<std::int64_t>(1 + (most_work - one.work()) / each *
                                                      static_cast<double>(size.microbatches - 1));
  problems.add(
      Stage::plan, "plan.size", "microbatch",
      fmt::format("microbatch: {} microbatches in {} virtual stages are {:.0f} works, more than a "
                  "plan can hold",
                  size.microbatches, size.vstages, size.works()),
      fmt::format("at most {} microbatches: make microbatch larger, or batch smaller", most));
}

void add_plan_check(PlanCheck check) {
  plan_checks().list.push_back(std::move(check));
}

void check_plan(const Plan& plan, Problems& problems) {
  PlanChecks& checks = plan_checks();
  if (checks.list.empty() || plan.programs.empty()) return;
  const std::string what = what_is_checked(plan);
  {
    const std::lock_guard lock(checks.mutex);
    if (checks.right.count(what) > 0) return;
  }
  Problems found;
  for (const PlanCheck& check : checks.list) check(plan, found);
  problems.add(found);
  if (!found.empty()) return;
  const std::lock_guard lock(checks.mutex);
  checks.right.insert(what);
}

}  // namespace mw
