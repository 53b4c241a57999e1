// Things that run, and are wrong alike on every rank and in every mix: equality with one rank sees
// nothing, so `plugins test` must find each by what it is.
#include <ATen/ATen.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "meshwright/data.h"
#include "meshwright/kernel.h"
#include "meshwright/lr_schedule.h"
#include "meshwright/optimizer.h"
#include "meshwright/platform.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"
#include "meshwright/schedule.h"
#include "meshwright/strategy.h"

namespace {

// What is wrong with an update.
enum class Fault { none, temporary, counts, crosses, differs, throws };

template <Fault fault>
class Descent final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() {
    return mw::Options().number("lr", "learning rate").at_least(0).positional("lr");
  }
  explicit Descent(const mw::Values& values) : lr_(values.number("lr")) {}
  double lr() const override { return lr_; }
  double clip() const override { return 0; }
  std::string name() const override { return "descent"; }
  mw::UpdateRule rule(int) const override { return {.states = {}, .apply = this}; }

  void run(const mw::UpdateCall& call) const override {
    double scale = call.grad_scale;
    if constexpr (fault == Fault::throws) {
      if (call.step == 1) throw 7;
    }
    if constexpr (fault == Fault::counts) scale *= 1 + 1e-9 * static_cast<double>(calls_++);
    if constexpr (fault == Fault::crosses) scale /= 1 + call.gradient.norm().item<double>();
    if constexpr (fault == Fault::differs) {  // on each rank, where numbers are not those of verify
      thread_local const double own = 1e-3 * static_cast<double>(calls_++);
      if (call.parameter.scalar_type() != at::kDouble) scale *= 1 + own;
    }
    if constexpr (fault == Fault::temporary) {
      call.parameter.sub_(call.gradient * (call.lr * scale));
    } else {
      call.parameter.add_(call.gradient, -call.lr * scale);
    }
  }

 private:
  double lr_;
  mutable std::atomic<std::int64_t> calls_ = 0;
};

// What lies in the last three quarters of each bucket never arrives.
class Forgets final : public mw::ReductionHook {
 public:
  bool exact(const mw::BucketShape&) const override { return false; }
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
      const std::int64_t kept = gradient.numel() / 4;
      gradient.narrow(0, kept, gradient.numel() - kept).zero_();
      pending_ = ranks.all_reduce(gradient, mw::Reduction::sum, purpose);
    }
    void finish() override { pending_.wait(); }

   private:
    mw::Pending pending_;
  };
};

// A sample is what the source was asked last, and one on.
class Restless final : public mw::TokenSource {
 public:
  Restless(const mw::Values&, const mw::DataContext&) {}
  std::int64_t vocab() const override { return 32; }
  std::int64_t tokens() const override { return 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    const std::int64_t from = k + asked_++;
    for (std::int64_t t = 0; t < sequence; ++t) {
      inputs[t] = (from + t) % 32;
      labels[t] = (from + t + 1) % 32;
    }
  }

 private:
  mutable std::atomic<std::int64_t> asked_ = 0;
};

class Failing final : public mw::TokenSource {
 public:
  Failing(const mw::Values&, const mw::DataContext&) {}
  std::int64_t vocab() const override { return 32; }
  std::int64_t tokens() const override { return 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    if (k >= 8) throw std::runtime_error("the well is dry");
    for (std::int64_t t = 0; t < sequence; ++t) inputs[t] = labels[t] = k;
  }
};

// x², whose derivative lacks the 2.
class Square final : public mw::OpType {
 public:
  std::string kind() const override { return "half_square"; }
  mw::OpTraits traits(const mw::Op&) const override {
    mw::OpTraits traits;
    traits.backward_reads_input = {true};
    traits.backward_reads_output = {false};
    return traits;
  }
  void forward(const mw::Op&, mw::OpCall& call) const override {
    call.outputs[0] = call.inputs[0].square();
  }
  void backward(const mw::Op&, mw::OpCall& call) const override {
    const at::Tensor gradient = call.grad_outputs[0] * call.inputs[0];
    if (!call.grad_inputs[0].defined()) {
      call.grad_inputs[0] = gradient;
    } else if (call.accumulate[0]) {
      call.grad_inputs[0].add_(gradient);
    } else {
      call.grad_inputs[0].copy_(gradient);
    }
  }
  mw::Cost cost(const mw::Op& op, mw::Piece, const mw::LocalDims& dims,
                int element) const override {
    mw::Cost cost;
    cost.bytes = 2.0 * static_cast<double>(dims.count(op.inputs[0].dims) * element);
    return cost;
  }
};

class HalfSquare final : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return b.append(b.op(name, std::make_shared<Square>(), {b.use(inputs[0])}),
                    {{"", b.dims(inputs[0])}});
  }
};

// Steps of an eighth, whose gradient passes straight through; `declared`: it says so.
class Rounded : public mw::OpType {
 public:
  std::string kind() const override { return "rounded"; }
  mw::OpTraits traits(const mw::Op&) const override {
    mw::OpTraits traits;
    traits.backward_reads_input = {false};
    traits.backward_reads_output = {false};
    return traits;
  }
  void forward(const mw::Op&, mw::OpCall& call) const override {
    call.outputs[0] = call.inputs[0].mul(8).round().div(8);
  }
  void backward(const mw::Op&, mw::OpCall& call) const override {
    if (!call.grad_inputs[0].defined()) {
      call.grad_inputs[0] = call.grad_outputs[0].clone();
    } else if (call.accumulate[0]) {
      call.grad_inputs[0].add_(call.grad_outputs[0]);
    } else {
      call.grad_inputs[0].copy_(call.grad_outputs[0]);
    }
  }
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    const std::int64_t bytes = dims.count(op.inputs[0].dims) * element;
    mw::Cost cost;
    cost.bytes = 2.0 * static_cast<double>(bytes);
    cost.workspace = piece == mw::Piece::forward ? 2 * bytes : 0;
    return cost;
  }
};
class DeclaredRounded final : public Rounded, public mw::StraightThrough {};

template <class Type>
class Round final : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& inputs) const override {
    return b.append(b.op(name, std::make_shared<Type>(), {b.use(inputs[0])}),
                    {{"", b.dims(inputs[0])}});
  }
};

// Makes orders of one size alone: 2 stages and 4 microbatches.
class Picky final : public mw::Scheduler {
 public:
  int fixed_chunks() const override { return 1; }
  mw::Schedule make(const mw::ScheduleRequest& request) const override {
    if (request.stages != 2 || request.microbatches != 4) {
      throw mw::Error(mw::Stage::plan, "picky.size", "", "2 stages and 4 microbatches, or nothing",
                      "write pp(2)");
    }
    mw::Schedule schedule{name(), request.microbatches, placement(request.stages, 1), {}};
    for (int stage = 0; stage < request.stages; ++stage) {
      auto& order = schedule.order.emplace_back();
      for (int m = 0; m < request.microbatches; ++m) order.push_back({stage, mw::Work::forward, m});
      for (int m = 0; m < request.microbatches; ++m)
        order.push_back({stage, mw::Work::backward, m});
    }
    return schedule;
  }
};

// Data parallelism in a file that has not its name, which says that it could hold less.
class Spread final : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "ranks")
        .range(1, 1 << 16)
        .positional("ways")
        .boolean("thin", "no change at all")
        .fallback(false);
  }
  explicit Spread(const mw::Values& values)
      : ways_(values.int32("ways")), thin_(values.flag("thin")) {}
  std::vector<mw::AxisRequest> axes() const override { return {{"spread", ways_, mw::Role::data}}; }
  void edit(mw::Draft& draft) const override { draft.shard("batch", "spread"); }
  std::vector<mw::Lighter> lighter() const override {
    if (thin_) return {};
    return {{"thin spread", {{"thin", true}}}};
  }

 private:
  int ways_;
  bool thin_;
};

// Says that its file was opened.
[[maybe_unused]] const bool said = std::fputs("unsound was opened\n", stderr) >= 0;

// Its devices cannot be told apart.
class Twins final : public mw::Platform {
 public:
  at::DeviceType type() const override { return at::kCPU; }
  int count() const override { return 2; }
  std::string id(at::Device) const override { return "one of two"; }
};

// What it needs does not load.
class Unloadable final : public mw::Platform {
 public:
  at::DeviceType type() const override { return at::kCPU; }
  void load() const override { throw std::runtime_error("no such library"); }
};

}  // namespace

MESHWRIGHT_PLUGIN("unsound", "1.0.0", "wrong alike everywhere",
                  mw::optimizer<Descent<Fault::temporary>>("temporary", "allocates"),
                  mw::optimizer<Descent<Fault::counts>>("counts", "keeps a number"),
                  mw::optimizer<Descent<Fault::crosses>>("crosses", "looks across elements"),
                  mw::optimizer<Descent<Fault::differs>>("differs",
                                                         "has another rate on each rank"),
                  mw::optimizer<Descent<Fault::throws>>("throws", "throws in its second step"),
                  mw::reduction_hook<Forgets>("forgets", "loses three quarters"),
                  mw::data<Restless>("restless", "keeps a number"),
                  mw::data<Failing>("failing", "throws in the second step"),
                  mw::scheduler<Picky>("picky", "makes orders of one size"),
                  mw::strategy<Spread>("spread", "batch over an axis"),
                  mw::op<HalfSquare>("half_square", "x², with half its derivative"),
                  mw::op<Round<Rounded>>("rounded", "to eighths, and does not say so"),
                  mw::op<Round<DeclaredRounded>>("straight", "to eighths, straight through"),
                  mw::device<Twins>("twins", "two devices of one id"),
                  mw::device<Unloadable>("unloadable", "a device whose library is missing"))
