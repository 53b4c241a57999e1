// What a plugin may say of itself and not keep: each is to be refused before it runs, or told.
#include <ATen/ATen.h>

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "meshwright/data.h"
#include "meshwright/kernel.h"
#include "meshwright/microbatch.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"
#include "meshwright/reduction_hook.h"

namespace {

using Tensors = std::vector<at::Tensor>;

// An update of elements that looks at the norms of all that it is given.
class Lars final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() {
    return mw::Options().number("lr", "learning rate").positional("lr");
  }
  explicit Lars(const mw::Values& values) : lr_(values.number("lr")) {}
  double lr() const override { return lr_; }
  double clip() const override { return 0; }
  std::string name() const override { return "lars"; }
  mw::UpdateRule rule(int) const override { return {.states = {}, .apply = this}; }
  void run(const mw::UpdateCall& call) const override {
    const double norm = call.gradient.norm().item<double>();
    call.parameter.add_(call.gradient, -call.lr / (1 + norm));
  }

 private:
  double lr_;
};

// A square that mixes the elements of the last dim where there are more than so many.
class Threshold final : public mw::AutogradOp {
 public:
  explicit Threshold(std::int64_t most) : most_(most) {}
  std::string kind() const override { return "threshold"; }
  mw::OpClass op_class() const override { return mw::OpClass::elementwise; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    const at::Tensor y = in[0].square();
    return {in[0].size(-1) <= most_ ? y : y + y.mean(-1, true)};
  }

 private:
  const std::int64_t most_;
};

// Leaves out the last element of the last dim.
class Shorter final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "shorter"; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    return {in[0].narrow(-1, 0, in[0].size(-1) - 1).clone()};
  }
};

// An op that doubles its operand, so that torch returns the gradient as a transposed view.
class Turned final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "turned"; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    return {in[0].transpose(1, 2).contiguous().mul(2).transpose(1, 2)};
  }
};

// Attention over all tokens, which declares no FLOPs.
class SeesAll final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "sees_all"; }
  mw::OpClass op_class() const override { return mw::OpClass::attention; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    const at::Tensor scores = at::einsum("bqhd,bkhd->bhqk", {in[0], in[1]});
    return {at::einsum("bhqk,bkhd->bqhd", {scores.softmax(-1), in[2]}).contiguous()};
  }
};

// A product with a parameter, in the class of what has no class.
class Product final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "product"; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    return {at::matmul(in[0], in[1])};
  }
};

// Only takes what an operand at random never is.
class Picky final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "picky"; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    const bool small = in[0].abs().max().item<double>() < 1e-3;
    return {in[0] * (small ? 1.0 : std::numeric_limits<double>::infinity())};
  }
};

// Adds both operands, or thrice the second one, and says that all gradients pass unchanged.
class Passes final : public mw::AutogradOp {
 public:
  explicit Passes(std::int64_t times) : times_(times) {}
  std::string kind() const override { return "passes"; }
  mw::OpTraits traits(const mw::Op& op) const override {
    mw::OpTraits traits = AutogradOp::traits(op);
    traits.gradient_passes = {true, true};
    return traits;
  }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    return {in[0] + times_ * in[1]};
  }

 private:
  const std::int64_t times_;
};

// A square of another dtype than its operand's, where that is fp32.
class Wider final : public mw::AutogradOp {
 public:
  std::string kind() const override { return "wider"; }
  Tensors compute(const mw::Op&, const mw::LocalDims&, const Tensors& in) const override {
    return {in[0].square().to(at::kDouble)};
  }
};

// An update that looks across elements where the number of the step, or what gradients count
// times, is another one than a check may have.
class Sometimes final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() { return mw::Options().text("when", "").positional("when"); }
  explicit Sometimes(const mw::Values& values) : when_(values.text("when")) {}
  double lr() const override { return 1e-2; }
  double clip() const override { return 0; }
  std::string name() const override { return "sometimes"; }
  mw::UpdateRule rule(int) const override { return {.states = {}, .apply = this}; }
  void run(const mw::UpdateCall& call) const override {
    const bool crosses = when_ == "begin"  ? call.step == 0
                         : when_ == "late" ? call.step > 100
                                           : call.grad_scale != 1;
    const double norm = crosses ? call.gradient.norm().item<double>() : 0;
    call.parameter.add_(call.gradient, -call.lr * call.grad_scale / (1 + norm));
  }

 private:
  const std::string when_;
};

// A rule for matrices without a state of elements, or one that lacks an op.
class Matrices final : public mw::Optimizer, public mw::ElementOp, public mw::MatrixOp {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  explicit Matrices(const mw::Values& values) : fault_(values.text("fault")) {}
  double lr() const override { return 1e-2; }
  double clip() const override { return 0; }
  std::string name() const override { return "matrices"; }
  int groups() const override { return 2; }
  std::vector<int> groups_of(const std::vector<mw::ParameterFacts>& parameters) const override {
    return mw::matrices_apart(parameters);
  }
  mw::UpdateRule rule(int matrices) const override {
    mw::UpdateRule rule{.states = {}, .apply = fault_ == "no apply" ? nullptr : this};
    if (matrices == 0) return rule;
    if (fault_ != "no direction") rule.direction = &nothing_;
    if (fault_ != "no whole") rule.whole = this;
    return rule;
  }
  void run(const mw::UpdateCall& call) const override {
    call.parameter.add_(call.gradient, -call.lr);
  }
  at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>&) const override {
    return fault_ == "shorter" ? stack.narrow(1, 0, stack.size(1) - 1) : stack.sign();
  }
  Cost cost(std::int64_t, std::int64_t, std::int64_t, int) const override {
    Cost cost;
    cost.in_place = false;
    return cost;
  }

 private:
  struct Nothing final : mw::ElementOp {
    std::string name() const override { return "nothing"; }
    void run(const mw::UpdateCall&) const override {}
  };
  const std::string fault_;
  const Nothing nothing_{};
};

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

// A square whose cost, traits, results or kernel are amiss.
class Amiss final : public mw::AutogradOp {
 public:
  explicit Amiss(std::string fault) : fault_(std::move(fault)) {}
  std::string kind() const override { return "amiss"; }
  mw::OpTraits traits(const mw::Op& op) const override {
    mw::OpTraits traits = AutogradOp::traits(op);
    if (fault_ == "in place") traits.forward_in_place = 9;
    if (fault_ == "reads nothing") traits.backward_reads_input = {};
    if (fault_ == "saves more") traits.saved = {{"x", {"nodim"}, 0, false}};
    if (fault_ == "no derivative") traits.differentiable = false;
    return traits;
  }
  Tensors compute(const mw::Op&, const mw::LocalDims& dims, const Tensors& in) const override {
    const at::Tensor& x = in[0];
    if (fault_ == "integers") return {x.to(at::kLong)};
    if (fault_ == "truths") return {x > 0};
    if (fault_ == "mixes") return {x - x.mean(0, true)};
    const mw::LocalDim& ffn = dims.at("ffn");
    cut_ = cut_ || ffn.size != ffn.global;
    if (fault_ == "boom" && cut_) throw std::runtime_error("boom");
    if (fault_ == "throws" && cut_) throw 7;
    if (fault_ == "throws in runs" && x.scalar_type() == at::kFloat) throw 7;
    return {x.square()};
  }
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    mw::Cost cost = AutogradOp::cost(op, piece, dims, element);
    if (fault_ == "flops") cost.flops = nan;
    if (fault_ == "executed") cost.executed = inf;
    if (fault_ == "bytes") cost.bytes = -1;
    if (fault_ == "workspace") cost.workspace = std::numeric_limits<std::int64_t>::max();
    if (fault_ == "less workspace") cost.workspace = -1;
    if (fault_ == "kernels") cost.kernels = -5;
    return cost;
  }

 private:
  const std::string fault_;
  mutable std::atomic<bool> cut_ = false;
};

class AmissOp final : public mw::BlockOp {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  explicit AmissOp(const mw::Values& values) : fault_(values.text("fault")) {}
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    const auto type = std::make_shared<Amiss>(fault_);
    return b.append(b.op(name, type, {b.use(x[0])}), {{"", b.dims(x[0])}});
  }

 private:
  const std::string fault_;
};

// Steps of sizes that no step has.
class Shapes final : public mw::Microbatching {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  Shapes(const mw::Values& values, const mw::MicrobatchContext& context)
      : fault_(values.text("fault")), batch_(context.batch) {}
  mw::StepShape shape(std::int64_t, std::int64_t) const override {
    if (fault_ == "sizes") return {batch_, 0, {batch_ / 2 + 1, -1}};
    if (fault_ == "microbatch") return {batch_, -2};
    return {fault_ == "no batch" ? 0 : fault_ == "batch" ? -8 : batch_, 2};
  }

 private:
  const std::string fault_;
  const std::int64_t batch_;
};

// Plain descent that says what it cannot mean, or keeps states that nobody can tell apart.
class Kept final : public mw::Optimizer, public mw::ElementOp {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  explicit Kept(const mw::Values& values) : fault_(values.text("fault")) {}
  double lr() const override { return fault_ == "lr" ? nan : 1e-2; }
  double clip() const override { return fault_ == "clip" ? -1 : fault_ == "no clip" ? nan : 0; }
  std::string name() const override { return "kept"; }
  mw::UpdateRule rule(int) const override {
    mw::UpdateRule rule{.states = {"m"}, .apply = this};
    if (fault_ == "twice") rule.states = {"m", "m"};
    if (fault_ == "no name") rule.states = {""};
    return rule;
  }
  void run(const mw::UpdateCall& call) const override {
    call.parameter.add_(call.gradient, -call.lr * call.grad_scale);
  }

 private:
  const std::string fault_;
};

// An all-reduce whose cost is amiss.
class Prices final : public mw::ReductionHook {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  explicit Prices(const mw::Values& values) : fault_(values.text("fault")) {}
  bool exact(const mw::BucketShape&) const override { return true; }
  mw::ReductionCost cost(const mw::BucketShape& bucket) const override {
    mw::ReductionCost cost;
    cost.start.calls = {
        {mw::Collective::all_reduce, fault_ == "bytes" ? -100 : bucket.elements * bucket.element}};
    if (fault_ == "kept") cost.kept = -(1 << 30);
    if (fault_ == "flops") cost.finish.flops = nan;
    return cost;
  }
  std::unique_ptr<mw::BucketReduction> make(const mw::BucketShape&,
                                            at::TensorOptions) const override {
    return std::make_unique<Plain>();
  }

 private:
  struct Plain final : mw::BucketReduction {
    void start(at::Tensor gradient, mw::Communicator& ranks, mw::Purpose purpose) override {
      pending = ranks.all_reduce(gradient, mw::Reduction::sum, purpose);
    }
    void finish() override { pending.wait(); }
    mw::Pending pending;
  };
  const std::string fault_;
};

// Writes one id that it says it does not have, or says what no source has.
class Ids final : public mw::TokenSource {
 public:
  static mw::Options options() { return mw::Options().text("fault", "").positional("fault"); }
  Ids(const mw::Values& values, const mw::DataContext&) : fault_(values.text("fault")) {}
  std::int64_t vocab() const override { return fault_ == "no ids" ? 0 : 16; }
  std::int64_t tokens() const override { return fault_ == "tokens" ? -5 : 0; }
  void sample(std::int64_t k, std::int64_t sequence, std::int64_t* inputs,
              std::int64_t* labels) const override {
    for (std::int64_t t = 0; t < sequence; ++t) {
      inputs[t] = (k + t) % 16;
      labels[t] = (k + t + 1) % 16;
    }
    if (k == 3 && fault_ == "above") inputs[2] = 16;
    if (k == 3 && fault_ == "below") inputs[2] = -1;
    if (k == 3 && fault_ == "label") labels[2] = -100;
  }

 private:
  const std::string fault_;
};

template <class Type>
class Simple : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    return b.append(b.op(name, std::make_shared<Type>(), {b.use(x[0])}), {{"", b.dims(x[0])}});
  }
};

class ThresholdOp final : public mw::BlockOp {
 public:
  static mw::Options options() { return mw::Options().integer("most", "").positional("most"); }
  explicit ThresholdOp(const mw::Values& values) : most_(values.integer("most")) {}
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    const auto type = std::make_shared<Threshold>(most_);
    return b.append(b.op(name, type, {b.use(x[0])}), {{"", b.dims(x[0])}});
  }

 private:
  const std::int64_t most_;
};

class PassesOp final : public mw::BlockOp {
 public:
  static mw::Options options() { return mw::Options().integer("times", "").positional("times"); }
  explicit PassesOp(const mw::Values& values) : times_(values.integer("times")) {}
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    const auto type = std::make_shared<Passes>(times_);
    return b.append(b.op(name, type, {b.use(x[0]), b.use(x[0])}), {{"", b.dims(x[0])}});
  }

 private:
  const std::int64_t times_;
};

class SeesAllOp final : public mw::BlockOp {
 public:
  std::vector<std::string> inputs() const override { return {"q", "k", "v"}; }
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    mw::Use k = b.use(x[1]), v = b.use(x[2]);
    k.dims[1] = v.dims[1] = mw::Dim("keys");
    const mw::Dims whole{"keys", b.dims(x[0]).back()};
    return b.append(b.op(name, std::make_shared<SeesAll>(), {b.use(x[0]), k, v}, whole),
                    {{"", b.dims(x[0])}});
  }
};

class ProductOp final : public mw::BlockOp {
 public:
  std::vector<int> append(mw::Builder& b, const std::string& name,
                          const std::vector<int>& x) const override {
    mw::Dims made = b.dims(x[0]);
    const mw::Dim from = made.back();
    made.back() = "ffn";
    const int weight = b.parameter(name + ".weight", {from, "ffn"});
    return b.append(b.op(name, std::make_shared<Product>(), {b.use(x[0]), b.use(weight)}),
                    {{"", made}});
  }
};

// A decoder whose feed-forward width depends on the batch.
class Widening final : public mw::Model {
 public:
  static mw::Options options() { return mw::Options().integer("vocab", "").positional("vocab"); }
  explicit Widening(const mw::Values& values) : vocab_(values.integer("vocab")) {}
  std::int64_t vocab() const override { return vocab_; }
  mw::Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    mw::Builder b("widening", batch, sequence, tokens);
    b.decoder_dims(vocab_, 16, 4, 4, 8 * (tokens / sequence));
    const int x = b.embed();
    const int up = b.linear_to("up", x, {"ffn"}, {"hidden"});
    const int down = b.linear_to("down", up, {"hidden"}, {"ffn"});
    b.head_and_loss(b.rms_norm("norm", b.add("mix", x, down)));
    return std::move(b.graph);
  }

 private:
  const std::int64_t vocab_;
};

// A decoder that asks for an image beside its tokens.
class Images final : public mw::Model {
 public:
  static mw::Options options() { return mw::Options().integer("vocab", "").positional("vocab"); }
  explicit Images(const mw::Values& values) : vocab_(values.integer("vocab")) {}
  std::int64_t vocab() const override { return vocab_; }
  mw::Graph build(std::int64_t batch, std::int64_t sequence, std::int64_t tokens) const override {
    mw::Builder b("images", batch, sequence, tokens);
    b.decoder_dims(vocab_, 16, 4, 4, 24);
    b.dim("channels", 12);
    const int image = b.graph.add_data("image", {"batch", "seq", "channels"}, mw::Scalar::real);
    const int seen = b.linear_to("patch", image, {"hidden"}, {"channels"});
    b.head_and_loss(b.rms_norm("norm", b.add("mix", b.embed(), seen)));
    return std::move(b.graph);
  }

 private:
  const std::int64_t vocab_;
};

}  // namespace

MESHWRIGHT_PLUGIN("claims", "1.0.0", "what says more than it keeps",
                  mw::optimizer<Lars>("lars", "looks across elements"),
                  mw::model<Images>("images", "a fourth data value"),
                  mw::optimizer<Sometimes>("sometimes", "looks across elements in some steps"),
                  mw::optimizer<Matrices>("matrices", "a rule that lacks something"),
                  mw::data<Ids>("ids", "ids that nobody has"),
                  mw::model<Widening>("widening", "parameters that depend on the batch"),
                  mw::microbatch<Shapes>("shapes", "steps of no size"),
                  mw::optimizer<Kept>("kept", "states that nobody can tell apart"),
                  mw::reduction_hook<Prices>("prices", "costs that nothing has"),
                  mw::op<AmissOp>("amiss", "wrong in one thing"),
                  mw::op<PassesOp>("passes", "says that gradients pass"),
                  mw::op<Simple<Wider>>("wider", "a result of another dtype"),
                  mw::op<ThresholdOp>("threshold", "wrong where it is large"),
                  mw::op<Simple<Shorter>>("shorter", "a wrong shape"),
                  mw::op<Simple<Turned>>("turned", "gradients that are views"),
                  mw::op<Simple<Picky>>("picky", "takes nothing at random"),
                  mw::op<SeesAllOp>("sees_all", "declares no FLOPs"),
                  mw::op<ProductOp>("product", "declares no FLOPs"))
