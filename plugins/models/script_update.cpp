// `mw.update`: an optimizer whose step is a function of a script, recorded once as expressions of
// each element and of sums over whole parameters (lua/meshwright/update.lua).
//
// update { states = { "m" }, step = function(p, g, s, t) … end, lr }: the script's `step` gives the
//   record. `list` has values: { "operand", PLACE }, { "number", 0.9 }, { "^", A, 2 },
//   { "neg", A }, { "+", A, B }, or another function of the values A and B before it; the operands
//   are p, g, t.lr, t.step, the states and the sums. `sums` says the value and the round of each
//   sum. `states` names states of elements, and `by` states of rows or columns. `kept` has the
//   states' new values, in this order, and `result` is the parameter's.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"
#include "ops/fused.h"

namespace mw {
namespace {

class ScriptUpdate final : public Optimizer, public ElementOp, public UpdateTerms {
 public:
  static Options options() {
    return Options()
        .any("states",
             "names of the tensors that it keeps of each parameter, zero at first; by_rows = "
             "\"rows\" has a number for each row of each matrix, or \"columns\"")
        .fallback(Json::array())
        .any("step",
             "function(p, g, s, t) that returns the parameter's new value, of the parameter, its "
             "gradient, the states and t.lr and t.step (from 1)")
        .text("average",
              "a state that begins as the parameter, and that evaluate = { by = \"average\" } "
              "computes with")
        .optional()
        .text("name", "what reports call it")
        .fallback("update")
        .number("lr", "learning rate, t.lr of the function; a schedule starts from it")
        .at_least(0)
        .number("clip", "largest norm of all gradients; longer ones are scaled down to it")
        .optional()
        .at_least(0);
  }

  explicit ScriptUpdate(const Values& values)
      : name_(values.text("name")),
        lr_(values.number("lr")),
        clip_(values.has("clip") ? values.number("clip") : 0) {
    if (!values.is_function("step"))
      throw Error(Stage::options, "option.value", "step",
                  fmt::format("{} is no function", lua_text(values.at("step"))),
                  "mw.update { step = function(p, g, s, t) return p - t.lr * g end, lr = 0.1 }");
    const Json record = values.function("step")({});
    Expressions f;
    std::vector<int> nodes;
    for (const Json& node : record.at("list")) nodes.push_back(read(f, nodes, node));
    const auto node_at = [&](const Json& index) { return nodes.at(index.get<std::size_t>()); };
    for (const Json& state : record.at("states")) states_.push_back(state.get<std::string>());
    for (const Json& state : record.at("by")) {
      MatrixState& made = of_matrix_.emplace_back(MatrixState{state.at(0).get<std::string>()});
      (state.at(1) == "rows" ? made.columns : made.rows) = MatrixState::Side::one;
    }
    for (const Json& sum : record.at("sums")) {
      UpdateSum& made = sums_.emplace_back(UpdateSum{.each = sum.at("each").get<bool>(),
                                                     .mean = sum.at("mean").get<bool>(),
                                                     .round = sum.at("round").get<int>()});
      if (sum.at("side") == "rows") made.rows = MatrixState::Side::rows;
      if (sum.at("side") == "columns") made.columns = MatrixState::Side::columns;
      terms_.push_back(node_at(sum.at("of")));
    }
    roots_.push_back(node_at(record.at("result")));
    for (const Json& index : record.at("kept")) roots_.push_back(node_at(index));
    if (values.has("average"))
      average_ = static_cast<int>(
          std::find(states_.begin(), states_.end(), values.text("average")) - states_.begin());
    f_ = std::make_unique<kernel::Fused>(std::move(f), most_operands);
  }

  double lr() const override { return lr_; }
  double clip() const override { return clip_; }
  std::string name() const override { return name_; }
  UpdateRule rule(int) const override {
    UpdateRule rule{.states = states_, .apply = this, .of_matrix = of_matrix_};
    rule.sums = sums_;
    rule.summing = sums_.empty() ? nullptr : this;
    rule.average = average_;
    return rule;
  }

  void run(const UpdateCall& call) const override {
    if (call.grad_scale != 1) call.gradient.mul_(call.grad_scale);
    std::vector<kernel::Target> to{{call.parameter}};
    for (std::size_t k = 0; k < states_.size(); ++k) to.push_back({call.state.tensors[k]});
    compute(call, of_elements(), to);
  }

  at::Tensor terms(std::size_t sum, const UpdateCall& call) const override {
    std::vector<at::Tensor> operands = operands_of(call);
    if (call.grad_scale != 1) operands[gradient] = call.gradient * call.grad_scale;
    return f_->f().compute({terms_[sum]}, operands)[0].expand_as(call.gradient);
  }

  void keep(const UpdateCall& call) const override {
    std::vector<kernel::Target> to;
    for (const at::Tensor& state : call.state.of_matrix) to.push_back({state});
    compute(call, {roots_.begin() + 1 + static_cast<int>(states_.size()), roots_.end()}, to);
  }

  int temporaries() const override {
    const std::vector<int> roots = of_elements();
    int most = f_->f().tensors(roots);
    for (const int root : roots) most += node(root).code == Expressions::Code::operand ? 1 : 0;
    for (const int root : terms_)  // and the scaled gradient
      most = std::max(most, f_->f().tensors({root}) + 1);
    return most;
  }

 private:
  enum Place : std::uint8_t { parameter, gradient, rate, step, first_state };
  static constexpr int most_operands = Expressions::first_draw;

  static int read(Expressions& f, const std::vector<int>& before, const Json& node) {
    using Code = Expressions::Code;
    static const std::map<std::string, Code> signs{{"+", Code::add},
                                                   {"-", Code::subtract},
                                                   {"*", Code::multiply},
                                                   {"/", Code::divide},
                                                   {"neg", Code::negate}};
    const auto what = node.at(0).get<std::string>();
    if (what == "operand") return f.operand(node.at(1).get<int>());
    if (what == "number") return f.number(node.at(1).get<double>());
    std::vector<int> arguments{before.at(node.at(1).get<std::size_t>())};
    if (what == "^") return f.power(arguments[0], node.at(2).get<double>());
    for (std::size_t k = 2; k < node.size(); ++k)
      arguments.push_back(before.at(node.at(k).get<std::size_t>()));
    if (const auto sign = signs.find(what); sign != signs.end())
      return f.apply(sign->second, arguments[0], arguments.size() > 1 ? arguments[1] : -1);
    const std::size_t wanted = Expressions::arguments_of(what);
    if (wanted > 0 && arguments.size() == wanted) return f.call(what, arguments);
    throw Error(Stage::options, "update.script", "step",
                wanted > 0 ? fmt::format("{} takes {}", what, plural(wanted, "value"))
                           : fmt::format("there is no function {}", quote(what)),
                "functions: sum, mean, " + join(Expressions::functions()));
  }

  // The new values of the parameter and of the states of elements.
  std::vector<int> of_elements() const {
    return {roots_.begin(), roots_.begin() + 1 + static_cast<int>(states_.size())};
  }

  void compute(const UpdateCall& call, const std::vector<int>& roots,
               const std::vector<kernel::Target>& to) const {
    const std::vector<at::Tensor> operands = operands_of(call);
    if (f_->run(roots, to, operands)) return;
    std::vector<at::Tensor> made = f_->f().compute(roots, operands);
    // A root that is an operand as it was may be overwritten before it is stored.
    for (std::size_t k = 0; k < roots.size(); ++k)
      if (node(roots[k]).code == Expressions::Code::operand) made[k] = made[k].clone();
    for (std::size_t k = 0; k < roots.size(); ++k) {
      if (made[k].defined())
        to[k].tensor.copy_(made[k]);
      else
        to[k].tensor.fill_(node(roots[k]).number);
    }
  }

  std::vector<at::Tensor> operands_of(const UpdateCall& call) const {
    std::vector<at::Tensor> operands(first_state);
    operands[parameter] = call.parameter;
    operands[gradient] = call.gradient;
    // States of elements have no tensors where vectors alone are computed. Others may stand behind
    // its own, those of an optimizer around it.
    for (std::size_t k = 0; k < states_.size(); ++k)
      operands.push_back(k < call.state.tensors.size() ? call.state.tensors[k] : at::Tensor());
    for (const auto* list : {&call.state.of_matrix, &call.sums})
      operands.insert(operands.end(), list->begin(), list->end());
    const at::Tensor& like = call.parameter.defined() ? call.parameter : operands.back();
    operands[rate] = at::full({1}, call.lr, like.options());
    operands[step] = at::full({1}, static_cast<double>(call.step + 1), like.options());
    operands.resize(most_operands);
    return operands;
  }

  const Expressions::Node& node(int at) const {
    return f_->f().nodes()[static_cast<std::size_t>(at)];
  }

  const std::string name_;
  const double lr_, clip_;
  std::vector<std::string> states_;
  std::vector<MatrixState> of_matrix_;
  std::vector<UpdateSum> sums_;
  std::vector<int> terms_;  // by sum
  // The new values: of the parameter, of states of elements, and of states of matrices.
  std::vector<int> roots_;
  int average_ = -1;
  std::unique_ptr<const kernel::Fused> f_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<ScriptUpdate>("update",
                                                "A step that a function of the script computes."));

}  // namespace mw
