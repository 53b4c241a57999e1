// Tries plans that avoid a plan's pitfalls, and says what they gain.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "meshwright/engine/text.h"
#include "predict/lighter.h"
#include "predict/memory_limit.h"
#include "predict/stage_layout.h"
#include "predict/variants.h"

namespace mw {
namespace {

// Most Plan::work of a plan for which other plans are tried.
constexpr double most_work_of_own = 2e5;
constexpr double least_step_gain = 0.03;  // share of a step; a smaller gain is not told
// Share of a step that larger microbatches have to gain.
constexpr double kernels_gain = 0.1;
constexpr double costs_nothing = 0.01, frees = 0.1;  // shares of a step, and of the peak

// A plan whose step, with the stages that its strategy declares, takes more than this times the own
// plan's is not tried with balanced stages: they would not make it the faster one.
constexpr double hopeless = 1.25;

using Strategies = std::vector<StrategyChoice>;

class Pitfalls {
 public:
  Pitfalls(const RunRequest& asked, const RunSetup& setup, const Machine& machine,
           const Prediction& own)
      : asked_(asked),
        setup_(setup),
        plan_(*setup.plan),
        machine_(machine),
        own_(own),
        node_(machine.host().ranks),
        base_(plan_.request) {
    base_.stage_layers.clear();  // stages as the strategy declares them: see laid_out
    base_.notes.clear();
    base_.schedule.reset();
  }

  std::vector<std::string> run() {
    if (!own_.fits) {
      does_not_fit();
      return std::move(found_);
    }
    too_few_microbatches();
    if (node_ <= 0) return std::move(found_);
    over_nodes(Role::model);
    over_nodes(Role::experts);
    whole_states();
    small_microbatches();
    given_layout();
    runs_out();
    return std::move(found_);
  }

 private:
  // Plans the experiment with other strategies or microbatches on as many ranks; nothing where that
  // is refused, or does not fit.
  std::optional<Variant> tried(const Strategies& strategies, std::int64_t microbatch = 0) const {
    throw_if_stopped();
    const Change change{&strategies, microbatch};
    Variant one{{}, change.of(base_)};
    one.request.sizes = base_.sizes;  // those that a policy chose stay
    one.plan = plan_if_possible(one.request);
    if (one.plan == nullptr || one.plan->ranks() != plan_.ranks()) return std::nullopt;
    one.predicted = predict(*one.plan, machine_, setup_.threads);
    one.predicted.limit_memory(setup_.memory);
    if (!fits(one.predicted)) return std::nullopt;
    one.text = change.text(one.request);
    return one;
  }
  static bool fits(const Prediction& predicted) { return predicted.fits && predicted.host_fits(); }

  // The request's plan with the recompute and the stages that a script would get.
  PredictedPlan searched(PlanRequest& request) const {
    Problems none;
    if (request.recompute.fit > 0) request.recompute.kind = RecomputePolicy::Kind::fit;
    const auto plan = make_balanced_plan(request, machine_, setup_.memory, none);
    if (plan == nullptr || !none.empty()) return {};
    return {plan, predict(*plan, machine_, setup_.threads)};
  }

  // The plan with the balanced stages that a script would get; nothing if it does not fit with
  // these.
  std::optional<Variant> laid_out(std::optional<Variant> one) const {
    if (!one || (one->plan != nullptr && one->plan->stages() < 2) || node_ <= 0) return one;
    const bool made = one->plan != nullptr && one->request.recompute.fit <= 0;
    PredictedPlan found = unless_refused([&] {
      return made ? predict_balanced_plan(one->request, machine_, setup_.memory, *one)
                  : searched(one->request);
    });
    if (found.plan == nullptr) return std::nullopt;
    one->predicted = std::move(found.predicted);
    one->predicted.limit_memory(setup_.memory);
    if (!fits(one->predicted)) return std::nullopt;
    return one;
  }

  static void keep_faster(std::optional<Variant>& best, std::optional<Variant> other) {
    if (other && (!best || other->predicted.step_seconds < best->predicted.step_seconds))
      best = std::move(other);
  }

  void say(const std::string& what, std::optional<Variant> best, double least = least_step_gain) {
    if (!best || best->predicted.step_seconds > own_.step_seconds * hopeless) return;
    best = laid_out(std::move(best));
    if (!best || best->predicted.step_seconds > own_.step_seconds * (1 - least)) return;
    found_.push_back(fmt::format("{}: a step takes {}, and {} with {}", what,
                                 duration_text(own_.step_seconds),
                                 duration_text(best->predicted.step_seconds), best->text));
  }

  const Strategies& strategies() const { return plan_.request.strategies; }

  // The lighter variants of the own plan, made once: many strategies are made for them, and several
  // pitfalls ask for them.
  const std::vector<LighterFamily>& families() {
    if (!families_) families_ = lighter_families(asked_.strategies, strategies());
    return *families_;
  }

  // The strategy with other ways; nothing if it does not take them.
  static std::optional<StrategyChoice> with_ways(const StrategyChoice& choice, std::int64_t ways) {
    if (!choice.with_ways || ways < 1) return std::nullopt;
    return unless_refused([&] { return std::optional(with_axes(choice.with_ways(ways))); });
  }

  // Finds a strategy with an axis of the role whose groups of ranks lie on several nodes. Returns
  // its place in the plan, and the axis' ways; the place is -1 if there is none.
  std::pair<int, int> spans_nodes(Role role) const {
    for (std::size_t k = 0; k < strategies().size(); ++k) {
      for (const AxisRequest& request : strategies()[k].axes) {
        if (request.role != role || !plan_.mesh.has(request.name)) continue;
        const Axis& axis = plan_.mesh.axis(request.name);
        if (axis.ways > 1 && some_group_spans(axis)) return {static_cast<int>(k), axis.ways};
      }
    }
    return {-1, 0};
  }

  bool some_group_spans(const Axis& axis) const {
    for (int rank = 0; rank < plan_.mesh.size(); ++rank) {
      if (plan_.mesh.index_in_group(rank, axis.atoms) != 0) continue;
      const std::vector<int> ranks = plan_.mesh.group(rank, axis.atoms);
      const auto [first, last] = std::minmax_element(ranks.begin(), ranks.end());
      if (*first / node_ != *last / node_) return true;
    }
    return false;
  }

  void over_nodes(Role role) {
    const auto [place, ways] = spans_nodes(role);
    if (place < 0) return;
    std::optional<Variant> best;
    Strategies last = strategies();
    std::rotate(last.begin() + place, last.begin() + place + 1, last.end());
    keep_faster(best, tried(last));
    const int most = std::min(ways - 1, node_);
    for (int fewer = most; fewer >= std::max(2, most / 2); --fewer) {
      if (ways % fewer == 0) with_fewer(last, last.size() - 1, fewer, ways / fewer, best);
    }
    const StrategyChoice& choice = strategies()[static_cast<std::size_t>(place)];
    say(fmt::format("{}({}) spans several nodes of {}, and links between nodes are slower",
                    choice.name, ways, plural(node_, "device")),
        std::move(best));
  }

  // The strategy at `place` gets fewer ways, and one of the others, or a new one, as many more.
  void with_fewer(const Strategies& order, std::size_t place, int fewer, int more,
                  std::optional<Variant>& best) const {
    const auto own = with_ways(order[place], fewer);
    if (!own) return;
    Strategies changed = order;
    changed[place] = *own;
    keep_faster(best, tried(changed));  // enough where the strategy borrows its ranks
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (k == place || !order[k].options.contains("ways") ||
          !order[k].options["ways"].is_number_integer())
        continue;
      if (const auto other = with_ways(order[k], order[k].options["ways"].get<int>() * more)) {
        Strategies both = changed;
        both[k] = *other;
        keep_faster(best, tried(both));
      }
    }
    for (const LighterPlan& plan : with_data_axis(asked_.strategies, changed, more))
      keep_faster(best, tried(plan.strategies));
  }

  void too_few_microbatches() {
    const std::int64_t stages = plan_.stages();
    if (stages < 2 || plan_.microbatches >= stages) return;
    std::optional<Variant> best;
    const std::int64_t all = plan_.request.batch / plan_.batch_ways;
    for (const std::int64_t count : {stages, 2 * stages, 4 * stages}) {
      if (all >= count) keep_faster(best, tried(strategies(), all / count));
    }
    if (node_ > 0 && !best) {
      for (std::size_t k = 0; k < strategies().size(); ++k) {
        if (!splits(strategies()[k], Role::layers)) continue;
        with_fewer(strategies(), k, static_cast<int>(stages / 2), 2, best);
      }
    }
    say(fmt::format("{} for {} stages, and most of them wait",
                    plural(plan_.microbatches, "microbatch"), stages),
        std::move(best));
  }

  // Looks for data parallelism that keeps all states on each rank, and plans ZeRO instead.
  void whole_states() {
    for (const LighterFamily& family : families()) {
      if (family.mild.empty()) continue;
      const Strategies& lighter = family.mild.front().strategies;
      const auto renamed = std::mismatch(
          lighter.begin(), lighter.end(), strategies().begin(), strategies().end(),
          [](const StrategyChoice& a, const StrategyChoice& b) { return a.name == b.name; });
      if (renamed.first == lighter.end() || renamed.second == strategies().end()) continue;
      const auto other = laid_out(tried(lighter));
      if (!other) continue;
      const auto peak = static_cast<double>(own_.fullest().memory.peak),
                 less = static_cast<double>(other->predicted.fullest().memory.peak);
      if (other->predicted.step_seconds > own_.step_seconds * (1 + costs_nothing) ||
          less > peak * (1 - frees))
        continue;
      found_.push_back(fmt::format(
          "{} keeps all of the optimizer's state on each rank: {} a step and {} a rank, and {} and "
          "{} with {}",
          renamed.second->name, duration_text(own_.step_seconds), format_bytes(peak),
          duration_text(other->predicted.step_seconds), format_bytes(less), other->text));
    }
  }

  void small_microbatches() {
    std::optional<Variant> best;
    for (const std::int64_t times : {2, 4}) {
      const std::int64_t microbatch = times * plan_.microbatch,
                         all = plan_.request.batch / plan_.batch_ways;
      if (all % microbatch != 0 || (plan_.stages() > 1 && all / microbatch < plan_.stages()))
        continue;
      keep_faster(best, tried(strategies(), microbatch));
    }
    say(fmt::format("microbatches of {} do not fill the device's kernels",
                    plural(plan_.microbatch, "sequence")),
        std::move(best), kernels_gain);
  }

  // Looks for stages whose layers the script gives, where the strategy could choose them itself.
  void given_layout() {
    if (plan_.stages() < 2 || !plan_.stage_layers.empty()) return;
    std::optional<Variant> best;
    for (const LighterFamily& family : families()) {
      for (const LighterPlan& plan : family.mild) {
        for (std::size_t k = 0; k < plan.strategies.size(); ++k) {
          if (k < strategies().size() && splits(plan.strategies[k], Role::layers) &&
              plan.strategies[k].written != strategies()[k].written)
            keep_faster(best, tried(plan.strategies));
        }
      }
    }
    say("the layout of stages is given, and some stages take longer than others", std::move(best));
  }

  void runs_out() {
    if (!own_.reported_above()) return;
    std::optional<Variant> best;
    for (const LighterFamily& family : families()) {
      for (const LighterPlan& plan : family.mild) {
        auto other = tried(plan.strategies);
        if (other && !other->predicted.reported_above()) keep_faster(best, std::move(other));
      }
    }
    best = laid_out(std::move(best));
    if (!best) return;
    found_.push_back(fmt::format(
        "the stack's software would run out of the device: {} does not, and takes {} a step "
        "instead of {}",
        best->text, duration_text(best->predicted.step_seconds), duration_text(own_.step_seconds)));
  }

  // Reports the mildest change with which a device's memory suffices, or that none was found. A
  // limit that the experiment sets is reported elsewhere, with what keeps to it.
  void does_not_fit() {
    const std::int64_t peak = own_.fullest().memory.peak;
    if (node_ <= 0 || peak <= own_.memory_limit || (setup_.memory > 0 && peak > setup_.memory))
      return;
    const MemoryHint hint =
        what_fits(asked_, plan_, plan_, {own_.memory_limit, false},
                  static_cast<int>(std::max<std::int64_t>(own_.ranks, own_.devices)));
    const std::string what = fmt::format("a rank holds {} of the {} that a device has",
                                         memory_text(peak), memory_text(own_.memory_limit));
    if (!hint.request) {
      found_.push_back(fmt::format("{}: {}", what, hint.text));
      return;
    }
    const auto best = laid_out(Variant{{}, *hint.request, hint.change});
    if (!best) return;
    found_.push_back(fmt::format("{}: a step takes {}, and a rank holds {}, with {}", what,
                                 duration_text(best->predicted.step_seconds),
                                 memory_text(best->predicted.fullest().memory.peak), best->text));
  }

  const RunRequest& asked_;
  const RunSetup& setup_;
  const Plan& plan_;
  const Machine& machine_;
  const Prediction& own_;
  const int node_;    // devices of a node; 0: no cluster
  PlanRequest base_;  // the plan's request, without what was chosen for it alone
  std::vector<std::string> found_;
  std::optional<std::vector<LighterFamily>> families_;
};

}  // namespace

std::vector<std::string> find_pitfalls(const RunRequest& asked, const RunSetup& setup,
                                       const Machine& machine, const Prediction& own) {
  if (setup.plan == nullptr || !own.timed()) return {};
  if (setup.plan->work > most_work_of_own)
    return {
        "none was looked for: the plan is so large that others beside it take too long to make"};
  return Pitfalls(asked, setup, machine, own).run();
}

}  // namespace mw
