// Sizes of an op's dims on one rank, defaults of OpType's methods, and checks of declared costs.
#include "meshwright/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "meshwright/engine/op_cost.h"
#include "meshwright/error.h"

namespace mw {

const char* name_of(OpClass op_class) {
  switch (op_class) {
    case OpClass::matrix_product:
      return "matrix_product";
    case OpClass::attention:
      return "attention";
    case OpClass::embedding:
      return "embedding";
    case OpClass::norm:
      return "norm";
    case OpClass::elementwise:
      return "elementwise";
    case OpClass::loss:
      return "loss";
    case OpClass::loss_part:
      return "loss_part";
    case OpClass::routing:
      return "routing";
    case OpClass::dispatch:
      return "dispatch";
    case OpClass::combine:
      return "combine";
    case OpClass::other:
      break;
  }
  return "other";
}

const char* name_of(Piece piece) {
  static constexpr std::array names{"forward", "backward", "dgrad", "wgrad"};
  return names.at(static_cast<std::size_t>(piece));
}

void LocalDims::set(const LocalDim& local) {
  for (LocalDim& known : list_) {
    if (known.dim == local.dim) {
      known = local;
      return;
    }
  }
  list_.push_back(local);
}

const LocalDim& LocalDims::at(Dim dim) const {
  for (const LocalDim& known : list_) {
    if (known.dim == dim) return known;
  }
  throw std::out_of_range(fmt::format("the op has no dim \"{}\"", dim.name()));
}

bool LocalDims::has(Dim dim) const {
  return std::any_of(list_.begin(), list_.end(), [&](const LocalDim& l) { return l.dim == dim; });
}

std::vector<std::int64_t> LocalDims::shape(const Dims& dims) const {
  std::vector<std::int64_t> sizes;
  sizes.reserve(dims.size());
  for (Dim dim : dims) sizes.push_back(at(dim).size);
  return sizes;
}

bool Sparse::has(const Dims& other) const {
  return !dims.empty() && std::all_of(dims.begin(), dims.end(), [&](Dim dim) {
    return std::find(other.begin(), other.end(), dim) != other.end();
  });
}

std::int64_t Sparse::rows(double cells) const {
  return static_cast<std::int64_t>(std::ceil(cells * share - 1e-9));
}

std::int64_t LocalDims::count(const Dims& dims) const {
  const bool sparse = sparse_.has(dims);
  std::int64_t cells = 1, product = 1;
  for (Dim dim : dims) {
    const auto& grid = sparse_.dims;
    const bool cell = sparse && std::find(grid.begin(), grid.end(), dim) != grid.end();
    (cell ? cells : product) *= at(dim).size;
  }
  return sparse ? sparse_.rows(static_cast<double>(cells)) * product : product;
}

namespace {
[[noreturn]] void lacks(const Op& op, Piece piece) {
  throw std::logic_error(
      fmt::format("op \"{}\": kind \"{}\" has no {}", op.name, op.kind(), name_of(piece)));
}
}  // namespace

std::optional<Op> OpType::in_parts(const Op&, Dim, Graph&) const {
  return std::nullopt;
}
void OpType::backward(const Op& op, OpCall&) const {
  lacks(op, Piece::backward);
}
void OpType::dgrad(const Op& op, OpCall&) const {
  lacks(op, Piece::dgrad);
}
void OpType::wgrad(const Op& op, OpCall&) const {
  lacks(op, Piece::wgrad);
}

namespace {

// The FLOPs of a forward, from the shapes of a matrix product or an attention; 0 for other ops.
double flops_by_shapes(const Op& op, const LocalDims& dims) {
  const auto size = [&](Dim dim) { return static_cast<double>(dims.at(dim).size); };
  if (op.op_class() == OpClass::matrix_product)
    return 2 * static_cast<double>(dims.count(op.space()));
  if (op.op_class() != OpClass::attention || op.inputs.size() < 3) return 0;
  const Dims &q = op.inputs.at(0).dims, &k = op.inputs.at(1).dims, &v = op.inputs.at(2).dims;
  // An attention of a plugin may have operands with other dims.
  if (std::min({q.size(), k.size(), v.size()}) < 4) return 0;
  return 2 * size(q.at(0)) * size(q.at(1)) * size(q.at(2)) * size(k.at(1)) *
         (size(q.at(3)) + size(v.at(3)));
}

void check(const Op& op, Piece piece, const Cost& cost) {
  const std::string whose = fmt::format("{} ({}), {}", op.name, op.kind(), name_of(piece));
  check_amounts(whose, {{"flops", cost.flops},
                        {"executed", cost.executed},
                        {"bytes", cost.bytes},
                        {"workspace", cost.workspace.value_or(0)},
                        {"accelerator_workspace", cost.accelerator_workspace.value_or(0)},
                        {"kernels", std::int64_t{cost.kernels}},
                        {"further_kernels", std::int64_t{cost.further_kernels}},
                        {"further_bytes", cost.further_bytes}});
}

}  // namespace

void check_amounts(const std::string& whose, std::initializer_list<Amount> amounts) {
  for (const Amount& amount : amounts) {
    if (amount.value >= 0 && amount.value <= amount.most) continue;
    throw Error(Stage::plan, "plugin.fault", "",
                fmt::format("{}: its cost says {} = {}", whose, amount.name, amount.value),
                fmt::format("mend its cost(): {} is from 0 to {:.3g}", amount.name, amount.most));
  }
}

Cost cost_of(const Op& op, Piece piece, const LocalDims& dims, int element) {
  Cost cost = op.type->cost(op, piece, dims, element);
  check(op, piece, cost);
  if (cost.flops > 0) return cost;
  const double forward = flops_by_shapes(op, dims);
  cost.flops = piece == Piece::backward ? 2 * forward : forward;
  // Backward of an attention computes the scores again.
  const bool again = op.op_class() == OpClass::attention && piece == Piece::backward;
  cost.executed = std::max(cost.executed, (again ? 1.25 : 1) * cost.flops);
  return cost;
}

Dims Op::space() const {
  Dims all;
  const auto take = [&](const Dims& dims) {
    for (Dim dim : dims) {
      if (std::find(all.begin(), all.end(), dim) == all.end()) all.push_back(dim);
    }
  };
  for (const Use& use : inputs) take(use.dims);
  for (const Dims& dims : output_dims) take(dims);
  return all;
}

bool Op::has(Dim dim) const {
  const auto in = [&](const Dims& dims) {
    return std::find(dims.begin(), dims.end(), dim) != dims.end();
  };
  return std::any_of(inputs.begin(), inputs.end(), [&](const Use& use) { return in(use.dims); }) ||
         std::any_of(output_dims.begin(), output_dims.end(), in);
}

}  // namespace mw
