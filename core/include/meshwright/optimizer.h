// The interface of optimizers: the state that an optimizer keeps for each element or matrix of a
// parameter, and the ops by which a program updates a bucket.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/registration.h"

namespace mw {

// The optimizer state of a flat parameter: `tensors` of the parameter's shape, dtype and device, in
// the order of UpdateRule::states, and `of_matrix`, in the order of UpdateRule::of_matrix. Where
// `apply` reads sums, `of_matrix` has a number for each element, or one for all (UpdateCall::sums).
struct OptimizerState {
  std::vector<at::Tensor> tensors, of_matrix;
};

// The arguments of an op of an update on one rank: flat tensors of the optimizer's dtype, which the
// op updates in place.
struct UpdateCall {
  at::Tensor parameter;  // set for UpdateRule::apply only
  // The gradient of the parameter's elements, or the result of the last op of the rule. An op may
  // use it as a buffer, except for the result that the next op reads.
  at::Tensor gradient;
  OptimizerState state;
  double lr = 0;
  std::int64_t step = 0;               // counts from 0
  double grad_scale = 1;               // factor of the gradient (clipping)
  std::int64_t rows = 0, columns = 0;  // sizes of each matrix, if the rule is for matrices
  // In the order of UpdateRule::sums, those that are made already. Each has a number for each of
  // the elements, or one for all of them.
  std::vector<at::Tensor> sums;
};

class UpdateOp {
 public:
  virtual ~UpdateOp() = default;
  virtual std::string name() const = 0;  // "adamw", "momentum"
};

// An op that treats each element by itself, so that it can run on any part of the parameters. Cuts
// of the parameters change at most the last bit of results, because ATen's kernels round the
// elements after the last whole vector (16 fp32, 8 fp64) differently. Cuts at multiples of a vector
// change nothing.
class ElementOp : public UpdateOp {
 public:
  virtual void run(const UpdateCall& call) const = 0;
  // How many tensors of the elements' size it allocates at a time. An op that allocates some runs
  // on pieces of a parameter.
  virtual int temporaries() const { return 0; }
};

// An op that turns the update directions of whole matrices into the updates that are then applied.
class MatrixOp : public UpdateOp {
 public:
  struct Cost {
    double flops = 0;
    int gemms = 0;
    bool in_place = true;        // whether the result lies in the operand's own storage
    std::int64_t workspace = 0;  // most bytes allocated at a time beside operand and result
  };
  // Returns the updates of `stack` (matrices, rows, columns), and may overwrite `stack`. Updates
  // `kept` in place: for each of UpdateRule::of_matrix a tensor (matrices, its rows, its columns).
  virtual at::Tensor run(const at::Tensor& stack, const std::vector<at::Tensor>& kept) const = 0;
  virtual Cost cost(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
                    int element) const = 0;

  // For MatrixRanks::shards: in how many steps updates are made of matrices whose rows or columns
  // are cut over ranks. Each step reads a Gram matrix of the whole matrix X, which the ranks' parts
  // add up to: X^T X where rows are cut, X X^T where columns are. 0: only whole matrices will do.
  virtual int gram_steps() const { return 0; }
  // Returns what the step makes of a part, or makes it in `part` itself. `part`: (matrices, rows,
  // columns) of this rank; `gram`: (matrices, n, n), which may be overwritten.
  virtual at::Tensor gram_step(int /*step*/, const at::Tensor& part, const at::Tensor& /*gram*/,
                               bool /*rows_are_cut*/) const {
    return part;
  }
  // What a step takes where the Gram matrices are of n by n, and parts have `others` rows, or
  // columns, that are cut.
  virtual Cost gram_step_cost(std::int64_t /*matrices*/, std::int64_t /*n*/,
                              std::int64_t /*others*/, int /*element*/) const {
    return {};
  }
};

// The ranks that make the update of a matrix.
enum class MatrixRanks : std::uint8_t {
  every,  // each rank that updates elements of it
  // One rank, which sends the update to the others that have the matrix's direction. Matrices are
  // shared out to these ranks by cost, and the rule keeps no states of matrices.
  owner,
  // The ranks over which its rows or columns are cut, each of its own part (MatrixOp::gram_steps),
  // and the rule keeps no states of matrices. Other matrices: as with `every`.
  shards,
};

// Optimizer state of a matrix: a tensor, zero at first, that a MatrixOp reads and writes. Every
// rank that runs the op on the matrix has the whole tensor.
struct MatrixState {
  enum class Side : std::uint8_t { one, rows, columns };  // size 1, or that of the matrix
  std::string name;
  Side rows = Side::rows, columns = Side::columns;

  // The tensor's shape where the matrix is m by n.
  std::array<std::int64_t, 2> shape(std::int64_t m, std::int64_t n) const {
    const auto size = [&](Side s) { return s == Side::one ? 1 : s == Side::rows ? m : n; };
    return {size(rows), size(columns)};
  }
  std::int64_t elements(std::int64_t m, std::int64_t n) const {
    return shape(m, n)[0] * shape(m, n)[1];
  }
};

// A sum over the elements of a parameter: one number or, with `each`, one for each matrix, for each
// row of each matrix (Side::rows by Side::one), or for each column.
struct UpdateSum {
  MatrixState::Side rows = MatrixState::Side::one, columns = MatrixState::Side::one;
  bool each = false;
  bool mean = false;  // the sum is divided by how many elements it is of
  int round = 0;      // sums of a round may read those of the rounds before

  // The shape of the sums where there are so many matrices, of m by n.
  std::array<std::int64_t, 3> shape(std::int64_t matrices, std::int64_t m, std::int64_t n) const {
    const auto [a, b] = MatrixState{"", rows, columns}.shape(m, n);
    return {each ? matrices : 1, a, b};
  }
};

// The terms of the sums that an update reads, and the state that it keeps of them. Sums are made in
// float64, whatever the ranks that have parts of the parameter.
class UpdateTerms : public UpdateOp {
 public:
  // The terms of UpdateRule::sums[sum]: a number for each element. Changes nothing of the call, and
  // does not apply grad_scale to the gradient in place.
  virtual at::Tensor terms(std::size_t sum, const UpdateCall& call) const = 0;
  // Updates in place the states of matrices, of UpdateRule::of_matrix. They and the sums have the
  // shape (matrices, rows, columns), with the size 1 for a side that they lack.
  virtual void keep(const UpdateCall&) const {}
};

// What an optimizer may know of a parameter when it chooses its group.
struct ParameterFacts {
  std::string name;               // "layers.0.attention.q.weight"
  std::vector<std::string> dims;  // names of its dims
  std::vector<std::int64_t> shape;
  int layer = -1;       // the transformer layer that reads it; -1: none
  bool matrix = false;  // a weight of a linear, a router or experts in a layer
};

// How the parameters of a bucket are updated. The ops belong to the optimizer.
struct UpdateRule {
  std::vector<std::string> states;  // names of the state tensors per element, zero at first
  // For a rule of matrices: `direction` turns gradients into directions, and `whole` turns each
  // whole matrix of directions into an update. Null: `apply` reads the gradient itself.
  const ElementOp* direction = nullptr;
  const MatrixOp* whole = nullptr;
  const ElementOp* apply = nullptr;           // updates the parameter
  std::vector<MatrixState> of_matrix = {};    // state per matrix, for `whole` or of `sums`
  double lr_scale = 1;                        // a factor of the step's learning rate
  MatrixRanks matrices = MatrixRanks::every;  // where there is a `whole`
  // The sums that `apply` reads, and the op that gives their terms.
  std::vector<UpdateSum> sums = {};
  const UpdateTerms* summing = nullptr;
  // The state, of `states`, that is an average of the parameter: it begins as the parameter, and
  // evaluation and exports may read it in the parameter's place. -1: there is none.
  int average = -1;

  int rounds() const {
    int rounds = 0;
    for (const UpdateSum& sum : sums) rounds = std::max(rounds, sum.round + 1);
    return rounds;
  }
  // Whether it treats parameters as matrices.
  bool of_matrices() const {
    return whole != nullptr || !of_matrix.empty() ||
           std::any_of(sums.begin(), sums.end(), [](const UpdateSum& s) { return s.each; });
  }
};

// The groups of an optimizer that treats matrices of layers apart: group 1; all else is group 0.
inline std::vector<int> matrices_apart(const std::vector<ParameterFacts>& parameters) {
  std::vector<int> groups;
  for (const ParameterFacts& parameter : parameters) groups.push_back(parameter.matrix ? 1 : 0);
  return groups;
}

// An optimizer is immutable and thread-safe, since all ranks share it. Its constructor takes (const
// Values&), checks what the declarations of options cannot, and throws Error (options).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual double lr() const = 0;  // the learning rate that the options give, for schedules
  // The largest norm of the gradients of all parameters, to which they are clipped; 0: no clipping.
  virtual double clip() const = 0;
  // How many groups of parameters have a rule of their own, and the rule of a group.
  virtual int groups() const { return 1; }
  virtual UpdateRule rule(int group) const = 0;
  // The group of each of the parameters, which are all that are trained. Throws Error (plan,
  // "optimizer.groups") with the names of parameters that have none.
  virtual std::vector<int> groups_of(const std::vector<ParameterFacts>& parameters) const {
    return std::vector<int>(parameters.size(), 0);
  }

  // For use without a program: make_state() returns the states at first, and step() runs one
  // update, whose rule has `apply` alone. `param` and `grad` are contiguous, and have one shape and
  // dtype, fp32 or fp64.
  OptimizerState make_state(const at::Tensor& param, int group = 0) const {
    OptimizerState state;
    const UpdateRule own = rule(group);
    for (int i = 0, n = static_cast<int>(own.states.size()); i < n; ++i)
      state.tensors.push_back(i == own.average
                                  ? param.clone(at::MemoryFormat::Contiguous)
                                  : at::zeros_like(param, at::MemoryFormat::Contiguous));
    return state;
  }
  void step(const at::Tensor& param, const at::Tensor& grad, OptimizerState& state, double lr,
            std::int64_t step_index, double grad_scale = 1.0, int group = 0) const {
    if (param.numel() == 0) return;
    const UpdateRule own = rule(group);
    own.apply->run({param, grad, state, lr * own.lr_scale, step_index, grad_scale});
  }
};

// The factor that scales gradients of norm `norm` down to norm `clip`: min(1, clip / (norm +
// 1e-6)), or 1 if clip is 0. The 1e-6 is that of torch.nn.utils.clip_grad_norm_. A NaN norm gives
// NaN.
inline double clip_factor(double norm, double clip) {
  if (clip == 0) return 1.0;
  const double factor = clip / (norm + 1e-6);
  return factor > 1.0 ? 1.0 : factor;  // not std::min, so that NaN stays NaN
}

template <>
struct KindOf<Optimizer> {
  static constexpr Kind kind = Kind::optimizer;
  using Make = std::unique_ptr<Optimizer>(const Values& values);
};
template <class Class>
constexpr Registration optimizer(const char* name = nullptr, const char* doc = nullptr) {
  return registration<Optimizer, Class>(name, doc);
}

}  // namespace mw
