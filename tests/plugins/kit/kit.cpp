// One thing of each kind that can be registered beside strategies, in one file.
#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "meshwright/data.h"
#include "meshwright/lr_schedule.h"
#include "meshwright/microbatch.h"
#include "meshwright/model.h"
#include "meshwright/observer.h"
#include "meshwright/optimizer.h"
#include "meshwright/packing.h"
#include "meshwright/plugin.h"
#include "meshwright/recompute.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/schedule.h"
#include "meshwright/weave.h"

namespace {

using mw::Error;
using mw::Json;

// Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms".
class Lion final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() {
    return mw::Options()
        .number("lr", "learning rate")
        .at_least(0)
        .positional("lr")
        .list("betas", "of what is applied, and of what is kept")
        .fallback(Json::array({0.9, 0.99}));
  }
  explicit Lion(const mw::Values& values) : lr_(values.number("lr")) {
    const Json& betas = values.at("betas");
    if (betas.size() != 2) {
      throw Error(mw::Stage::options, "option.value", "betas", "these are not two",
                  "for example { 0.9, 0.99 }");
    }
    applied_ = betas[0].get<double>();
    kept_ = betas[1].get<double>();
  }
  double lr() const override { return lr_; }
  double clip() const override { return 0; }
  std::string name() const override { return "lion"; }
  mw::UpdateRule rule(int) const override { return {.states = {"momentum"}, .apply = this}; }
  void run(const mw::UpdateCall& call) const override {
    const at::Tensor& average = call.state.tensors[0];
    if (call.grad_scale != 1.0) call.gradient.mul_(call.grad_scale);
    call.parameter.add_(at::sign(average * applied_ + call.gradient * (1 - applied_)), -call.lr);
    average.mul_(kept_).add_(call.gradient, 1 - kept_);
  }

 private:
  double lr_, applied_ = 0, kept_ = 0;
};

// Another model's graph, at a size that is fixed.
class Tiny final : public mw::Model {
 public:
  static mw::Options options() {
    return mw::Options().integer("layers", "how many").range(1, 8).positional("layers");
  }
  explicit Tiny(const mw::Values& values) {
    const mw::Registration& llama = values.catalog().find(mw::Kind::model, "llama");
    mw::Problems problems;
    const mw::Values given = llama.options().read(
        {{"layers", values.at("layers")}, {"hidden", 16}, {"heads", 2}, {"ffn", 32}, {"vocab", 32}},
        "", problems);
    problems.throw_if_any();
    inner_ = mw::make<mw::Model>(llama, given);
  }
  std::int64_t vocab() const override { return inner_->vocab(); }
  mw::Graph build(std::int64_t batch, std::int64_t sequence,
                  std::int64_t tokens_per_step) const override {
    return inner_->build(batch, sequence, tokens_per_step);
  }

 private:
  std::unique_ptr<mw::Model> inner_;
};

// Sample k is k, k + 1, … modulo `ids`.
class Counting final : public mw::TokenSource {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ids", "how many there are")
        .at_least(1)
        .fallback(32)
        .integer("sequence", "tokens of one sample")
        .at_least(1)
        .optional();
  }
  Counting(const mw::Values& values, const mw::DataContext&) : ids_(values.integer("ids")) {}
  std::int64_t vocab() const override { return ids_; }
  std::int64_t tokens() const override { return 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    for (std::int64_t t = 0; t < sequence; ++t) {
      inputs[t] = (k + t) % ids_;
      labels[t] = (k + t + 1) % ids_;
    }
  }

 private:
  std::int64_t ids_;
};

// All forwards, then all backwards, the last microbatch's first.
class Backwards final : public mw::Scheduler {
 public:
  int fixed_chunks() const override { return 1; }
  mw::Schedule make(const mw::ScheduleRequest& request) const override {
    mw::Schedule schedule{name(), request.microbatches, placement(request.stages, 1), {}};
    for (int stage = 0; stage < request.stages; ++stage) {
      auto& order = schedule.order.emplace_back();
      for (int m = 0; m < request.microbatches; ++m) order.push_back({stage, mw::Work::forward, m});
      for (int m = request.microbatches; m-- > 0;) order.push_back({stage, mw::Work::backward, m});
    }
    return schedule;
  }
};

// One instruction of each lane in turn.
class Turns final : public mw::Weave {
 public:
  std::vector<int> order(const mw::WeaveRequest& request) const override {
    std::vector<int> order;
    for (std::size_t n = 0, before = 1; order.size() != before; ++n) {
      before = order.size();
      for (std::size_t lane = 0; lane < request.lanes.size(); ++lane)
        if (n < request.lanes[lane]->code.size()) order.push_back(static_cast<int>(lane));
    }
    return order;
  }
};

// The sum as it is, all at once.
class Plain final : public mw::ReductionHook {
 public:
  static mw::Options options() {
    return mw::Options().boolean("refuse", "every bucket").fallback(false);
  }
  explicit Plain(const mw::Values& values) : refuse_(values.flag("refuse")) {}
  void check(const mw::BucketShape& bucket) const override {
    if (refuse_)
      throw Error(mw::Stage::plan, "hook.dtype", "", "it refuses " + bucket.name, "let it");
  }
  bool exact(const mw::BucketShape&) const override { return true; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override {
    mw::ReductionCost cost;
    cost.start.calls = {{mw::Collective::all_reduce, bucket.elements * bucket.element}};
    return cost;
  }
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape&,
                                            at::TensorOptions) const override {
    return std::make_unique<Sum>();
  }

 private:
  class Sum final : public mw::BucketReduction {
   public:
    void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
      pending_ = ranks.all_reduce(gradient, mw::Reduction::sum, purpose);
    }
    void finish() override { pending_.wait(); }

   private:
    mw::Pending pending_;
  };
  bool refuse_;
};

class Halves final : public mw::Microbatching {
 public:
  Halves(const mw::Values&, const mw::MicrobatchContext& context) : batch_(context.batch) {}
  mw::StepShape shape(std::int64_t, std::int64_t) const override {
    return {batch_, batch_ / 2, {}, false};
  }

 private:
  std::int64_t batch_;
};

// A row for each document in turn.
class Dealt final : public mw::Packing {
 public:
  explicit Dealt(const mw::Values&) {}
  std::vector<std::vector<std::size_t>> rows(const mw::PackingRequest& request) const override {
    std::vector<std::vector<std::size_t>> rows(static_cast<std::size_t>(request.rows));
    for (std::size_t d = 0; d < request.lengths.size(); ++d) rows[d % rows.size()].push_back(d);
    return rows;
  }
};

class Norms final : public mw::Recompute {
 public:
  bool takes(const mw::Op& op) const override { return op.kind() == "rms_norm"; }
};

class Halving final : public mw::LearningRate {
 public:
  static mw::Options options() {
    return mw::Options().integer("every", "steps").at_least(1).positional("every");
  }
  Halving(const mw::Values& values, const mw::LrContext& context)
      : lr_(context.lr), every_(values.integer("every")) {}
  double at(std::int64_t step) const override {
    return std::ldexp(lr_, -static_cast<int>(step / every_));
  }

 private:
  double lr_;
  std::int64_t every_;
};

// Counts the tensors that rank 0 shows. The option `fault` makes it do what no observer may.
class Shown final : public mw::RunObserver {
 public:
  static mw::Options options() {
    return mw::Options()
        .text("metric", "the name of its number")
        .fallback("shown")
        .positional("metric")
        .integer("last", "the step after which the run ends; -1: none")
        .at_least(-1)
        .fallback(-1)
        .choice("fault",
                {"none", "throws", "ends", "twice", "clears", "watches", "takes", "hangs",
                 "hangs-alone", "exits", "watch-hangs", "watches-nothing", "elsewhere",
                 "failed-throws", "failed-hangs", "made-without-a-word"},
                "what it does wrong, after step 1 if a step is needed")
        .fallback("none");
  }
  explicit Shown(const mw::Values& values)
      : metric_(values.text("metric")),
        last_(values.integer("last")),
        fault_(values.text("fault")) {
    if (fault_ == "made-without-a-word") throw mw::Error(std::vector<mw::Problem>{});
  }

  void begin(mw::RankRun& rank) override {
    if (rank.rank() == 0) rank.watch(fault_ == "watches-nothing" ? nullptr : &tensors_);
  }
  void failed(const mw::RankFailed&) override {
    if (fault_ == "failed-throws") throw std::runtime_error("not now");
    while (fault_ == "failed-hangs") std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  void finish(mw::RankRun& rank) override {
    if (rank.rank() == 0) rank.unwatch(&tensors_);
  }
  void step(mw::RankRun& rank, mw::StepEnd& end) override {
    const bool throws = fault_ == "throws" || fault_ == "failed-throws" || fault_ == "failed-hangs";
    if (end.step == 1 && throws && rank.rank() == 1) throw std::runtime_error("enough");
    if (end.step == 1 && fault_ == "elsewhere" && rank.rank() == 1)
      end.metrics.emplace_back("mine", 1.0);
    if (end.step == 1 && fault_ == "ends") end.last = true;
    if (end.step == 1 && fault_ == "exits" && rank.rank() == 1) std::exit(0);
    while (end.step == 1 && (fault_ == "hangs" || (fault_ == "hangs-alone" && rank.rank() == 1)))
      std::this_thread::sleep_for(std::chrono::seconds(1));
    if (fault_ == "clears") end.last = false;
    if (rank.rank() == 0) {
      tensors_.throws = end.step == 1 && fault_ == "watches";
      tensors_.hangs = end.step == 1 && fault_ == "watch-hangs";
    }
    if (end.report == nullptr) return;
    end.metrics.emplace_back(metric_, static_cast<double>(tensors_.number));
    if (end.step == 1 && fault_ == "takes") end.metrics.erase(end.metrics.begin());
    if (end.step == 1 && fault_ == "twice") end.metrics.emplace_back(metric_, 0.0);
    tensors_.number = 0;
    if (end.step == last_) end.last = true;
  }
  bool decides() const override { return last_ >= 0; }

 private:
  struct Counter final : mw::Watcher {
    void computed(const mw::Instruction&, int, int, const at::Tensor&) override {
      ++number;
      if (throws) throw std::runtime_error("seen enough");
      while (hangs) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    void gradients(mw::RankRun&) override {}
    std::int64_t number = 0;
    bool throws = false, hangs = false;
  };
  const std::string metric_;
  const std::int64_t last_;
  const std::string fault_;
  Counter tensors_;
};

}  // namespace

MESHWRIGHT_PLUGIN("kit", "2.0.0", "one thing of each kind",
                  mw::optimizer<Lion>("lion", "the sign of a running average"),
                  mw::model<Tiny>("tiny", "a Llama of 16 channels"),
                  mw::data<Counting>("counting", "one after the other"),
                  mw::scheduler<Backwards>("backwards", "the last microbatch comes back first"),
                  mw::reduction_hook<Plain>("plain", "the sum as it is"),
                  mw::microbatch<Halves>("halves", "two microbatches a step"),
                  mw::packing<Dealt>("dealt", "a row for each document in turn"),
                  mw::recompute<Norms>("norms", "norms are made again"),
                  mw::lr_schedule<Halving>("halving", "half the rate, again and again"),
                  mw::weave<Turns>("turns", "one instruction of each lane in turn"),
                  mw::observer<Shown>("shown", "counts what rank 0 shows"))
