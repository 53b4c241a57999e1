// Makes one rank fail in the middle of a step: the final norm's forward throws on its n-th call,
// counted over all ranks, so exactly one of them meets it; or it never comes back from that call.
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

// The op type it stands before, but for that one call.
class FailingType : public mw::OpType {
 public:
  FailingType(std::shared_ptr<const mw::OpType> inner, std::int64_t call, bool hangs)
      : inner_(std::move(inner)), call_(call), hangs_(hangs) {}
  std::string kind() const override { return inner_->kind(); }
  mw::OpClass op_class() const override { return inner_->op_class(); }
  mw::OpTraits traits(const mw::Op& op) const override { return inner_->traits(op); }
  void forward(const mw::Op& op, mw::OpCall& call) const override {
    if (++calls_ == call_) {
      while (hangs_) std::this_thread::sleep_for(std::chrono::seconds(1));
      throw std::runtime_error("a fault that was asked for");
    }
    inner_->forward(op, call);
  }
  void backward(const mw::Op& op, mw::OpCall& call) const override { inner_->backward(op, call); }
  void dgrad(const mw::Op& op, mw::OpCall& call) const override { inner_->dgrad(op, call); }
  void wgrad(const mw::Op& op, mw::OpCall& call) const override { inner_->wgrad(op, call); }
  mw::Cost cost(const mw::Op& op, mw::Piece piece, const mw::LocalDims& dims,
                int element) const override {
    return inner_->cost(op, piece, dims, element);
  }

 private:
  std::shared_ptr<const mw::OpType> inner_;
  const std::int64_t call_;
  const bool hangs_;
  mutable std::atomic<std::int64_t> calls_ = 0;
};

class FailingRank : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("call", "the call that fails")
        .at_least(1)
        .positional("call")
        .boolean("hangs", "it does not throw, but never returns")
        .fallback(false);
  }
  explicit FailingRank(const mw::Values& values)
      : call_(values.integer("call")), hangs_(values.flag("hangs")) {}

  std::vector<mw::AxisRequest> axes() const override { return {}; }

  void edit(mw::Draft& draft) const override {
    const std::int64_t call = call_;
    const bool hangs = hangs_;
    draft.add_pass({"fail", [call, hangs](mw::Program& program) {
                      const auto graph = std::make_shared<mw::Graph>(*program.graph);
                      for (const mw::Op& op : graph->ops()) {
                        if (op.name != "norm") continue;
                        auto& type = const_cast<mw::Op&>(op).type;  // of our own copy
                        type = std::make_shared<FailingType>(type, call, hangs);
                      }
                      program.graph = graph;
                    }});
  }

 private:
  std::int64_t call_;
  bool hangs_;
};

}  // namespace

MESHWRIGHT_PLUGIN("failing_rank", "1.0.0", "one rank fails in the middle of a step",
                  mw::strategy<FailingRank>())
