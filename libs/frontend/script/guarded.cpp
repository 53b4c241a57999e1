// Calls optimizers, data sources and observers, and puts the plugin's name on whatever they throw.
#include "script/guarded.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/op_cost.h"
#include "meshwright/engine/rank_calls.h"
#include "meshwright/engine/text.h"
#include "meshwright/inputs.h"
#include "meshwright/threads.h"

namespace mw {
namespace {

// As call_plugin() in a run, which leaves an Error as it is. Here an Error gets the plugin's name
// too: the plugin calls nobody else, and torch's message says what it was doing.
template <class Body>
auto called(const PluginPlace& speaker, const char* did, Body&& body) {
  try {
    return call_plugin(speaker, did, body, Stage::run);
  } catch (const Stopped&) {
    throw;
  } catch (const Error& error) {
    std::vector<Problem> problems = error.problems();
    for (Problem& problem : problems) {
      if (problem.code == "plugin.fault" || problem.code.starts_with("memory.")) continue;
      problem.stage = Stage::run;
      problem = attributed(speaker, std::move(problem));
    }
    throw Error(std::move(problems));
  }
}

class GuardedElement final : public ElementOp {
 public:
  GuardedElement(const ElementOp& inner, PluginPlace speaker, const char* did)
      : inner_(inner), speaker_(std::move(speaker)), did_(did) {}
  std::string name() const override { return inner_.name(); }
  void run(const UpdateCall& call) const override {
    called(speaker_, did_, [&] { inner_.run(call); });
  }
  int temporaries() const override { return inner_.temporaries(); }

 private:
  const ElementOp& inner_;
  const PluginPlace speaker_;
  const char* did_;
};

class GuardedMatrix final : public MatrixOp {
 public:
  GuardedMatrix(const MatrixOp& inner, PluginPlace speaker)
      : inner_(inner), speaker_(std::move(speaker)) {}
  std::string name() const override { return inner_.name(); }
  at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>& kept) const override {
    return called(speaker_, "made an update of matrices", [&] { return inner_.run(stack, kept); });
  }
  Cost cost(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
            int element) const override {
    return checked([&] { return inner_.cost(matrices, rows, columns, element); });
  }

  int gram_steps() const override {
    return call_plugin(speaker_, "counted the steps of an update",
                       [&] { return inner_.gram_steps(); });
  }
  at::Tensor gram_step(int step, const at::Tensor& part, const at::Tensor& gram,
                       bool rows_are_cut) const override {
    return called(speaker_, "made a step of an update of matrices",
                  [&] { return inner_.gram_step(step, part, gram, rows_are_cut); });
  }
  Cost gram_step_cost(std::int64_t matrices, std::int64_t n, std::int64_t others,
                      int element) const override {
    return checked([&] { return inner_.gram_step_cost(matrices, n, others, element); });
  }

 private:
  template <class Priced>
  Cost checked(const Priced& priced) const {
    return call_plugin(speaker_, "priced an update", [&] {
      const Cost cost = priced();
      check_amounts(inner_.name(), {{"flops", cost.flops},
                                    {"gemms", std::int64_t{cost.gemms}},
                                    {"workspace", cost.workspace}});
      return cost;
    });
  }

  const MatrixOp& inner_;
  const PluginPlace speaker_;
};

class GuardedSum final : public UpdateTerms {
 public:
  GuardedSum(const UpdateTerms& inner, PluginPlace speaker)
      : inner_(inner), speaker_(std::move(speaker)) {}
  std::string name() const override { return inner_.name(); }
  at::Tensor terms(std::size_t sum, const UpdateCall& call) const override {
    const at::Tensor made =
        called(speaker_, "made terms of a sum", [&] { return inner_.terms(sum, call); });
    if (made.defined() && made.sizes() == call.gradient.sizes()) return made;
    throw Error(attributed(
        speaker_, {Stage::run, "plugin.fault", "",
                   fmt::format("its terms of sum {} have {} elements, and the parameter {}", sum,
                               made.defined() ? made.numel() : 0, call.gradient.numel()),
                   "mend its terms(): a number for each element (meshwright/optimizer.h)"}));
  }
  void keep(const UpdateCall& call) const override {
    called(speaker_, "kept states of sums", [&] { inner_.keep(call); });
  }

 private:
  const UpdateTerms& inner_;
  const PluginPlace speaker_;
};

// An optimizer's rule, with its ops guarded.
struct GuardedRule {
  UpdateRule rule;
  std::unique_ptr<GuardedElement> direction, apply;
  std::unique_ptr<GuardedMatrix> whole;
  std::unique_ptr<GuardedSum> summing;

  GuardedRule(UpdateRule given, const PluginPlace& speaker, int group) : rule(std::move(given)) {
    check(speaker, group);
    if (rule.direction != nullptr) {
      direction = std::make_unique<GuardedElement>(*rule.direction, speaker, "made a direction");
      rule.direction = direction.get();
    }
    if (rule.apply != nullptr) {
      apply = std::make_unique<GuardedElement>(*rule.apply, speaker, "updated parameters");
      rule.apply = apply.get();
    }
    if (rule.whole != nullptr) {
      whole = std::make_unique<GuardedMatrix>(*rule.whole, speaker);
      rule.whole = whole.get();
    }
    if (rule.summing != nullptr) {
      summing = std::make_unique<GuardedSum>(*rule.summing, speaker);
      rule.summing = summing.get();
    }
  }

 private:
  // A program calls `apply` alone, or for matrices `direction`, `whole` and `apply`.
  void check(const PluginPlace& speaker, int group) const {
    std::string fault;
    std::set<std::string> names;
    const auto take = [&](const std::string& name) {
      if (name.empty()) fault = "has a state without a name";
      if (!names.insert(name).second) fault = fmt::format("has two states named {}", quote(name));
    };
    for (const std::string& name : rule.states) take(name);
    for (const MatrixState& state : rule.of_matrix) take(state.name);
    if (!fault.empty())
      refuse(speaker, group, fault, "give each state a name of its own: checkpoints go by it");
    if (rule.apply == nullptr) {
      fault = "has no `apply`, so nothing updates the parameters";
    } else if ((rule.direction == nullptr) != (rule.whole == nullptr)) {
      fault = rule.whole == nullptr ? "has a `direction`, but no `whole` that reads it"
                                    : "has a `whole`, but no `direction` that it could read";
    } else if (rule.sums.empty() != (rule.summing == nullptr)) {
      fault = rule.sums.empty() ? "has an op `summing` of no `sums`"
                                : "has `sums`, and no op `summing` that gives their terms";
    } else if (rule.whole != nullptr && !rule.sums.empty()) {
      fault = "has `sums` beside `whole`, which reads none";
    } else if (rule.matrices != MatrixRanks::every &&
               (rule.whole == nullptr || !rule.of_matrix.empty())) {
      fault =
          "leaves matrices to an owner or to shards, and has no `whole` or keeps states of "
          "matrices";
    } else if (rule.matrices == MatrixRanks::shards && rule.whole->gram_steps() < 1) {
      fault = "leaves matrices to shards, and its `whole` has no gram_steps()";
    } else if (rule.average >= static_cast<int>(rule.states.size())) {
      fault = fmt::format("has {} states, and the state {} is its average", rule.states.size(),
                          rule.average);
    } else if (!(std::isfinite(rule.lr_scale) && rule.lr_scale >= 0)) {
      fault = fmt::format("multiplies the learning rate by {}", rule.lr_scale);
    }
    if (fault.empty()) return;
    refuse(speaker, group, fault,
           "an UpdateRule has `apply`, which may read `sums`, or for matrices `direction`, "
           "`whole` and `apply` (meshwright/optimizer.h)");
  }
  [[noreturn]] static void refuse(const PluginPlace& speaker, int group, const std::string& fault,
                                  const char* hint) {
    throw Error(attributed(speaker, {Stage::options, "plugin.fault", "",
                                     fmt::format("its rule for group {} {}", group, fault), hint}));
  }
};

class GuardedOptimizer final : public Optimizer {
 public:
  GuardedOptimizer(std::shared_ptr<const Optimizer> inner, const PluginPlace& speaker)
      : inner_(std::move(inner)), speaker_(speaker) {
    call_plugin(speaker, "said its rules", [&] {
      for (int group = 0; group < inner_->groups(); ++group)
        rules_.push_back(std::make_unique<GuardedRule>(inner_->rule(group), speaker, group));
    });
    if (rules_.empty())
      throw Error(attributed(
          speaker, {Stage::options, "plugin.fault", "", "its groups() is no number of groups",
                    "mend its groups(): one at least"}));
    lr_ = said("lr", &Optimizer::lr);
    clip_ = said("clip", &Optimizer::clip);
  }
  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  int groups() const override { return static_cast<int>(rules_.size()); }
  UpdateRule rule(int group) const override {
    return rules_.at(static_cast<std::size_t>(group))->rule;
  }
  std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const override {
    std::vector<int> groups = call_plugin(speaker_, "said the groups of parameters",
                                          [&] { return inner_->groups_of(parameters); });
    const bool known = std::all_of(groups.begin(), groups.end(),
                                   [&](int group) { return group >= 0 && group < this->groups(); });
    if (known && groups.size() == parameters.size()) return groups;
    throw Error(attributed(
        speaker_, {Stage::plan, "plugin.fault", "",
                   fmt::format("its groups_of() gives {} parameters the groups {}",
                               parameters.size(), fmt::join(groups, ", ")),
                   fmt::format("mend its groups_of(): a group below {} for each", rules_.size())}));
  }

 private:
  double said(const char* name, double (Optimizer::*number)() const) const {
    const double value =
        call_plugin(speaker_, "said its rate", [&] { return (*inner_.*number)(); });
    if (std::isfinite(value) && value >= 0) return value;
    throw Error(attributed(
        speaker_, {Stage::options, "plugin.fault", "", fmt::format("its {}() is {}", name, value),
                   fmt::format("mend its {}(): a finite number, 0 or more", name)}));
  }

  const std::shared_ptr<const Optimizer> inner_;
  const PluginPlace speaker_;
  double lr_ = 0, clip_ = 0;
  std::vector<std::unique_ptr<GuardedRule>> rules_;  // one for each group
};

class GuardedSource final : public TokenSource, public InputSource {
 public:
  GuardedSource(std::shared_ptr<const TokenSource> inner, PluginPlace speaker)
      : inner_(std::move(inner)),
        inputs_of_inner_(dynamic_cast<const InputSource*>(inner_.get())),
        speaker_(std::move(speaker)),
        vocab_(call_plugin(speaker_, "said its ids", [&] { return inner_->vocab(); })),
        masks_(call_plugin(speaker_, "said whether it masks labels",
                           [&] { return inner_->masks_labels(); })),
        documents_(call_plugin(speaker_, "said whether it has documents",
                               [&] { return inner_->has_documents(); })) {
    if (!documents_ || masks_) return;
    throw Error(attributed(
        speaker_, {Stage::options, "plugin.fault", "",
                   "it has documents and masks no labels, so that the last token of a document "
                   "would learn the first one of the next",
                   "mend its masks_labels() and sample() (meshwright/data.h)"}));
  }
  std::int64_t vocab() const override { return vocab_; }
  bool masks_labels() const override { return masks_; }
  bool has_documents() const override { return documents_; }
  std::vector<std::string> sets() const override { return inner_->sets(); }
  std::vector<std::int64_t> order_of_rows(std::int64_t first,
                                          const std::vector<std::int64_t>& groups,
                                          std::int64_t sequence) const override {
    std::vector<std::int64_t> order = call_plugin(speaker_, "said the order of a step's rows", [&] {
      return inner_->order_of_rows(first, groups, sequence);
    });
    std::vector<std::int64_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    const auto samples = std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
    bool whole = sorted.empty() || static_cast<std::int64_t>(sorted.size()) == samples;
    for (std::size_t k = 0; k < sorted.size(); ++k)
      whole = whole && sorted[k] == static_cast<std::int64_t>(k);
    if (whole) return order;
    throw Error(attributed(
        speaker_, {Stage::run, "plugin.fault", "data",
                   fmt::format("the order of the {} samples from {} on does not have each of them "
                               "once",
                               samples, first),
                   "mend its order_of_rows() (meshwright/data.h)"}));
  }
  std::vector<std::int64_t> documents(std::int64_t k, std::int64_t sequence) const override {
    std::vector<std::int64_t> begins =
        call_plugin(speaker_, fmt::format("said the documents of sample {}", k).c_str(),
                    [&] { return inner_->documents(k, sequence); });
    const bool sorted =
        std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>()) == begins.end();
    if (!begins.empty() && begins.front() == 0 && begins.back() < sequence && sorted) return begins;
    throw Error(attributed(
        speaker_,
        {Stage::run, "plugin.fault", "data",
         fmt::format("documents of sample {} begin at {}", k, fmt::join(begins, ", ")),
         fmt::format("mend its documents(): ascending places from 0, below {}", sequence)}));
  }
  std::int64_t tokens() const override {
    return call_plugin(speaker_, "said how many tokens there are",
                       [&] { return inner_->tokens(); });
  }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    called(speaker_, fmt::format("made sample {}", k).c_str(),
           [&] { inner_->sample(k, sequence, inputs, labels); });
    check_ids(k, "input", sequence, inputs, vocab_);
    check_ids(k, "label", sequence, labels, vocab_, masks_);
  }
  std::string lacks(const DataInput& input) const override {
    if (inputs_of_inner_ == nullptr) return "it has tokens alone";
    return call_plugin(speaker_, "said which inputs it has",
                       [&] { return inputs_of_inner_->lacks(input); });
  }
  void reals(const DataInput& input, std::int64_t k, float* reals) const override {
    called(speaker_, fmt::format("made {} of sample {}", input.name, k).c_str(),
           [&] { inputs_of_inner_->reals(input, k, reals); });
  }
  void indices(const DataInput& input, std::int64_t k, std::int64_t* indices) const override {
    called(speaker_, fmt::format("made {} of sample {}", input.name, k).c_str(),
           [&] { inputs_of_inner_->indices(input, k, indices); });
    std::int64_t elements = 1;
    for (std::int64_t size : input.shape) elements *= size;
    check_ids(k, input.name.c_str(), elements, indices, input.below);
  }
  std::string content() const override {
    return call_plugin(speaker_, "said what it reads", [&] { return inner_->content(); });
  }
  std::vector<SourceFile> files() const override {
    return call_plugin(speaker_, "listed its files", [&] { return inner_->files(); });
  }

 private:
  // Checks ids here, as no op would notice a wrong one: a rank that has a part of the vocabulary
  // takes any other id for one that another rank has.
  void check_ids(std::int64_t k, const char* what, std::int64_t sequence, const std::int64_t* ids,
                 std::int64_t below, bool masks = false) const {
    // A negative id is above all as unsigned. -1 - id is a label that counts nothing.
    const auto wrong = [&](std::int64_t id) {
      return static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(below) &&
             !(masks && id < 0 && -1 - id < below);
    };
    bool any = false;
    for (std::int64_t t = 0; t < sequence; ++t) any |= wrong(ids[t]);
    if (!any) return;
    const auto t = std::find_if(ids, ids + sequence, wrong) - ids;
    throw Error(attributed(
        speaker_, {Stage::run, "data.token", "",
                   fmt::format("sample {}: {} {} is {}, and the ids of this data are 0 to {}", k,
                               what, t, ids[t], below - 1),
                   below == vocab_ ? "mend the source: sample() writes ids below vocab() "
                                     "(meshwright/data.h)"
                                   : "mend the source: indices() writes numbers below what the "
                                     "model declares (meshwright/inputs.h)"}));
  }

  const std::shared_ptr<const TokenSource> inner_;
  const InputSource* const inputs_of_inner_;
  const PluginPlace speaker_;
  const std::int64_t vocab_;
  const bool masks_, documents_;
};

class GuardedObserver final : public RunObserver {
 public:
  GuardedObserver(std::shared_ptr<RunObserver> inner, PluginPlace speaker, double timeout)
      : inner_(std::move(inner)),
        speaker_(std::move(speaker)),
        timeout_(timeout),
        decides_(call_plugin(
            speaker_, "said whether it decides", [&] { return inner_->decides(); },
            Stage::options)) {}
  void begin(RankRun& rank) override {
    const comm::InPlugin inside(call(), "called before the first step");
    called(speaker_, "began to look on", [&] { inner_->begin(rank); });
  }
  void step(RankRun& rank, StepEnd& end) override {
    const bool last = end.last, stopped = end.stopped;
    const StepMetrics before = end.metrics;
    const comm::InPlugin inside(call(), fmt::format("called after step {}", end.step));
    called(speaker_, fmt::format("looked at step {}", end.step).c_str(),
           [&] { inner_->step(rank, end); });
    end.last = end.last || last;  // an observer cannot take back that the run ends
    end.stopped = stopped;
    if (!decides_ && end.last != last)
      refuse(end.step, "ended the run, and its decides() says that it does not",
             "let decides() return true: the ranks then wait for rank 0's word");
    if (rank.rank() != 0 && end.last != last)
      refuse(end.step, "ended the run on another rank than 0", "set StepEnd::last on rank 0 alone");
    if (rank.rank() != 0 && end.metrics.size() != before.size())
      refuse(end.step, "gave a number on another rank than 0, where nobody records it",
             "add to StepEnd::metrics on rank 0");
    check_metrics(end, before);
  }
  void finish(RankRun& rank) override {
    const comm::InPlugin inside(call(), "called after the last step");
    called(speaker_, "ended", [&] { inner_->finish(rank); });
  }
  std::string name() const override { return inner_->name(); }
  bool decides() const override { return decides_; }
  // The call runs in a thread of its own, which is left behind if it does not return in time.
  void failed(const RankFailed& error) override {
    struct Hearing {
      std::mutex mutex;
      std::condition_variable changed;
      bool over = false;
      std::string thrown;
    };
    const auto hearing = std::make_shared<Hearing>();
    std::jthread thread = start_thread([inner = inner_, error, hearing]() mutable {
      std::string thrown;
      try {
        inner->failed(error);
      } catch (...) {
        thrown = thrown_text();
      }
      inner.reset();
      const std::lock_guard lock(hearing->mutex);
      hearing->over = true;
      hearing->thrown = thrown;
      hearing->changed.notify_all();
    });
    bool over = false;
    {
      std::unique_lock lock(hearing->mutex);
      over = hearing->changed.wait_for(lock, std::chrono::duration<double>(timeout_),
                                       [&] { return hearing->over; });
    }
    if (!over) {
      thread.detach();
      refuse_hearing("plugin.timeout",
                     fmt::format("has not returned within {} s of", format_number(timeout_)));
    }
    thread.join();
    if (!hearing->thrown.empty())
      refuse_hearing("plugin.fault", fmt::format("threw \"{}\" in", hearing->thrown));
  }

 private:
  comm::RankCalls::PluginCall call() const {
    return {fmt::format("{} ({})", name(), speaker_.place), timeout_};
  }

  [[noreturn]] void refuse_hearing(const char* code, const std::string& what) const {
    throw Error(attributed(speaker_, {Stage::run, code, "",
                                      fmt::format("it {} failed(), which tells it that the run has "
                                                  "failed",
                                                  what),
                                      "mend the observer; the run had failed before"}));
  }

  [[noreturn]] void refuse(std::int64_t step, const std::string& what,
                           const std::string& hint) const {
    throw Error(attributed(speaker_, {Stage::run, "plugin.fault", "",
                                      fmt::format("after step {} it {}", step, what), hint}));
  }

  void check_metrics(const StepEnd& end, const StepMetrics& before) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.first == b.first && (a.second == b.second || (a.second != a.second));
    };
    if (end.metrics.size() < before.size() ||
        !std::equal(before.begin(), before.end(), end.metrics.begin(), same))
      refuse(end.step, "changed numbers of others", "add to StepEnd::metrics, and change none");
    for (std::size_t n = before.size(); n < end.metrics.size(); ++n) {
      const std::string& name = end.metrics[n].first;
      const auto own = end.metrics.begin() + static_cast<std::ptrdiff_t>(n);
      if (name.empty()) refuse(end.step, "gave a number without a name", "name it");
      if (std::any_of(end.metrics.begin(), own, [&](const auto& m) { return m.first == name; }))
        refuse(end.step, fmt::format("gave a number named {}, which is there already", quote(name)),
               "give it another name, such as one that begins with the observer's");
    }
  }

  const std::shared_ptr<RunObserver> inner_;
  const PluginPlace speaker_;
  const double timeout_;
  const bool decides_;
};

}  // namespace

std::shared_ptr<RunObserver> guarded(std::shared_ptr<RunObserver> observer,
                                     const PluginPlace& speaker, double timeout) {
  return std::make_shared<GuardedObserver>(std::move(observer), speaker, timeout);
}

std::shared_ptr<const Optimizer> guarded(std::shared_ptr<const Optimizer> optimizer,
                                         const PluginPlace& speaker) {
  if (optimizer == nullptr) return nullptr;
  return std::make_shared<GuardedOptimizer>(std::move(optimizer), speaker);
}

std::shared_ptr<const TokenSource> guarded(std::shared_ptr<const TokenSource> data,
                                           const PluginPlace& speaker) {
  if (data == nullptr) return nullptr;
  return std::make_shared<GuardedSource>(std::move(data), speaker);
}

}  // namespace mw
