// Replicas that differ: the batch is split over groups of ranks that train by themselves, and every
// so many steps an outer optimizer brings them together (meshwright/outer_steps.h).
#include <fmt/format.h>

#include "meshwright/choice.h"
#include "meshwright/optimizer.h"
#include "meshwright/outer_steps.h"
#include "meshwright/passes.h"
#include "meshwright/plugin.h"
#include "meshwright/strategy.h"

namespace {

using mw::Error;
using mw::Stage;

constexpr const char* outer_hint =
    "mw.sgd { lr = 0.7, momentum = 0.9, nesterov = true }, or \"mean\"";

class DiLoCo : public mw::Strategy {
 public:
  static mw::Options options() {
    return mw::Options()
        .integer("ways", "number of replicas, over which the batch is split")
        .range(1, 1 << 20)
        .positional("ways")
        .integer("every", "steps from one outer step to the next")
        .at_least(1)
        .unit("steps")
        .any("outer",
             "the optimizer that moves the anchor by the mean of outer gradients (anchor minus "
             "parameters); or \"mean\": replicas become their mean, as in Local SGD. As in the "
             "paper if left out: mw.sgd { lr = 0.7, momentum = 0.9, nesterov = true }")
        .optional()
        .choice("dtype", {"fp32", "bf16", "fp16"},
                "in which outer gradients are sent and summed; float64 where all is")
        .fallback("fp32")
        .integer("fragments", "groups of layers that are brought together one after the other")
        .fallback(1)
        .at_least(1)
        .integer("delay",
                 "steps that replicas train on while outer gradients are summed; less than every")
        .fallback(0)
        .at_least(0)
        .unit("steps")
        .number("keeps", "share of its own parameters that a replica keeps in an outer step")
        .fallback(0.0)
        .range(0, 0.999);
  }

  explicit DiLoCo(const mw::Values& values) : ways_(values.int32("ways")) {
    steps_.every = values.integer("every");
    steps_.fragments = values.int32("fragments");
    steps_.delay = values.integer("delay");
    steps_.keeps = values.number("keeps");
    const std::string dtype = values.text("dtype");
    if (dtype != "fp32") steps_.dtype = dtype == "bf16" ? mw::Dtype::bf16 : mw::Dtype::fp16;
    if (steps_.fragments > steps_.every)
      refuse("fragments",
             fmt::format("{} fragments take turns within {} steps", steps_.fragments, steps_.every),
             fmt::format("nearest: fragments = {}", steps_.every));
    if (steps_.delay >= steps_.every)
      refuse("delay",
             fmt::format("a delay of {} steps is no less than the {} between two outer steps",
                         steps_.delay, steps_.every),
             fmt::format("nearest: delay = {}", steps_.every - 1));
    if (!values.has("outer")) {
      read_outer(values, {{"kind", "sgd"}, {"lr", 0.7}, {"momentum", 0.9}, {"nesterov", true}});
    } else if (values.at("outer") != "mean") {
      read_outer(values, values.at("outer"));
    }
  }

  std::vector<mw::AxisRequest> axes() const override { return {{"diloco", ways_}}; }

  void edit(mw::Draft& draft) const override {
    draft.shard("batch", "diloco");
    draft.add_pass(mw::outer_steps("diloco", steps_));
  }

 private:
  [[noreturn]] static void refuse(const char* key, std::string message, std::string hint) {
    throw Error(Stage::options, "option.value", key, std::move(message), std::move(hint));
  }

  void read_outer(const mw::Values& values, const mw::Json& given) {
    const auto optimizer =
        mw::make_inner<mw::Optimizer>(values, given, "outer", "outer optimizer", outer_hint);
    const mw::UpdateRule rule = optimizer->rule(0);
    if (optimizer->groups() > 1 || rule.direction != nullptr || rule.whole != nullptr ||
        !rule.sums.empty() || !rule.of_matrix.empty() || rule.average >= 0)
      refuse("outer",
             "an outer optimizer updates each element by itself, with one rule for all parameters, "
             "and keeps no average",
             outer_hint);
    if (optimizer->clip() > 0)
      refuse("outer", "outer gradients have no norm to which they could be clipped",
             "leave clip out of the outer optimizer");
    steps_.optimizer = optimizer;
  }

  int ways_;
  mw::OuterSteps steps_;
};

}  // namespace

MESHWRIGHT_PLUGIN("diloco", "1.0.0",
                  "replicas that differ: Local SGD, DiLoCo and its streaming form",
                  mw::strategy<DiLoCo>())
