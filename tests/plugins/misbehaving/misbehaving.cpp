// What can go wrong in a cell of a sweep: in the final norm's forward, from the n-th call on
// (counted over all ranks), it ends the process, asks for memory without end, never returns, or
// computes something wrong; or its backward makes a gradient that is a thousandth too large.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

[[noreturn]] void ask_for_memory() {
  std::vector<std::unique_ptr<char[]>> all;
  while (true) {
    all.push_back(
        std::unique_ptr<char[]>(new char[64 << 20]));  // not written to: a limit counts it
  }
}

// The op type it stands before, but for that.
class MisbehavingType : public mw::OpType {
 public:
  MisbehavingType(std::shared_ptr<const mw::OpType> inner, std::string how, std::int64_t call)
      : inner_(std::move(inner)), how_(std::move(how)), call_(call) {}
  std::string kind() const override { return inner_->kind(); }
  mw::OpClass op_class() const override { return inner_->op_class(); }
  mw::OpTraits traits(const mw::Op& op) const override { return inner_->traits(op); }
  void forward(const mw::Op& op, mw::OpCall& call) const override {
    inner_->forward(op, call);
    if (++calls_ < call_) return;
    if (how_ == "abort") std::abort();
    if (how_ == "allocate") ask_for_memory();
    if (how_ == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    if (how_ == "wrong") call.outputs[0].mul_(3);
  }
  void backward(const mw::Op& op, mw::OpCall& call) const override {
    inner_->backward(op, call);
    if (how_ == "scale") call.grad_inputs[0].mul_(1.001);
  }
  void dgrad(const mw::Op& op, mw::OpCall& call) const override { inner_->dgrad(op, call); }
  void wgrad(const mw::Op& op, mw::OpCall& call) const override { inner_->wgrad(op, call); }
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    return inner_->cost(op, piece, dims, element);
  }

 private:
  std::shared_ptr<const mw::OpType> inner_;
  const std::string how_;
  const std::int64_t call_;
  mutable std::atomic<std::int64_t> calls_ = 0;
};

class Misbehaving : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .choice("how", {"abort", "allocate", "hang", "wrong", "scale"}, "what it does")
        .positional("how")
        .integer("call", "from which call on")
        .fallback(1)
        .at_least(1);
  }
  explicit Misbehaving(const mw::Values& values)
      : how_(values.text("how")), call_(values.integer("call")) {}

  std::vector<mw::AxisRequest> axes() const override { return {}; }

  void edit(mw::Draft& draft) const override {
    draft.add_pass({"misbehave", [how = how_, call = call_](mw::Program& program) {
                      const auto graph = std::make_shared<mw::Graph>(*program.graph);
                      for (const mw::Op& op : graph->ops()) {
                        if (op.name != "norm") continue;
                        auto& type = const_cast<mw::Op&>(op).type;  // of our own copy
                        type = std::make_shared<MisbehavingType>(type, how, call);
                      }
                      program.graph = graph;
                    }});
  }

 private:
  std::string how_;
  std::int64_t call_;
};

}  // namespace

MESHWRIGHT_PLUGIN("misbehaving", "1.0.0", "crashes, eats memory, hangs or computes wrongly",
                  mw::strategy<Misbehaving>())
