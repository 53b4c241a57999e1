// Runs small experiments in this process and compares each with one rank, with its prediction and
// with a second run of itself.
#include "app/kit/kit_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "app/kit_sample.h"
#include "check/observe.h"
#include "check/slopes.h"
#include "check/verify.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/ranks.h"
#include "meshwright/engine/run.h"
#include "meshwright/engine/text.h"
#include "observers/run_check.h"
#include "predict/prediction.h"
#include "prove/lemmas/lemmas.h"
#include "prove/prove.h"
#include "prove/proved.h"
#include "script/priced_for.h"

namespace mw {
namespace {

using Reports = std::vector<StepReport>;

// Tolerance of scratch memory, as a share of a rank's peak: a kernel may allocate more or less than
// in the trial that predicts it.
constexpr double slack = 0.02;
constexpr std::array<Category, 3> lasting = {Category::parameters, Category::gradients,
                                             Category::optimizer};
// Names the parameters whose slopes are not checked: before an op whose gradient is no derivative.
std::string left_out(const Graph& graph) {
  const std::set<int> before = before_straight_through(graph);
  std::int64_t parameters = 0;
  for (const int value : graph.parameters()) parameters += before.contains(value) ? 1 : 0;
  if (parameters == 0) return "";
  return fmt::format("; left out: {} before an op whose gradient is meant to be no derivative",
                     plural(parameters, "parameter"));
}

constexpr std::array<Category, 4> passing = {Category::activations, Category::buffers,
                                             Category::scratch, Category::host};

// `also`: an observer beside those of the run; null: none.
Reports train_once(const RunSetup& setup, const RunChecks& checks, RunObserver* also = nullptr) {
  Reports reports;
  OnStep keep([&](const StepReport& report) {
    reports.push_back(report);
    return false;
  });
  std::vector<RunObserver*> observers;
  for (const auto& observer : checks.observers) observers.push_back(observer.get());
  if (also != nullptr) observers.push_back(also);
  observers.push_back(&keep);
  const TrainOutcome outcome = train(setup, observers, stop_flag());
  if (outcome.interrupted) throw_if_stopped();
  return reports;
}

const RankReport& rank_of(const StepReport& report, int rank) {
  return *std::find_if(report.ranks.begin(), report.ranks.end(),
                       [&](const RankReport& one) { return one.rank == rank; });
}

// The first difference of bytes, calls or memory from the prediction, as text; empty: none.
std::string unlike_predicted(const RunSetup& setup, const StepReport& last) {
  for (const RankReport& measured : last.ranks) {
    const RankPrediction predicted = predict_rank(setup.plan_at(last.step), measured.rank);
    const auto differs = [&](const std::string& what, std::int64_t bytes, std::int64_t forecast) {
      return fmt::format("rank {}: {}: {} bytes measured, {} predicted", measured.rank, what, bytes,
                         forecast);
    };
    for (const auto& [key, use] : measured.communication) {
      const std::string what = fmt::format("{} {}, {}", key.axis, key.op, key.phase);
      const auto found = predicted.communication.find(key);
      if (found == predicted.communication.end()) return differs(what, use.bytes, 0);
      if (found->second.bytes != use.bytes) return differs(what, use.bytes, found->second.bytes);
      if (found->second.calls != use.calls) {
        return fmt::format("rank {}: {}: {} measured, {} predicted", measured.rank, what,
                           plural(use.calls, "call"), found->second.calls);
      }
    }
    for (const auto& [key, use] : predicted.communication) {
      if (!measured.communication.contains(key))
        return differs(fmt::format("{} {}, {}", key.axis, key.op, key.phase), 0, use.bytes);
    }
    for (const Category c : lasting) {
      const std::int64_t bytes = measured.memory[static_cast<std::size_t>(c)].bytes;
      if (bytes != predicted.memory[c]) return differs(name_of(c), bytes, predicted.memory[c]);
    }
    for (const Category c : passing) {
      const std::int64_t bytes = measured.memory[static_cast<std::size_t>(c)].peak;
      // The scratch of whole rows is predicted: documents take less.
      if (c == Category::scratch && setup.plan->request.documents && bytes < predicted.memory[c])
        continue;
      const double allowed =
          c == Category::scratch ? slack * static_cast<double>(measured.peak_bytes) : 0;
      if (std::abs(static_cast<double>(bytes - predicted.memory[c])) > allowed)
        return differs(fmt::format("peak of {}", name_of(c)), bytes, predicted.memory[c]);
    }
  }
  return "";
}

// The first category of which a rank holds other bytes after one step than after another, as text;
// empty: none.
std::string kept(const StepReport& before, const StepReport& after) {
  for (const RankReport& rank : after.ranks) {
    const RankReport& then = rank_of(before, rank.rank);
    for (int c = 0; c < category_count; ++c) {
      const std::int64_t now = rank.memory[static_cast<std::size_t>(c)].bytes;
      const std::int64_t was = then.memory[static_cast<std::size_t>(c)].bytes;
      if (now == was) continue;
      return fmt::format("rank {} holds {} bytes of {}, and held {}", rank.rank, now,
                         name_of(static_cast<Category>(c)), was);
    }
  }
  return "";
}

}  // namespace

bool try_experiment(const std::string& check, const Json& table, const ReadContext& context,
                    KitReport& report, const ExperimentBody& body) {
  try {
    const WithoutLemmas tried_apart;  // check_ops() tries the lemmas
    const Experiment experiment = read_experiment(table, context);
    check_thread_ranks(*experiment.plan);
    body(experiment);
    return true;
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    if (stop_requested()) throw;
    const Problem& first = error.problems().front();
    if (first.stage == Stage::run || first.code == "plugin.fault") {
      report.failed(check, error);
    } else {
      report.refused(check, error);
    }
  }
  return false;
}

void check_equal(const std::string& check, const RunSetup& setup, KitReport& report) {
  const VerifyOutcome outcome = verify(setup, 3, 1e-10, stop_flag());
  if (outcome.interrupted) throw_if_stopped();
  if (outcome.equal) {
    report.ok(check, fmt::format("gradients {:.1e}, parameters {:.1e} apart", outcome.gradients,
                                 outcome.parameters));
    return;
  }
  if (!outcome.lossy.empty() && !outcome.diverged) {
    report.ok(check, fmt::format("all but what {} reduces: it says that it loses bits, so there is "
                                 "nothing that its gradients could be compared with",
                                 join(outcome.lossy)));
    return;
  }
  const std::string where = outcome.diverged ? describe(outcome.first) : note_of(outcome);
  report.failed(
      check, fmt::format("{}; {}", verdict_of(outcome), where),
      "meshwright plan --program lists what runs; meshwright verify says more of a script "
      "with this plan");
}

void check_books(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                 KitReport& report) {
  const Reports first = train_once(setup, checks), second = train_once(setup, checks);
  const std::string predicted = unlike_predicted(setup, first.back());
  if (predicted.empty()) {
    report.ok("bytes and memory as predicted, " + check);
  } else {
    report.failed("bytes and memory as predicted, " + check, predicted,
                  "what is sent and allocated must be what is declared: cost() of a hook or an op, "
                  "the states of an optimizer");
  }
  const auto unlike = std::find_if(first.begin(), first.end(), [&](const StepReport& step) {
    const double again = second.at(static_cast<std::size_t>(step.step)).loss;
    return again != step.loss && !(std::isnan(again) && std::isnan(step.loss));
  });
  if (unlike == first.end()) {
    report.ok("a second run has the same losses, " + check);
  } else {
    report.failed(
        "a second run has the same losses, " + check,
        fmt::format("step {}: {}, then {}", unlike->step, unlike->loss,
                    second.at(static_cast<std::size_t>(unlike->step)).loss),
        "numbers that stay in members or static variables, a generator without a seed of its own, "
        "memory that is read before it is written");
  }
  std::string leak;
  for (std::size_t s = 1; s + 1 < first.size() && leak.empty(); ++s)
    leak = kept(first[s], first[s + 1]);
  if (leak.empty()) leak = kept(first.back(), second.back());
  if (leak.empty()) {
    report.ok("nothing is kept from step to step and from run to run, " + check);
  } else {
    report.failed("nothing is kept from step to step and from run to run, " + check, leak,
                  "what a rank keeps longer than it must: tensors in members, static variables, "
                  "captured by functions");
  }
}

void check_replicas(const std::string& check, const RunSetup& setup, const RunChecks& checks,
                    KitReport& report) {
  RunCheck replicas(setup.loss_scale != nullptr);
  for (const StepReport& step : train_once(setup, checks, &replicas)) {
    if (std::isfinite(step.loss)) continue;
    report.failed(check, fmt::format("the loss of step {} is {}", step.step, step.loss),
                  "a sum that is scaled wrongly, or memory that is read before it is written");
    return;
  }
  report.ok(check);
}

void check_derivative(const std::string& check, const RunSetup& setup, KitReport& report) {
  const std::vector<Slope> found = slopes(setup, stop_flag());
  std::vector<const Slope*> wrong;
  for (const Slope& slope : found) {
    if (!slope.agrees()) wrong.push_back(&slope);
  }
  if (wrong.empty()) {
    report.ok(check,
              fmt::format("along {}{}",
                          plural(static_cast<std::int64_t>(found.size()), "random direction"),
                          left_out(*setup.plan->graph)));
    return;
  }
  // Backward runs from the last op to the first, so the last wrong slope in the graph is nearest to
  // the cause.
  const Slope& last = *wrong.back();
  report.failed(
      check,
      fmt::format("{} of {} slopes; the last: {}: {:.6e} by backward, {:.6e} by differences of the "
                  "loss",
                  wrong.size(), found.size(), join(last.parameters), last.backward,
                  last.differences),
      "a backward, dgrad or wgrad of the op that has this parameter, or of one between it and the "
      "next parameter; where a gradient is meant to be no derivative, as through a rounding, the "
      "op says so (meshwright/autograd_op.h)");
}

void check_ops(const std::string& check, const Plan& plan, KitReport& report) {
  const std::vector<Program>& programs = plan.programs;
  const LemmaReport lemmas = check_lemmas(programs, prove(programs).lemmas);
  if (!lemmas.failures.empty()) {
    const Problem& first = lemmas.failures.front();
    const std::size_t more = lemmas.failures.size() - 1;
    report.failed(check, first.message + (more > 0 ? fmt::format("; and {} more", more) : ""),
                  first.hint);
    return;
  }
  std::string left;
  for (const std::string& what : lemmas.not_checked) left += "; left out: " + what;
  report.ok(check, fmt::format("{} tried at small sizes{}", plural(lemmas.checked, "lemma"), left));
}

void check_lossy(const std::string& check, const RunSetup& setup, KitReport& report) {
  constexpr int steps = 16;
  constexpr double much = 0.1;
  if (lossy_hooks(*setup.plan).names.empty()) return;
  const LossyGradients lost = lossy_gradients(setup, steps, stop_flag());
  const std::string found = fmt::format(
      "{:.2g} % of the sum is off after one step, {:.2g} % of the mean of {} equal steps; whether "
      "training bears that, no check can say: compare the losses of real runs",
      100 * lost.first, 100 * lost.mean, steps);
  if (std::isfinite(lost.mean) && (lost.first <= much || lost.mean <= 0.98 * lost.first)) {
    report.ok(check, found);
    return;
  }
  report.failed(
      check, found,
      "what is left out must come later (error feedback: keep it, and add it to the next "
      "step's gradient), or the mean of the steps is wrong too; a sum over the ranks, not "
      "a mean, is to be left");
}

namespace {

constexpr const char* observed_check = "a run that it looks at is the run without it";

void check_observers(const Experiment& with, const Experiment& without, KitReport& report) {
  const char* const check = observed_check;
  const Reports alone = train_once(without, without), seen = train_once(with, with);
  const bool decides =
      std::ranges::any_of(with.observers, [](const auto& o) { return o->decides(); });
  if (seen.size() != alone.size() && !decides) {
    report.failed(check, fmt::format("{} of {} steps ran", seen.size(), alone.size()),
                  "let decides() return true where step() may end the run");
    return;
  }
  for (std::size_t n = 0; n < seen.size(); ++n) {
    const StepReport &a = alone[n], &b = seen[n];
    if (a.loss == b.loss && a.grad_norm == b.grad_norm) continue;
    report.failed(
        check,
        fmt::format("step {}: a loss of {} and a norm of {} without it, {} and {} with it", a.step,
                    a.loss, a.grad_norm, b.loss, b.grad_norm),
        "an observer changes no tensor that it is shown, and fills none");
    return;
  }
  const std::string more = seen.empty() ? "" : kept(alone[seen.size() - 1], seen.back());
  if (more.empty()) {
    report.ok(check, plural(static_cast<std::int64_t>(seen.size()), "step"));
  } else {
    report.failed(check, more + " without it", "let go of tensors at the step's end");
  }
}

}  // namespace

void check_observers(const Json& with, const Json& without, const ReadContext& context,
                     KitReport& report) {
  try_experiment(observed_check, without, context, report, [&](const auto& alone) {
    try_experiment(observed_check, with, context, report,
                   [&](const auto& seen) { check_observers(seen, alone, report); });
  });
}

void check_platform(const Platform& platform, KitReport& report) {
  const char* const check = "its devices are found";
  platform.load();
  const int count = platform.count();
  if (count < 1) {
    report.failed(check, "this machine has none: " + platform.why_none(), platform.needs());
    return;
  }
  std::map<std::string, int> device_of_id;
  const int most = std::numeric_limits<at::DeviceIndex>::max();  // which libtorch can number
  for (int d = 0; d < std::min(count, most); ++d) {
    const at::Device device(platform.type(), static_cast<at::DeviceIndex>(d));
    const auto [known, is_new] = device_of_id.emplace(platform.id(device), d);
    if (is_new && !known->first.empty()) continue;
    report.failed(check,
                  is_new ? fmt::format("device {} has no id", d)
                         : fmt::format("{} and {} have the id {}", known->second, d, known->first),
                  "id() must tell a device from all others of all machines");
    return;
  }
  report.ok(check, plural(count, "device"));
}

void check_device(const Json& there, const Json& on_cpu, const ReadContext& context,
                  KitReport& report) {
  constexpr const char* check = "losses are those of CPUs";
  constexpr double bound = 1e-3;  // other kernels round in other ways
  const auto compare = [&](const auto& a, const auto& b) {
    const Reports expected = train_once(b, b), found = train_once(a, a);
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const StepReport &own = found.at(n), &right = expected[n];
      if (relative(own.loss, right.loss, 0) <= bound &&
          relative(own.grad_norm, right.grad_norm, 0) <= bound)
        continue;
      report.failed(check,
                    fmt::format("step {}: a loss of {} and a norm of {}, {} and {} on CPUs",
                                own.step, own.loss, own.grad_norm, right.loss, right.grad_norm),
                    "an op of the backend that is wrong, or a stream that does not wait");
      return;
    }
    report.ok(check, plural(static_cast<std::int64_t>(expected.size()), "step"));
  };
  try_experiment(check, on_cpu, context, report, [&](const auto& right) {
    try_experiment(check, there, context, report, [&](const auto& own) { compare(own, right); });
  });
}

void check_priced(const RunRequest& asked, const RunSetup& setup, KitReport& report) {
  const std::unique_ptr<Machine> machine = machine_of(asked);
  if (!machine) return;
  const char* check = "a plan is priced for the cluster";
  const Prediction priced = predict(*setup.plan, *machine, setup.threads);
  if (priced.timed() && std::isfinite(priced.step_seconds) && priced.step_seconds > 0) {
    report.ok(check, fmt::format("{:.3g} ms a step on {}, {} of {} needed",
                                 1e3 * priced.step_seconds, priced.priced_for,
                                 format_bytes(static_cast<double>(priced.memory_needed)),
                                 format_bytes(static_cast<double>(priced.memory_limit))));
    return;
  }
  report.failed(check,
                fmt::format("a step takes {} s on {}", priced.step_seconds, priced.priced_for),
                "rates that are 0 or missing: see docs/prediction.md and the files of clusters/");
}

void check_all_books(const std::string& mix, const Json& table, const ReadContext& context,
                     KitReport& report) {
  const auto each = [&](const std::string& check, const auto& body) {
    try_experiment(check, table, context, report, body);
  };
  each("bytes and memory as predicted, " + mix,
       [&](const auto& e) { check_books(mix, e, e, report); });
  const std::string agree = "all ranks agree, " + mix;
  each(agree, [&](const auto& e) { check_replicas(agree, e, e, report); });
  const std::string loses = "what it loses, " + mix;
  each(loses, [&](const auto& e) { check_lossy(loses, e, report); });
}

void check_mixes(const Json& experiment, const ReadContext& context, bool computes,
                 KitReport& report) {
  int books = 0;
  bool derived = !computes, sound = computes;
  for (const KitMix& mix : kit_mixes()) {
    const auto table = beside(experiment, mix);
    if (!table) continue;
    const std::string equals = "equals one rank, " + mix.name;
    const bool done = try_experiment(equals, *table, context, report,
                                     [&](const auto& e) { check_equal(equals, e, report); });
    if (done && sound) {
      const std::string check = "ops fulfil the assumptions of the proof, " + mix.name;
      const int before = report.failures();
      try_experiment(check, *table, context, report,
                     [&](const auto& e) { check_ops(check, *e.plan, report); });
      sound = report.failures() == before;
    }
    if (done && !derived) {
      derived = true;
      const std::string check = "gradients are the loss's derivative";
      try_experiment(check, *table, context, report,
                     [&](const auto& e) { check_derivative(check, e, report); });
    }
    if (!done || books == 2 || (books == 1 && mix.plugin.empty())) continue;
    ++books;
    check_all_books(mix.name, *table, context, report);
  }
  if (books > 0) return;
  const Problem* why = report.first_refusal();
  report.failed(
      "runs somewhere",
      "every plan with it was refused" +
          (why ? fmt::format(", the first with: {}", why->message) : std::string()),
      fmt::format("{}or give a plan that it goes with: meshwright plugins test SCRIPT.lua",
                  why && !why->hint.empty() ? why->hint + "; " : ""));
}

}  // namespace mw
