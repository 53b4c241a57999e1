// Elementwise expressions of operands a, b, c, …. The derivative of an expression is an expression
// too.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace mw {

// Nodes of expressions. Equal nodes are one node, so that expressions share what they have in
// common. A node is named by its index; operands of a node stand before it.
class Expressions {
 public:
  enum class Code : std::uint8_t {
    operand,
    number,
    add,
    subtract,
    multiply,
    divide,
    maximum,
    minimum,
    power,  // a ^ number
    negate,
    exp,
    log,
    sqrt,
    rsqrt,
    tanh,
    sigmoid,
    erf,
    relu,
    step,
    sin,
    cos,
    abs,
    sign,
    softplus,  // log(1 + exp(a))
    silu,
    gelu,  // the tanh form
    gelu_erf,
    // The derivative of one of the last three at a, and b times that: only in derivatives.
    slope_of_silu,
    slope_of_gelu,
    slope_of_gelu_erf,
    through_silu,
    through_gelu,
    through_gelu_erf,
  };
  struct Node {
    Code code;
    int a = -1, b = -1;  // the nodes of its arguments
    double number = 0;   // number: its value; power: the exponent; operand: its place, from 0
    std::uint32_t mentioned = 0;  // a bit for each operand that it depends on
    double size = 1;              // nodes of its text, in which what is shared stands repeatedly
  };

  // Places after those of operands: numbers drawn at random (Draws), uniform(1), uniform(2) and
  // normal() for each element and uniform_of_sample(1) for each sample, and training(), 1 or, where
  // nothing is drawn, 0.
  static constexpr int first_draw = 26, draws = 4, training = first_draw + draws;
  bool draws_in(int node) const {
    return nodes_[static_cast<std::size_t>(node)].mentioned >> first_draw != 0;
  }

  // The longest text that parse() reads.
  static constexpr std::size_t longest = 4096;
  // Reads "a * silu(b) + 1": + - * / ^, numbers, the operands a to z, and functions(). Returns the
  // node. Throws Error (options, "option.value") with the key "f" for anything else.
  int parse(const std::string& text);
  // How many arguments a function takes; 0: there is no function of that name.
  static std::size_t arguments_of(const std::string& function);
  // The names of all functions, for messages.
  static const std::vector<std::string>& functions();

  int operand(int place);
  int number(double value);
  // Simplifies what is plain: x * 1, x + 0, operations on numbers. x * 0 stays, as it depends on x.
  int apply(Code code, int a, int b = -1);
  // The exponent is a number.
  int power(int a, double exponent);
  // Applies a function by its name. Some functions are made of several nodes.
  int call(const std::string& function, const std::vector<int>& arguments);

  int derivative(int node, int place);
  // The derivative times the operand at `given`: the node's gradient.
  int gradient(int node, int place, int given);
  // Copies an expression of another table, with nodes of this one in place of its operands.
  int copy(const Expressions& from, int node, const std::vector<int>& operands);
  bool mentions(int node, int place) const {
    return (nodes_[static_cast<std::size_t>(node)].mentioned >> place & 1U) != 0;
  }
  bool is_number(int node, double value) const;
  int operands(int node) const;  // one more than the last operand that it mentions, draws apart
  // nodes that compute, each counted once
  int operations(const std::vector<int>& roots) const;
  std::string text(int node) const;  // parse() reads it
  // Whether it is written as a multiple of one operand: -a, a * 2, a / 3, sums of these.
  bool is_multiple(int node) const;

  // Computes the roots for operands that broadcast against each other; an operand that no root
  // mentions may be undefined. A root that is a number gives an undefined tensor.
  std::vector<at::Tensor> compute(const std::vector<int>& roots,
                                  const std::vector<at::Tensor>& operands) const;
  // The most tensors that exist at once in compute(), operands apart.
  int tensors(const std::vector<int>& roots) const;

  // Statements of C++ that compute the roots: node i is the variable `ni`, of a type `real`. What
  // `operand` returns reads the operand at a place.
  std::string statements(const std::vector<int>& roots,
                         const std::function<std::string(int place)>& operand) const;

  // The formula of a code in C++, of arguments a and b of a type `real`.
  static const char* formula(Code code);

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  int add(Node node);
  int differentiated(int node, int place);
  // For each node that a root needs the last node that reads it (a root: the number of nodes); -1
  // for the others.
  std::vector<int> last_readers(const std::vector<int>& roots) const;

  std::vector<Node> nodes_;
  std::map<std::tuple<Code, int, int, double>, int> known_;
  std::map<std::pair<int, int>, int>
      derivatives_;  // the derivative of a node by an operand's place
};

}  // namespace mw
