// Reads, differentiates and computes elementwise expressions.
#include "expression.h"

#include <ATen/ExpandUtils.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <stdexcept>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

using Code = Expressions::Code;

const std::map<std::string, Code>& simple_functions() {
  static const std::map<std::string, Code> codes{
      {"exp", Code::exp},     {"log", Code::log},           {"sqrt", Code::sqrt},
      {"rsqrt", Code::rsqrt}, {"tanh", Code::tanh},         {"sigmoid", Code::sigmoid},
      {"erf", Code::erf},     {"relu", Code::relu},         {"step", Code::step},
      {"sin", Code::sin},     {"cos", Code::cos},           {"abs", Code::abs},
      {"sign", Code::sign},   {"softplus", Code::softplus}, {"silu", Code::silu},
      {"gelu", Code::gelu},   {"gelu_erf", Code::gelu_erf}, {"max", Code::maximum},
      {"min", Code::minimum}};
  return codes;
}

// Draws as they are written, in the order of their places.
constexpr std::array<const char*, Expressions::draws + 1> draw_texts{
    "uniform(1)", "uniform(2)", "uniform_of_sample(1)", "normal()", "training()"};

const char* name_of(Code code) {
  for (const auto& [name, one] : simple_functions()) {
    if (one == code) return name.c_str();
  }
  return "";
}

int arity(Code code) {
  switch (code) {
    case Code::operand:
    case Code::number:
      return 0;
    case Code::add:
    case Code::subtract:
    case Code::multiply:
    case Code::divide:
    case Code::maximum:
    case Code::minimum:
    case Code::through_silu:
    case Code::through_gelu:
    case Code::through_gelu_erf:
      return 2;
    default:
      return 1;
  }
}

// The codes of slopes, each with that of a number times the slope.
constexpr std::array<std::pair<Code, Code>, 3> slopes{
    {{Code::slope_of_silu, Code::through_silu},
     {Code::slope_of_gelu, Code::through_gelu},
     {Code::slope_of_gelu_erf, Code::through_gelu_erf}}};

std::optional<Code> through_of(Code slope) {
  for (const auto& [one, through] : slopes) {
    if (one == slope) return through;
  }
  return std::nullopt;
}

// What the code of a node stands for: a formula of its arguments, in two forms that are of one
// text, and ATen's functions of one tensor where these compute it.
struct Definition {
  double (*value)(double a, double b);
  const char* formula;  // C++, for kernels: `real` is the type in which they compute
  at::Tensor (*plain)(const at::Tensor&) = nullptr;
  at::Tensor& (*in_place)(at::Tensor&) = nullptr;
};

#define MW_FORMULA(...)                                                      \
  []<class real>([[maybe_unused]] real a, [[maybe_unused]] real b) -> real { \
    return __VA_ARGS__;                                                      \
  },                                                                         \
      #__VA_ARGS__

// As ATen's functions do, all but sign and step give NaN for NaN; sign(0) and step(0) are 0.
const std::map<Code, Definition>& definitions() {
  static const std::map<Code, Definition> all{
      {Code::add, {MW_FORMULA(a + b)}},
      {Code::subtract, {MW_FORMULA(a - b)}},
      {Code::multiply, {MW_FORMULA(a * b)}},
      {Code::divide, {MW_FORMULA(a / b)}},
      {Code::maximum, {MW_FORMULA(a > b || a != a ? a : b)}},
      {Code::minimum, {MW_FORMULA(a < b || a != a ? a : b)}},
      {Code::power, {MW_FORMULA(pow(a, b))}},
      {Code::negate, {MW_FORMULA(-a), at::neg, at::neg_}},
      {Code::exp, {MW_FORMULA(exp(a)), at::exp, at::exp_}},
      {Code::log, {MW_FORMULA(log(a)), at::log, at::log_}},
      {Code::sqrt, {MW_FORMULA(sqrt(a)), at::sqrt, at::sqrt_}},
      {Code::rsqrt, {MW_FORMULA(1 / sqrt(a)), at::rsqrt, at::rsqrt_}},
      {Code::tanh, {MW_FORMULA(tanh(a)), at::tanh, at::tanh_}},
      {Code::sigmoid, {MW_FORMULA(1 / (1 + exp(-a))), at::sigmoid, at::sigmoid_}},
      {Code::erf, {MW_FORMULA(erf(a)), at::erf, at::erf_}},
      {Code::relu, {MW_FORMULA(a < 0 ? 0 : a), at::relu, at::relu_}},
      {Code::sin, {MW_FORMULA(sin(a)), at::sin, at::sin_}},
      {Code::cos, {MW_FORMULA(cos(a)), at::cos, at::cos_}},
      {Code::abs, {MW_FORMULA(fabs(a)), at::abs, at::abs_}},
      {Code::step, {MW_FORMULA(a > 0 ? 1 : 0)}},
      {Code::sign,
       {MW_FORMULA(a > 0   ? 1
                   : a < 0 ? -1
                           : 0)}},
      // Exact for large numbers too, and it does not overflow.
      {Code::softplus, {MW_FORMULA((a < 0 ? 0 : a) + log1p(exp(-fabs(a))))}},
      {Code::silu, {MW_FORMULA(a / (1 + exp(-a)))}},
      {Code::gelu,
       {MW_FORMULA(a / 2 *
                   (1 + tanh(real(0.7978845608028654) * (a + real(0.044715) * a * a * a))))}},
      {Code::gelu_erf, {MW_FORMULA(a / 2 * (1 + erf(a * real(0.7071067811865476))))}},
      {Code::slope_of_silu, {MW_FORMULA((1 + a * (1 - 1 / (1 + exp(-a)))) / (1 + exp(-a)))}},
      // The tanh form's slope, with 1 - tanh(u)^2 as (1 - tanh(u)) (1 + tanh(u)).
      {Code::slope_of_gelu,
       {MW_FORMULA(
           (1 + tanh(real(0.7978845608028654) * (a + real(0.044715) * a * a * a))) / 2 *
           (1 + a * (1 - tanh(real(0.7978845608028654) * (a + real(0.044715) * a * a * a))) *
                    real(0.7978845608028654) * (1 + real(0.134145) * a * a)))}},
      {Code::slope_of_gelu_erf,
       {MW_FORMULA((1 + erf(a * real(0.7071067811865476))) / 2 +
                   a * exp(a * a / -2) * real(0.3989422804014327))}}};
  return all;
}
#undef MW_FORMULA

double value_of(Code code, double a, double b) {
  const auto found = definitions().find(code);
  if (found == definitions().end()) throw std::logic_error("no function of numbers");
  return found->second.value(a, b);
}

// An argument of a node: a tensor, or a number if that is undefined.
struct Argument {
  at::Tensor tensor;
  double number = 0;
  // Whether nothing reads the tensor later, so that it may hold the result.
  bool free = false;
};

at::Tensor computed_from_two(Code code, const Argument& a, const Argument& b) {
  const bool left = !a.tensor.defined();  // a number stands on the left
  const Argument& one = left ? b : a;
  const at::Tensor& x = one.tensor;
  const bool both = !left && b.tensor.defined();
  const at::Tensor other =
      both ? b.tensor : at::scalar_tensor(left ? a.number : b.number, x.options().device(at::kCPU));
  // `to`: a tensor that may hold the result, because it is free and has the result's shape.
  const auto holds = [&](const at::Tensor& tensor, const at::Tensor& beside) {
    return tensor.dim() >= beside.dim() && at::is_expandable_to(beside.sizes(), tensor.sizes());
  };
  at::Tensor to;
  if (one.free && holds(x, other)) to = x;
  if (!to.defined() && both && b.free && holds(other, x)) to = other;
  const at::Tensor& first = left ? other : x;
  const at::Tensor& second = left ? x : other;
  const auto into = [&](auto plain, auto out) { return to.defined() ? out(to) : plain(); };
  switch (code) {
    case Code::add:
      return into([&] { return at::add(first, second); },
                  [&](at::Tensor& t) { return at::add_out(t, first, second); });
    case Code::subtract:
      return into([&] { return at::sub(first, second); },
                  [&](at::Tensor& t) { return at::sub_out(t, first, second); });
    case Code::multiply:
      return into([&] { return at::mul(first, second); },
                  [&](at::Tensor& t) { return at::mul_out(t, first, second); });
    case Code::divide:
      return into([&] { return at::div(first, second); },
                  [&](at::Tensor& t) { return at::div_out(t, first, second); });
    case Code::maximum:
      return into([&] { return at::maximum(first, second); },
                  [&](at::Tensor& t) { return at::maximum_out(t, first, second); });
    default:
      return into([&] { return at::minimum(first, second); },
                  [&](at::Tensor& t) { return at::minimum_out(t, first, second); });
  }
}

// `given` times the derivative at x.
at::Tensor through(Code code, const at::Tensor& given, const at::Tensor& x) {
  if (code == Code::through_silu || code == Code::slope_of_silu) return at::silu_backward(given, x);
  const bool exact = code == Code::through_gelu_erf || code == Code::slope_of_gelu_erf;
  return at::gelu_backward(given, x, exact ? "none" : "tanh");
}

at::Tensor computed(const Expressions::Node& node, const Argument& a, const Argument& b) {
  switch (node.code) {
    case Code::softplus:
      return at::relu(a.tensor).add_(a.tensor.abs().neg_().exp_().log1p_());
    case Code::silu:
      return at::silu(a.tensor);
    case Code::gelu:
      return at::gelu(a.tensor, "tanh");
    case Code::gelu_erf:
      return at::gelu(a.tensor);
    case Code::slope_of_silu:
    case Code::slope_of_gelu:
    case Code::slope_of_gelu_erf:
      return through(node.code, at::ones_like(a.tensor), a.tensor);
    case Code::through_silu:
    case Code::through_gelu:
    case Code::through_gelu_erf: {
      // ATen's backward kernels of activations take operands of one shape.
      const at::Tensor given =
          b.tensor.defined() ? b.tensor : at::scalar_tensor(b.number, a.tensor.options());
      const auto both = at::broadcast_tensors({given, a.tensor});
      return through(node.code, both[0], both[1]);
    }
    case Code::power:
      return at::pow(a.tensor, node.number);
    case Code::sign:
      return at::sign(a.tensor);
    case Code::step:
      return at::gt(a.tensor, 0).to(a.tensor.scalar_type());
    default:
      break;
  }
  const Definition& unary = definitions().at(node.code);
  if (unary.plain == nullptr) return computed_from_two(node.code, a, b);
  if (!a.free) return unary.plain(a.tensor);
  at::Tensor to = a.tensor;
  unary.in_place(to);
  return to;
}

class Reader {
 public:
  Reader(Expressions& into, const std::string& text) : into_(into), text_(text) {}

  int all() {
    const int node = sum();
    space();
    if (at_ < text_.size()) refuse(fmt::format("{} is left over", quote(text_.substr(at_))));
    return node;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Stage::options, "option.value", "f",
                fmt::format("{} cannot be read: {}", quote(text_), why),
                "an expression of a, b, …: \"a * silu(b) + 1\"; functions: " +
                    join(Expressions::functions()));
  }
  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool eat(char wanted) {
    space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool next_is(int (*kind)(int)) const {
    return at_ < text_.size() && kind(static_cast<unsigned char>(text_[at_])) != 0;
  }

  int sum() {
    int node = product();
    for (;;) {
      if (eat('+')) {
        node = into_.apply(Code::add, node, product());
      } else if (eat('-')) {
        node = into_.apply(Code::subtract, node, product());
      } else {
        return node;
      }
    }
  }
  int product() {
    int node = sign();
    for (;;) {
      if (eat('*')) {
        node = into_.apply(Code::multiply, node, sign());
      } else if (eat('/')) {
        node = into_.apply(Code::divide, node, sign());
      } else {
        return node;
      }
    }
  }
  int sign() {
    if (eat('-')) return into_.apply(Code::negate, sign());
    const int base = single();
    if (!eat('^')) return base;
    const int exponent = sign();
    const Expressions::Node& node = into_.nodes()[static_cast<std::size_t>(exponent)];
    if (node.code != Code::number) refuse("an exponent is a number");
    return into_.power(base, node.number);
  }
  int single() {
    space();
    if (at_ == text_.size()) refuse("it ends early");
    if (eat('(')) {
      const int node = sum();
      if (!eat(')')) refuse("a ')' is missing");
      return node;
    }
    if (next_is(std::isdigit) || text_[at_] == '.') return number();
    std::string word;
    while (next_is(std::isalnum) || (at_ < text_.size() && text_[at_] == '_')) word += text_[at_++];
    if (word.empty()) refuse(fmt::format("{} is no operand", quote(text_.substr(at_, 1))));
    if (eat('(')) return call(word);
    if (word.size() != 1 || std::islower(static_cast<unsigned char>(word[0])) == 0)
      refuse(fmt::format("{} is no operand: they are a, b, …", quote(word)));
    return into_.operand(word[0] - 'a');
  }
  int number() {
    const char* begin = text_.c_str() + at_;
    char* end = nullptr;
    const double value = std::strtod(begin, &end);  // std::stod refuses subnormal numbers
    const auto used = static_cast<std::size_t>(end - begin);
    if (used == 0) refuse(fmt::format("{} is no number", quote(text_.substr(at_, 20))));
    at_ += used;
    return into_.number(value);
  }
  // The rest of a draw, whose name has been read: its number in brackets.
  std::optional<int> draw(const std::string& word) {
    const std::size_t end = text_.find(')', at_);
    std::string text =
        word + "(" + text_.substr(at_, end == std::string::npos ? end : end - at_ + 1);
    std::erase_if(text, [](char c) { return std::isspace(static_cast<unsigned char>(c)); });
    const auto found = std::find(draw_texts.begin(), draw_texts.end(), text);
    if (found == draw_texts.end()) {
      const bool draws = word == "normal" || word == "uniform" || word == "uniform_of_sample" ||
                         word == "training";
      if (draws && end == std::string::npos) refuse("a ')' is missing");
      if (draws) refuse("draws are " + join({draw_texts.begin(), draw_texts.end()}));
      return std::nullopt;
    }
    at_ = end + 1;
    return into_.operand(Expressions::first_draw + static_cast<int>(found - draw_texts.begin()));
  }
  int call(const std::string& word) {
    if (const auto drawn = draw(word)) return *drawn;
    std::vector<int> arguments{sum()};
    while (eat(',')) arguments.push_back(sum());
    if (!eat(')')) refuse("a ')' is missing");
    const std::size_t wanted = Expressions::arguments_of(word);
    if (wanted == 0) refuse(fmt::format("there is no function {}", quote(word)));
    if (arguments.size() != wanted)
      refuse(fmt::format("{} takes {} argument{}", word, wanted, wanted == 1 ? "" : "s"));
    return into_.call(word, arguments);
  }

  Expressions& into_;
  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

bool Expressions::is_multiple(int node) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  const auto number = [&](int at) {
    return nodes_[static_cast<std::size_t>(at)].code == Code::number;
  };
  switch (n.code) {
    case Code::operand:
      return true;
    case Code::negate:
      return is_multiple(n.a);
    case Code::add:
    case Code::subtract:
      return is_multiple(n.a) && is_multiple(n.b);
    case Code::multiply:
      return (number(n.a) && is_multiple(n.b)) || (number(n.b) && is_multiple(n.a));
    case Code::divide:
      return number(n.b) && is_multiple(n.a);
    default:
      return false;
  }
}

int Expressions::parse(const std::string& text) {
  if (text.size() > longest) {
    throw Error(Stage::options, "option.value", "f",
                fmt::format("an expression of {} characters, and {} may be", text.size(), longest),
                "write it as several maps");
  }
  return Reader(*this, text).all();
}

std::size_t Expressions::arguments_of(const std::string& function) {
  const std::vector<std::string>& all = functions();
  if (std::find(all.begin(), all.end(), function) == all.end()) return 0;
  return function == "max" || function == "min" || function == "softcap" ? 2 : 1;
}

const std::vector<std::string>& Expressions::functions() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all{"square", "softcap"};
    for (const auto& [name, code] : simple_functions()) all.push_back(name);
    std::sort(all.begin(), all.end());
    return all;
  }();
  return names;
}

int Expressions::add(Node node) {
  const auto [known, fresh] =
      known_.try_emplace({node.code, node.a, node.b, node.number}, static_cast<int>(nodes_.size()));
  if (!fresh) return known->second;
  if (node.code == Code::operand) node.mentioned = 1U << static_cast<unsigned>(node.number);
  for (int argument : {node.a, node.b}) {
    if (argument < 0) continue;
    node.mentioned |= nodes_[static_cast<std::size_t>(argument)].mentioned;
    node.size += nodes_[static_cast<std::size_t>(argument)].size;
  }
  nodes_.push_back(node);
  return known->second;
}

int Expressions::operand(int place) {
  return add({Code::operand, -1, -1, static_cast<double>(place)});
}

int Expressions::number(double value) {
  if (!std::isfinite(value) || std::abs(value) > std::numeric_limits<float>::max()) {
    throw Error(Stage::options, "option.value", "f", "a number in it is too large for fp32",
                "an expression of a, b, …: \"a * silu(b) + 1\"");
  }
  return add({Code::number, -1, -1, value});
}

bool Expressions::is_number(int node, double value) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  return n.code == Code::number && n.number == value;
}

int Expressions::apply(Code code, int a, int b) {
  const Node first = nodes_[static_cast<std::size_t>(a)];
  const Node second = b >= 0 ? nodes_[static_cast<std::size_t>(b)] : Node{Code::number};
  if (first.code == Code::number && second.code == Code::number)
    return number(value_of(code, first.number, second.number));
  switch (code) {
    case Code::add:
      if (is_number(a, 0)) return b;
      if (is_number(b, 0)) return a;
      break;
    case Code::subtract:
      if (is_number(b, 0)) return a;
      if (is_number(a, 0)) return apply(Code::negate, b);
      break;
    case Code::multiply:
      if (is_number(a, 1)) return b;
      if (is_number(b, 1)) return a;
      if (is_number(a, -1)) return apply(Code::negate, b);
      if (is_number(b, -1)) return apply(Code::negate, a);
      if (const auto through = through_of(first.code)) return add({*through, first.a, b});
      if (const auto through = through_of(second.code)) return add({*through, second.a, a});
      break;
    case Code::divide:
      if (is_number(b, 1)) return a;
      break;
    case Code::negate:
      if (first.code == Code::negate) return first.a;
      break;
    default:
      break;
  }
  return add({code, a, b});
}

int Expressions::power(int a, double exponent) {
  const Node& base = nodes_[static_cast<std::size_t>(a)];
  if (base.code == Code::number) return number(std::pow(base.number, exponent));
  if (exponent == 0) return number(1);
  if (exponent == 1) return a;
  if (exponent == 2) return apply(Code::multiply, a, a);
  if (exponent == 3) return apply(Code::multiply, a, apply(Code::multiply, a, a));
  if (exponent == 0.5) return apply(Code::sqrt, a);
  if (exponent == -0.5) return apply(Code::rsqrt, a);
  if (exponent == -1) return apply(Code::divide, number(1), a);
  return add({Code::power, a, -1, exponent});
}

int Expressions::call(const std::string& function, const std::vector<int>& arguments) {
  const int x = arguments.at(0);
  const auto times = [&](int a, int b) { return apply(Code::multiply, a, b); };
  if (function == "square") return times(x, x);
  if (function == "softcap") {  // tanh(x / cap) * cap
    return times(apply(Code::tanh, apply(Code::divide, x, arguments.at(1))), arguments.at(1));
  }
  const Code code = simple_functions().at(function);
  return apply(code, x, arity(code) == 2 ? arguments.at(1) : -1);
}

int Expressions::derivative(int node, int place) {
  const std::pair key{node, place};
  if (const auto known = derivatives_.find(key); known != derivatives_.end()) return known->second;
  const int found = mentions(node, place) ? differentiated(node, place) : number(0);
  return derivatives_[key] = found;
}

int Expressions::gradient(int node, int place, int given) {
  const int slope = derivative(node, place);
  return apply(Code::multiply, operand(given), slope);
}

int Expressions::differentiated(int node, int place) {
  const Node n = nodes_[static_cast<std::size_t>(node)];  // a copy: the table grows
  const auto of = [&](int argument) { return derivative(argument, place); };
  const auto times = [&](int a, int b) {
    return is_number(a, 0) || is_number(b, 0) ? number(0) : apply(Code::multiply, a, b);
  };
  const auto over = [&](int a, int b) {
    return is_number(a, 0) ? number(0) : apply(Code::divide, a, b);
  };
  const auto chain = [&](int outer) { return times(outer, of(n.a)); };
  switch (n.code) {
    case Code::operand:
      return number(1);
    case Code::number:
    case Code::step:
    case Code::sign:
      return number(0);
    case Code::add:
    case Code::subtract:
      return apply(n.code, of(n.a), of(n.b));
    case Code::multiply:
      return apply(Code::add, times(of(n.a), n.b), times(n.a, of(n.b)));
    case Code::divide:  // (a' - node * b') / b
      return over(apply(Code::subtract, of(n.a), times(node, of(n.b))), n.b);
    case Code::maximum:
    case Code::minimum: {  // where both are equal, the second one's
      const bool most = n.code == Code::maximum;
      const int first =
          apply(Code::step, apply(Code::subtract, most ? n.a : n.b, most ? n.b : n.a));
      const int second = apply(Code::subtract, number(1), first);
      return apply(Code::add, times(first, of(n.a)), times(second, of(n.b)));
    }
    case Code::power:
      return chain(times(number(n.number), power(n.a, n.number - 1)));
    case Code::negate:
      return apply(Code::negate, of(n.a));
    case Code::exp:
      return chain(node);
    case Code::log:
      return over(of(n.a), n.a);
    case Code::sqrt:
      return chain(apply(Code::divide, number(0.5), node));
    case Code::rsqrt:
      return chain(apply(Code::divide, times(number(-0.5), node), n.a));
    case Code::tanh:
      return chain(apply(Code::subtract, number(1), times(node, node)));
    case Code::sigmoid:
      return chain(times(node, apply(Code::subtract, number(1), node)));
    case Code::erf:
      return chain(times(number(2 / std::sqrt(std::numbers::pi)),
                         apply(Code::exp, apply(Code::negate, times(n.a, n.a)))));
    case Code::relu:
      return chain(apply(Code::step, n.a));
    case Code::sin:
      return chain(apply(Code::cos, n.a));
    case Code::cos:
      return chain(apply(Code::negate, apply(Code::sin, n.a)));
    case Code::abs:
      return chain(apply(Code::sign, n.a));
    case Code::softplus:
      return chain(apply(Code::sigmoid, n.a));
    case Code::silu:
      return chain(apply(Code::slope_of_silu, n.a));
    case Code::gelu:
      return chain(apply(Code::slope_of_gelu, n.a));
    case Code::gelu_erf:
      return chain(apply(Code::slope_of_gelu_erf, n.a));
    default:  // slope_of_… and through_…: derivatives are not differentiated again
      break;
  }
  throw std::logic_error("an expression's code is unknown");
}

int Expressions::copy(const Expressions& from, int node, const std::vector<int>& operands) {
  std::vector<int> copies(from.nodes_.size(), -1);
  const std::function<int(int)> one = [&](int at) {
    int& done = copies[static_cast<std::size_t>(at)];
    if (done >= 0) return done;
    const Node& n = from.nodes_[static_cast<std::size_t>(at)];
    if (n.code == Code::operand && n.number >= first_draw)
      return done = operand(static_cast<int>(n.number));
    if (n.code == Code::operand) return done = operands.at(static_cast<std::size_t>(n.number));
    if (n.code == Code::number) return done = number(n.number);
    const int a = one(n.a);
    if (n.code == Code::power) return done = power(a, n.number);
    return done = apply(n.code, a, n.b >= 0 ? one(n.b) : -1);
  };
  return one(node);
}

std::vector<int> Expressions::last_readers(const std::vector<int>& roots) const {
  std::vector<int> last(nodes_.size(), -1);
  for (int root : roots) last[static_cast<std::size_t>(root)] = static_cast<int>(nodes_.size());
  for (int at = static_cast<int>(nodes_.size()) - 1; at >= 0; --at) {
    if (last[static_cast<std::size_t>(at)] < 0) continue;
    const Node& n = nodes_[static_cast<std::size_t>(at)];
    for (int argument : {n.a, n.b}) {
      if (argument >= 0 && last[static_cast<std::size_t>(argument)] < 0)
        last[static_cast<std::size_t>(argument)] = at;
    }
  }
  return last;
}

int Expressions::operands(int node) const {
  constexpr std::uint32_t given = (1U << first_draw) - 1;
  return static_cast<int>(std::bit_width(nodes_[static_cast<std::size_t>(node)].mentioned & given));
}

int Expressions::operations(const std::vector<int>& roots) const {
  const std::vector<int> last = last_readers(roots);
  int count = 0;
  for (std::size_t at = 0; at < nodes_.size(); ++at)
    count += last[at] >= 0 && arity(nodes_[at].code) > 0 ? 1 : 0;
  return count;
}

namespace {

// A number as parse() reads it anywhere: a negative one in brackets.
std::string number_text(double number) {
  return number < 0 ? fmt::format("(-{})", -number) : fmt::format("{}", number);
}

}  // namespace

std::string Expressions::text(int node) const {
  const Node& n = nodes_[static_cast<std::size_t>(node)];
  static const std::map<Code, const char*> signs{
      {Code::add, "+"}, {Code::subtract, "-"}, {Code::multiply, "*"}, {Code::divide, "/"}};
  if (n.code == Code::operand && n.number >= first_draw)
    return draw_texts[static_cast<std::size_t>(n.number) - first_draw];
  if (n.code == Code::operand)
    return std::string(1, static_cast<char>('a' + static_cast<int>(n.number)));
  if (n.code == Code::number) return number_text(n.number);
  if (const auto sign = signs.find(n.code); sign != signs.end())
    return fmt::format("({} {} {})", text(n.a), sign->second, text(n.b));
  if (n.code == Code::negate) return fmt::format("(-{})", text(n.a));
  if (n.code == Code::power) return fmt::format("({} ^ {})", text(n.a), number_text(n.number));
  if (arity(n.code) == 2) return fmt::format("{}({}, {})", name_of(n.code), text(n.a), text(n.b));
  return fmt::format("{}({})", name_of(n.code), text(n.a));
}

const char* Expressions::formula(Code code) {
  return definitions().at(code).formula;
}

std::string Expressions::statements(const std::vector<int>& roots,
                                    const std::function<std::string(int place)>& operand) const {
  const std::vector<int> last = last_readers(roots);
  std::string text;
  for (std::size_t at = 0; at < nodes_.size(); ++at) {
    const Node& n = nodes_[at];
    if (last[at] < 0) continue;
    if (n.code == Code::operand || n.code == Code::number) {
      text += fmt::format("const real n{} = {};\n", at,
                          n.code == Code::operand ? operand(static_cast<int>(n.number))
                                                  : fmt::format("real({})", n.number));
      continue;
    }
    std::string arguments = fmt::format("a = n{}", n.a), formula;
    for (const auto& [slope, through] : slopes) {
      if (n.code == through)
        formula = fmt::format("n{} * ({})", n.b, definitions().at(slope).formula);
    }
    if (formula.empty()) {
      formula = definitions().at(n.code).formula;
      if (n.b >= 0) arguments += fmt::format(", b = n{}", n.b);
      if (n.code == Code::power) arguments += fmt::format(", b = real({})", n.number);
    }
    text += fmt::format("real n{0};\n{{ const real {1}; n{0} = {2}; }}\n", at, arguments, formula);
  }
  return text;
}

std::vector<at::Tensor> Expressions::compute(const std::vector<int>& roots,
                                             const std::vector<at::Tensor>& operands) const {
  const std::vector<int> last = last_readers(roots);
  std::vector<at::Tensor> made(nodes_.size());
  for (std::size_t at = 0; at < nodes_.size(); ++at) {
    const Node& n = nodes_[at];
    if (last[at] < 0 || n.code == Code::number) continue;
    if (n.code == Code::operand) {
      made[at] = operands.at(static_cast<std::size_t>(n.number));
      continue;
    }
    const auto argument = [&](int node) {
      if (node < 0) return Argument();
      const auto of = static_cast<std::size_t>(node);
      const bool free = last[of] == static_cast<int>(at) && arity(nodes_[of].code) > 0;
      return Argument{made[of], nodes_[of].number, free};
    };
    made[at] = computed(n, argument(n.a), argument(n.b));
    for (int read : {n.a, n.b}) {
      if (read >= 0 && last[static_cast<std::size_t>(read)] == static_cast<int>(at))
        made[static_cast<std::size_t>(read)] = at::Tensor();
    }
  }
  std::vector<at::Tensor> results;
  for (int root : roots) results.push_back(made[static_cast<std::size_t>(root)]);
  return results;
}

int Expressions::tensors(const std::vector<int>& roots) const {
  const std::vector<int> last = last_readers(roots);
  int now = 0, most = 0;
  for (std::size_t at = 0; at < nodes_.size(); ++at) {
    const Node& n = nodes_[at];
    if (last[at] < 0 || arity(n.code) == 0) continue;
    most = std::max(most, ++now);
    for (int argument : {n.a, n.a == n.b ? -1 : n.b}) {
      if (argument >= 0 && last[static_cast<std::size_t>(argument)] == static_cast<int>(at) &&
          arity(nodes_[static_cast<std::size_t>(argument)].code) > 0)
        --now;
    }
  }
  return most;
}

}  // namespace mw
