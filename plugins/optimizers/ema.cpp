// An average of the parameters beside any optimizer (Polyak and Juditsky 1992, with weights that
// fall by `decay` with each step).
//
// ema { OPTIMIZER, decay = 0.999 } keeps average = decay average + (1 - decay) p of the
//   updated parameters; it begins as the parameters.
#include <fmt/core.h>

#include "meshwright/choice.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"

namespace mw {
namespace {

// The inner update, then that of the average, which is the last of the states.
class Averaged final : public ElementOp {
 public:
  Averaged(const ElementOp& inner, double decay) : inner_(inner), decay_(decay) {}
  std::string name() const override { return inner_.name(); }
  int temporaries() const override { return inner_.temporaries(); }
  void run(const UpdateCall& call) const override {
    UpdateCall inner = call;
    inner.state.tensors.pop_back();
    inner_.run(inner);
    call.state.tensors.back().lerp_(call.parameter, 1 - decay_);
  }

 private:
  const ElementOp& inner_;
  const double decay_;
};

class Ema final : public Optimizer {
 public:
  static Options options() {
    return Options()
        .any("optimizer", "what updates the parameters: mw.adamw { … }, mw.groups { … }")
        .positional("optimizer")
        .number("decay", "what is left of the average after a step")
        .fallback(0.999)
        .range(0, 0.9999999);
  }
  explicit Ema(const Values& values)
      : inner_(make_inner<Optimizer>(values, values.at("optimizer"), "optimizer", "optimizer",
                                     "mw.adamw { lr = 3e-4 }")) {
    for (int group = 0; group < inner_->groups(); ++group) {
      UpdateRule rule = inner_->rule(group);
      if (rule.average >= 0)
        throw Error(Stage::options, "option.value", "optimizer",
                    fmt::format("the optimizer keeps an average already: {}",
                                rule.states[static_cast<std::size_t>(rule.average)]),
                    "leave mw.ema out");
      ops_.push_back(std::make_unique<Averaged>(*rule.apply, values.number("decay")));
      rule.apply = ops_.back().get();
      rule.average = static_cast<int>(rule.states.size());
      rule.states.push_back("average");
      rules_.push_back(std::move(rule));
    }
  }
  double lr() const override { return inner_->lr(); }
  double clip() const override { return inner_->clip(); }
  int groups() const override { return inner_->groups(); }
  UpdateRule rule(int group) const override { return rules_.at(static_cast<std::size_t>(group)); }
  std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const override {
    return inner_->groups_of(parameters);
  }

 private:
  const std::shared_ptr<const Optimizer> inner_;
  std::vector<std::unique_ptr<const Averaged>> ops_;
  std::vector<UpdateRule> rules_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<Ema>("ema", "An average of the parameters beside an optimizer."));

}  // namespace mw
