// Runs two plans, and the one rank that they are compared with, on the same weights and tokens, and
// hands the differences of every tensor that both made to the judge.
#include "check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "check/compare_judge.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// Unit roundoff: half the distance from 1 to the next number.
double roundoff(const std::string& precision) {
  return std::ldexp(1.0, precision == "fp64"   ? -53
                         : precision == "fp32" ? -24
                         : precision == "fp16" ? -11
                                               : -8);
}

std::shared_ptr<const Plan> one_rank_in(const Plan& plan, Precision precision) {
  PlanRequest request = one_rank_plan(plan, false)->request;
  request.precision = precision;
  Problems problems;
  auto one = make_plan(request, problems);
  problems.throw_if_any();
  return one;
}

std::string precision_named(const Plan& plan) {
  const std::string name = name_of(plan.request.precision);
  return name + (plan.request.fp32_gradients && bytes_of(plan.request.precision) < 4
                     ? ", fp32 gradients"
                     : "");
}

// How many choices of experts differ between two runs, whatever their order for a token.
std::int64_t choices_apart(const at::Tensor& x, const at::Tensor& y) {
  return std::get<0>(x.sort(-1)).ne(std::get<0>(y.sort(-1))).sum().item<std::int64_t>();
}

class Comparison {
 public:
  Comparison(const RunSetup& a, const RunSetup& b, std::int64_t steps,
             const std::atomic<bool>* stop)
      : a_(a), b_(b), steps_(steps), stop_(stop), judge_(*a.plan->graph) {}

  // The first process judges; the others only run their ranks of the two plans.
  CompareOutcome run() {
    JudgedRun a, b;
    by_the_first(a_, stop_, [&](const std::atomic<bool>* end) {
      judge_.losses = run_reference(end);
      a = side(a_, end);
      b = side(b_, end);
    });
    if (a_.processes != nullptr && !a_.processes->first()) {
      for (const RunSetup* each : {&a_, &b_})
        record_mix(*each, [](const TensorKey&, const WholeTensor&) {});
      return {};
    }
    for (std::int64_t step = 0; step < steps_; ++step) judge_.lr.push_back(a_.schedule(step));
    judge_.optimizer = a_.optimizer.get();
    for (const Program& program : a_.plan->programs) {
      for (const ProgramParameter& p : program.parameters) {
        judge_.groups[p.value] = p.group;
        if (p.rows > 0) judge_.matrices[p.value] = {p.stacked, p.rows};
      }
    }
    std::map<TensorKey, at::Tensor> of_a;
    a.outcomes = record_mix(a_, [&](const TensorKey& key, const WholeTensor& whole) {
      if (key.read()) return read(key, whole, &Differences::a_apart);
      Differences* known = known_of(key);
      if (known == nullptr) return;
      known->a_apart = distance(whole.numbers, reference_.at(key)) + copies(key, whole);
      known->spread_a = whole.spread;
      known->rank_a = whole.rank;
      of_a[key] = whole.numbers;
    });
    b.outcomes = record_mix(b_, [&](const TensorKey& key, const WholeTensor& whole) {
      if (key.read()) return read(key, whole, &Differences::b_apart);
      const auto other = of_a.find(key);
      if (other == of_a.end()) return;
      Differences& known = *known_of(key);
      known.b_apart = distance(whole.numbers, reference_.at(key)) + copies(key, whole);
      known.spread_b = whole.spread;
      known.rank_b = whole.rank;
      known.both = true;
      if (known.index) {
        if (known.route) known.choices_apart = choices_apart(whole.numbers, other->second);
      } else if (!same_bits(whole.numbers, other->second) || known.spread_a > 0 ||
                 known.spread_b > 0) {
        known.same_bits = false;
        known.apart = distance(whole.numbers, other->second) +
                      (copied(key) ? 0 : known.spread_a + known.spread_b);
      }
      of_a.erase(other);
    });
    look_for_overflows("a", a.outcomes);
    look_for_overflows("b", b.outcomes);
    CompareOutcome outcome = judge_.judge(a, b, reference_);
    outcome.steps = steps_;
    outcome.lossy_a = lossy_hooks(*a_.plan);
    outcome.lossy_b = lossy_hooks(*b_.plan);
    outcome.precision_a = precision_named(*a_.plan);
    outcome.precision_b = precision_named(*b_.plan);
    return outcome;
  }

 private:
  static bool same_bits(const at::Tensor& x, const at::Tensor& y) {
    if (x.scalar_type() == y.scalar_type()) return x.equal(y);
    return x.to(at::kDouble).equal(y.to(at::kDouble));
  }

  // Refuses to compare where the update of a step is left out because gradients overflow, or where
  // one rank in float64 is not finite either.
  void look_for_overflows(const char* name, const std::vector<StepOutcome>& outcomes) const {
    for (std::size_t step = 0; step < outcomes.size(); ++step) {
      if (outcomes[step].update_left_out && outcomes[step].labels > 0) {
        throw Error(Stage::run, "compare.overflow", "loss_scale",
                    fmt::format("compare: the gradients of {} overflow in step {}, with a loss "
                                "scale of {:g}, so the step makes no update",
                                name, step, outcomes[step].loss_scale),
                    "compare with a lower loss_scale");
      }
      if (!std::isfinite(judge_.losses[step].loss) ||
          !std::isfinite(judge_.losses[step].grad_norm)) {
        throw Error(
            Stage::run, "compare.not-finite", "",
            fmt::format("compare: one rank in float64 is not finite either in step {}", step),
            "a lower learning rate; mw.train with check = true says where it begins");
      }
    }
  }

  // Copies on several ranks count by the one that is farthest off, whichever came first. Copies of
  // updated parameters must be exact, which is judged separately.
  static bool copied(const TensorKey& key) { return key.kind == TensorKind::parameter; }
  static double copies(const TensorKey& key, const WholeTensor& whole) {
    return copied(key) ? 0 : whole.spread;
  }

  Differences* known_of(const TensorKey& key) {
    const auto found = judge_.tensors.find(key);
    return found == judge_.tensors.end() ? nullptr : &found->second;
  }

  // Records an operand as an op reads it. It must equal what its producer made, up to the rounding
  // of a sum, and a parameter must equal the stored one.
  void read(const TensorKey& key, const WholeTensor& whole, double Differences::*apart) {
    const Graph& graph = *a_.plan->graph;
    const Value& value = graph.value(value_of(graph, key));
    Differences d;
    d.parameter = value.source == Value::Source::parameter;
    d.count = whole.numbers.numel();
    if (d.parameter) {
      d.size = at::linalg_vector_norm(whole.numbers.to(at::kDouble), 2).item<double>();
    } else {
      d.made = {key.step, TensorKind::forward, value.producer, value.output};
      const auto made = judge_.tensors.find(d.made);
      if (made == judge_.tensors.end()) return;
      d.size = made->second.size;
    }
    Differences& known = judge_.tensors.emplace(key, d).first->second;
    known.*apart =
        d.parameter ? whole.stored : distance(whole.numbers, reference_.at(d.made)) + whole.spread;
  }

  std::vector<StepOutcome> record(const RunSetup& experiment, const Plan& plan,
                                  const std::atomic<bool>* stop,
                                  const Recorder::Complete& complete) {
    Recorder recorder(plan, complete, experiment.processes);
    run_steps(experiment, plan, steps_, stop,
              [&](RankRun& executor) { return recorder.watcher(executor); });
    recorder.gather();
    return recorder.outcomes();
  }

  // Records run a or run b, whose ranks may be in several processes.
  std::vector<StepOutcome> record_mix(const RunSetup& experiment,
                                      const Recorder::Complete& complete) {
    if (experiment.plan->ranks() > 1) return record(experiment, *experiment.plan, stop_, complete);
    std::vector<StepOutcome> outcomes;
    by_the_first(experiment, stop_, [&](const std::atomic<bool>* end) {
      outcomes = record(experiment, *experiment.plan, end, complete);
    });
    return outcomes;
  }

  std::vector<StepOutcome> run_reference(const std::atomic<bool>* stop) {
    const Graph& graph = *a_.plan->graph;
    const auto one = one_rank_in(*a_.plan, Precision::fp64);
    RunSetup plain = a_;
    plain.loss_scale = nullptr;
    return record(plain, *one, stop, [&](const TensorKey& key, const WholeTensor& whole) {
      Differences& d = judge_.tensors[key];
      const int op = op_of(graph, key);
      d.count = whole.numbers.numel();
      d.size = at::linalg_vector_norm(whole.numbers.to(at::kDouble), 2).item<double>();
      d.index = graph.value(value_of(graph, key)).scalar == Scalar::index;
      d.route = d.index && op >= 0 && graph.ops()[op].op_class() == OpClass::routing;
      reference_[key] = whole.numbers;
    });
  }

  // Measures the error of one rank in the plan's precision at each tensor, once for a and b if they
  // have the same precision.
  JudgedRun side(const RunSetup& experiment, const std::atomic<bool>* stop) {
    const Plan& plan = *experiment.plan;
    JudgedRun side;
    const bool exact = plan.request.precision == Precision::fp64;
    const auto one = one_rank_in(plan, exact ? Precision::fp32 : plan.request.precision);
    side.roundoff = roundoff(name_of(plan.request.precision));
    side.factor = exact ? side.roundoff / roundoff("fp32") : 1;
    side.ranks = plan.ranks();
    side.microbatches = static_cast<int>(plan.microbatches);
    const std::string name = precision_named(*one);
    const auto known = std::find(measured_.begin(), measured_.end(), name);
    side.errors = static_cast<int>(known - measured_.begin());
    if (known != measured_.end()) return side;
    measured_.push_back(name);
    record(experiment, *one, stop, [&](const TensorKey& key, const WholeTensor& whole) {
      Differences* d = known_of(key);
      if (d == nullptr) return;
      d->errors.resize(measured_.size(), 0);
      d->errors.back() = distance(whole.numbers, reference_.at(key));
    });
    return side;
  }

  const RunSetup& a_;
  const RunSetup& b_;
  const std::int64_t steps_;
  const std::atomic<bool>* stop_;
  Judge judge_;
  std::map<TensorKey, at::Tensor> reference_;  // tensors of one rank in fp64
  std::vector<std::string> measured_;          // precisions, as Differences::errors
};

}  // namespace

CompareOutcome compare(const RunSetup& a, const RunSetup& b, std::int64_t steps,
                       const std::atomic<bool>* stop) try {
  for (const RunSetup* each : {&a, &b}) {
    if (each->plan->programs.front().outer == nullptr) continue;
    throw Error(Stage::plan, "compare.replicas", "plan",
                fmt::format("compare: replicas of {} differ, and no rounding explains by how much",
                            each->plan->mix()),
                "mw.verify compares such a plan with replicas of one rank; a sweep over both plans "
                "compares their losses");
  }
  for (const RunSetup* each : {&a, &b})  // a plan of one rank runs in the first process
    check_thread_ranks(*each->plan, each->plan->ranks() == 1 ? nullptr : each->processes);
  RunSetup b_in_rows_of_a = b;
  if (a.plan->request.batch == b.plan->request.batch)
    b_in_rows_of_a.row_groups = a.plan->programs.front().groups_of_rows();
  return Comparison(a, b_in_rows_of_a, steps, stop).run();
} catch (const Stopped& stopped) {
  if (a.processes != nullptr && dynamic_cast<const StoppedAll*>(&stopped) == nullptr)
    throw;  // the other processes do not know of it
  CompareOutcome outcome;
  outcome.interrupted = true;
  return outcome;
}

}  // namespace mw
