// `mw.update`: an optimizer whose step is a function of a script, recorded once as expressions of
// each element and of sums over whole parameters (lua/meshwright/update.lua).
//
// update { states = { "m" }, step = function(p, g, s, t) … end, lr }: `step` has what the function
//   computed, one entry for each value: { "p" }, { "g" }, { "state", NAME }, { "t.lr" },
//   { "t.step" }, { "number", 0.9 }, { "+", A, B } or another function of the values A and B, and
//   { "mean", A, "rows" }.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "meshwright/plugin.h"
#include "ops/fused.h"

namespace mw {
namespace {

// What a value has numbers for: elements, or for each matrix its rows or its columns, or each
// matrix, or the parameter.
enum class Extent : std::uint8_t { parameter, matrix, rows, columns, elements };

Extent joined(Extent a, Extent b) {
  if (a > b) std::swap(a, b);
  return a == Extent::rows && b == Extent::columns ? Extent::elements : b;
}

const char* text_of(Extent extent) {
  static constexpr const char* texts[] = {"the parameter", "each matrix", "rows", "columns",
                                          "elements"};
  return texts[static_cast<std::size_t>(extent)];
}

// What a sum over `over` leaves.
std::optional<Extent> left_by(const std::string& over) {
  static const std::map<std::string, Extent> left{{"", Extent::parameter},
                                                  {"matrix", Extent::matrix},
                                                  {"columns", Extent::rows},
                                                  {"rows", Extent::columns}};
  const auto found = left.find(over);
  if (found == left.end()) return std::nullopt;
  return found->second;
}

// A value of the recorded function: its expression, its extent, and how many sums stand one in
// another in it.
struct Traced {
  int node = 0;
  Extent extent = Extent::parameter;
  int rounds = 0;
};

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
    read_states(values.at("states"));
    if (!values.is_function("step"))
      refuse("step", fmt::format("{} is no function", lua_text(values.at("step"))),
             "mw.update { step = function(p, g, s, t) return p - t.lr * g end, lr = 0.1 }");
    const Json script = values.function("step")({});
    Expressions f;
    std::vector<Traced> traced;
    for (const Json& node : script.at("list")) traced.push_back(read(f, traced, node));
    read_results(script, traced);
    if (values.has("average")) read_average(values.text("average"));
    for (const Kept& kept : kept_) roots_.push_back(kept.root);
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
    const std::vector<at::Tensor> operands = operands_of(call);
    std::vector<kernel::Target> targets{{call.parameter}};
    for (const Kept& kept : kept_)
      targets.push_back({kept.of_matrix
                             ? at::Tensor()
                             : call.state.tensors[static_cast<std::size_t>(kept.state)]});
    std::vector<int> roots{result_};
    roots.insert(roots.end(), roots_.begin(), roots_.end());
    std::erase_if(roots, [&](const int& root) {
      return !targets[static_cast<std::size_t>(&root - roots.data())].tensor.defined();
    });
    std::erase_if(targets, [](const kernel::Target& to) { return !to.tensor.defined(); });
    if (f_->run(roots, targets, operands)) return;
    std::vector<at::Tensor> made = f_->f().compute(roots, operands);
    // A root that is an operand as it was may be overwritten before it is stored.
    for (std::size_t k = 0; k < roots.size(); ++k)
      if (node(roots[k]).code == Expressions::Code::operand) made[k] = made[k].clone();
    for (std::size_t k = 0; k < roots.size(); ++k) store(roots[k], made[k], targets[k].tensor);
  }

  at::Tensor terms(std::size_t sum, const UpdateCall& call) const override {
    std::vector<at::Tensor> operands = operands_of(call);
    if (call.grad_scale != 1) operands[gradient] = call.gradient * call.grad_scale;
    return f_->f().compute({terms_[sum]}, operands)[0].expand_as(call.gradient);
  }

  void keep(const UpdateCall& call) const override {
    const std::vector<at::Tensor> operands = operands_of(call);
    std::vector<at::Tensor> made;
    for (const Kept& kept : kept_)
      made.push_back(kept.of_matrix ? f_->f().compute({kept.root}, operands)[0] : at::Tensor());
    for (std::size_t k = 0; k < kept_.size(); ++k) {
      if (kept_[k].of_matrix)
        store(kept_[k].root, made[k],
              call.state.of_matrix[static_cast<std::size_t>(kept_[k].state)]);
    }
  }

  int temporaries() const override {
    std::vector<int> roots{result_};
    roots.insert(roots.end(), roots_.begin(), roots_.end());
    int most = f_->f().tensors(roots);
    for (const int root : roots) most += node(root).code == Expressions::Code::operand ? 1 : 0;
    for (const int root : terms_)  // and the scaled gradient
      most = std::max(most, f_->f().tensors({root}) + 1);
    return most;
  }

 private:
  // A state's new value: of states_, or of of_matrix_.
  struct Kept {
    int root = 0, state = 0;
    bool of_matrix = false;
  };
  enum Place : std::uint8_t { parameter, gradient, rate, step, first_state };
  static constexpr int most_operands = Expressions::first_draw;

  [[noreturn]] static void refuse(const std::string& key, const std::string& message,
                                  const std::string& hint) {
    throw Error(Stage::options, "update.script", key, message, hint);
  }

  // The place of an operand among those of the expressions.
  int place_of_state(std::size_t k) const { return first_state + static_cast<int>(k); }
  int place_of_matrix_state(std::size_t k) const { return place_of_state(states_.size() + k); }
  int place_of_sum(std::size_t k) const { return place_of_matrix_state(of_matrix_.size() + k); }

  void read_states(const Json& given) {
    const Json list = given.is_string() ? Json::array({given}) : given;
    const auto named = [&](const std::string& name) {
      const bool again = std::count(states_.begin(), states_.end(), name) > 0;
      if (name.empty() || again)
        refuse("states",
               again ? fmt::format("the state {} is there twice", quote(name))
                     : "a state has an empty name",
               "states = { \"m\", \"v\", r = \"rows\" }");
    };
    for (const auto& [key, item] : list.items()) {
      if (key.starts_with("$")) continue;
      const bool by_number =
          list.is_array() ||
          std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
      const std::string text = item.is_string() ? item.get<std::string>() : "";
      if (by_number) {
        named(text);
        states_.push_back(text);
        continue;
      }
      named(key);
      if (text != "rows" && text != "columns")
        refuse("states", fmt::format("the state {} is by {}", key, lua_text(item)),
               "a state of matrices is by \"rows\" or \"columns\"");
      MatrixState state{.name = key};
      (text == "rows" ? state.columns : state.rows) = MatrixState::Side::one;
      of_matrix_.push_back(state);
    }
    constexpr std::size_t most = 16;
    if (states_.size() + of_matrix_.size() > most)
      refuse("states",
             fmt::format("{} states, of {} at most", states_.size() + of_matrix_.size(), most),
             "keep fewer");
  }

  Traced state(Expressions& f, const std::string& name) const {
    for (std::size_t k = 0; k < states_.size(); ++k)
      if (states_[k] == name) return {f.operand(place_of_state(k)), Extent::elements};
    for (std::size_t k = 0; k < of_matrix_.size(); ++k) {
      if (of_matrix_[k].name != name) continue;
      return {f.operand(place_of_matrix_state(k)),
              of_matrix_[k].columns == MatrixState::Side::one ? Extent::rows : Extent::columns};
    }
    refuse("states", fmt::format("the state {} is not declared", quote(name)),
           fmt::format("states = {{ {} }}", quote(name)));
  }

  Traced read(Expressions& f, const std::vector<Traced>& before, const Json& node) {
    const std::string what = node.at(0).get<std::string>();
    if (what == "p") return {f.operand(parameter), Extent::elements};
    if (what == "g") return {f.operand(gradient), Extent::elements};
    if (what == "t.lr") return {f.operand(rate), Extent::parameter};
    if (what == "t.step") return {f.operand(step), Extent::parameter};
    if (what == "state") return state(f, node.at(1).get<std::string>());
    if (what == "number") return {f.number(node.at(1).get<double>()), Extent::parameter};
    const Traced& a = before.at(node.at(1).get<std::size_t>());
    if (what == "sum" || what == "mean")
      return sum(f, a, what == "mean", node.size() > 2 ? node.at(2).get<std::string>() : "");
    if (what == "^") return {f.power(a.node, node.at(2).get<double>()), a.extent, a.rounds};
    if (what == "neg") return {f.apply(Expressions::Code::negate, a.node), a.extent, a.rounds};
    std::vector<int> arguments{a.node};
    Traced made = a;
    for (std::size_t k = 2; k < node.size(); ++k) {
      const Traced& b = before.at(node.at(k).get<std::size_t>());
      arguments.push_back(b.node);
      made.extent = joined(made.extent, b.extent);
      made.rounds = std::max(made.rounds, b.rounds);
    }
    made.node = computed(f, what, arguments);
    return made;
  }

  static int computed(Expressions& f, const std::string& what, const std::vector<int>& arguments) {
    static const std::map<std::string, Expressions::Code> signs{{"+", Expressions::Code::add},
                                                                {"-", Expressions::Code::subtract},
                                                                {"*", Expressions::Code::multiply},
                                                                {"/", Expressions::Code::divide}};
    if (const auto sign = signs.find(what); sign != signs.end())
      return f.apply(sign->second, arguments.at(0), arguments.at(1));
    const std::vector<std::string>& known = Expressions::functions();
    const std::size_t wanted = what == "max" || what == "min" || what == "softcap" ? 2 : 1;
    if (std::find(known.begin(), known.end(), what) == known.end())
      refuse("step", fmt::format("there is no function {}", quote(what)),
             "functions: sum, mean, " + join(known));
    if (arguments.size() != wanted)
      refuse("step", fmt::format("{} takes {}", what, plural(wanted, "value")),
             "x:sqrt(), x:max(y)");
    return f.call(what, arguments);
  }

  // A sum is an operand of the expressions that come after it.
  Traced sum(Expressions& f, const Traced& of, bool mean, const std::string& over) {
    const char* what = mean ? "mean" : "sum";
    const auto left = left_by(over);
    if (!left)
      refuse("step", fmt::format("a {} over {}", what, quote(over)),
             "x:sum() of the whole parameter, or over \"rows\", \"columns\" or \"matrix\"");
    const bool vector = mean && (of.extent == Extent::rows || of.extent == Extent::columns) &&
                        *left <= Extent::matrix;
    if (of.extent != Extent::elements && !vector)
      refuse("step",
             fmt::format("a {} over nothing: what is summed has numbers for {} alone", what,
                         text_of(of.extent)),
             "sum what is computed of p, g or a state of elements; of rows and columns there is "
             "x:mean(\"matrix\")");
    UpdateSum made{.mean = mean, .round = of.rounds};
    made.each = *left != Extent::parameter;
    if (*left == Extent::rows) made.rows = MatrixState::Side::rows;
    if (*left == Extent::columns) made.columns = MatrixState::Side::columns;
    sums_.push_back(made);
    terms_.push_back(of.node);
    const int place = place_of_sum(sums_.size() - 1);
    if (place >= most_operands)
      refuse("step",
             fmt::format("{} states and sums, of {} at most", place - first_state,
                         most_operands - first_state),
             "write the step with fewer sums");
    return {f.operand(place), *left, of.rounds + 1};
  }

  void read_results(const Json& script, const std::vector<Traced>& traced) {
    result_ = traced.at(script.at("result").get<std::size_t>()).node;
    const Json& kept = script.at("kept");
    const auto value_of = [&](const std::string& state) {
      if (!kept.contains(state))
        refuse("states",
               fmt::format("the state {} is declared, and the step never sets it", quote(state)),
               fmt::format("s.{} = …, or leave it out", state));
      return traced.at(kept.at(state).get<std::size_t>());
    };
    for (std::size_t k = 0; k < states_.size(); ++k)
      kept_.push_back({value_of(states_[k]).node, static_cast<int>(k), false});
    for (std::size_t k = 0; k < of_matrix_.size(); ++k) {
      const Traced value = value_of(of_matrix_[k].name);
      const Extent own =
          of_matrix_[k].columns == MatrixState::Side::one ? Extent::rows : Extent::columns;
      if (joined(own, value.extent) != own)
        refuse("states",
               fmt::format("the state {} has numbers for {}, and what the step sets it to for {}",
                           quote(of_matrix_[k].name), text_of(own), text_of(value.extent)),
               "take a mean over the others, as (g * g):mean(\"columns\") for rows");
      kept_.push_back({value.node, static_cast<int>(k), true});
    }
  }

  void read_average(const std::string& name) {
    const auto found = std::find(states_.begin(), states_.end(), name);
    if (found == states_.end())
      refuse("average", fmt::format("{} is no state of elements", quote(name)),
             fmt::format("states = {{ {} }}", quote(name)));
    average_ = static_cast<int>(found - states_.begin());
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

  void store(int root, const at::Tensor& made, const at::Tensor& to) const {
    if (made.defined()) {
      to.copy_(made);
    } else {
      to.fill_(node(root).number);
    }
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
  std::vector<Kept> kept_;
  std::vector<int> roots_;  // of kept_
  int result_ = 0, average_ = -1;
  std::unique_ptr<const kernel::Fused> f_;
};

}  // namespace

MESHWRIGHT_BUILT_IN(mw::optimizer<ScriptUpdate>("update",
                                                "A step that a function of the script computes."));

}  // namespace mw
