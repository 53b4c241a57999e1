// What the kernels share: where a gradient is written, and work in chunks of rows that stay in
// cache.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "meshwright/op.h"
#include "vector/vector.h"

namespace mw::kernel {

// Bytes of one tensor in a chunk. Kernels make several passes over a chunk; this many bytes of a
// few tensors stay in a core's second-level cache, and the calls' own cost stays small.
constexpr std::int64_t chunk_bytes = 128 * 1024;

inline std::int64_t chunk_rows(std::int64_t rows, std::int64_t row_bytes) {
  return std::clamp<std::int64_t>(chunk_bytes / std::max<std::int64_t>(row_bytes, 1), 1,
                                  std::max<std::int64_t>(rows, 1));
}

// How many rows are treated at a time, each of `row_bytes` bytes: all of them on an accelerator,
// where a kernel launch costs more than a pass.
inline std::int64_t chunk_rows(const at::Tensor& like, std::int64_t rows, std::int64_t row_bytes) {
  return like.is_cpu() ? chunk_rows(rows, row_bytes) : std::max<std::int64_t>(rows, 1);
}

// Sets the workspace of a piece that treats rows in chunks: `of` the rows of a chunk on a CPU, `of`
// all rows on an accelerator.
template <class Of>
void workspace_of_rows(Cost& cost, std::int64_t rows, std::int64_t row_bytes, const Of& of) {
  cost.workspace = of(chunk_rows(rows, row_bytes));
  cost.accelerator_workspace = of(std::max<std::int64_t>(rows, 1));
}

// Like workspace_of_rows(), for rows that a loop of vector/ treats on a CPU without workspace,
// unless they are of a half type, which is treated in chunks.
template <class Of>
void workspace_of_half_rows(Cost& cost, int element, std::int64_t rows, std::int64_t row_bytes,
                            const Of& of) {
  workspace_of_rows(cost, rows, row_bytes, of);
  if (element >= 4) cost.workspace = 0;
}

// The type in which sums are made: fp32 for half types, else the tensor's own.
inline at::ScalarType wide(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kBFloat16 || type == at::kHalf ? at::kFloat : type;
}
inline bool is_half(const at::Tensor& tensor) {
  return wide(tensor) != tensor.scalar_type();
}
inline std::int64_t wide_element(int element) {
  return std::max(element, 4);
}

// Whether the loops of vector/ can treat these tensors: all contiguous, on a CPU, and of one type,
// fp32 or fp64. Undefined tensors do not count.
template <class... Tensors>
bool looped(const at::Tensor& first, const Tensors&... others) {
  const at::ScalarType type = first.scalar_type();
  const auto fits = [&](const at::Tensor& t) {
    return !t.defined() || (t.is_cpu() && t.is_contiguous() && t.scalar_type() == type);
  };
  return (type == at::kFloat || type == at::kDouble) && fits(first) && (fits(others) && ...);
}

// Calls what(T()) for the element type T of a tensor for which looped() holds.
template <class Do>
void in_its_type(const at::Tensor& tensor, const Do& what) {
  if (tensor.scalar_type() == at::kDouble) return what(double());
  what(float());
}

template <class T>
T* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

// Counts how often each of the numbers 0 to `kinds` - 1 is among `picks`: int64, on their device.
// bincount is for CPUs alone, since on a GPU it makes the host wait for the lowest and the highest
// pick.
inline at::Tensor counts_of(const at::Tensor& picks, std::int64_t kinds) {
  if (picks.is_cpu()) return at::bincount(picks, {}, kinds);
  return at::zeros({kinds}, picks.options()).scatter_add_(0, picks, at::ones_like(picks));
}

// The place in the sequence of each token of a dim, in the order in which they lie.
inline at::Tensor places_of(const LocalDim& dim, const at::Tensor& like) {
  at::Tensor places = at::empty({dim.size}, like.options().dtype(at::kLong).requires_grad(false));
  std::int64_t at = 0;
  const auto fill = [&](const Range& tokens) {
    at::Tensor part = places.narrow(0, at, tokens.size);
    at::arange_out(part, tokens.offset, tokens.offset + tokens.size, 1);
    at += tokens.size;
  };
  if (dim.runs.empty()) fill({dim.offset, dim.size});
  for (const Range& run : dim.runs) fill(run);
  return places;
}

// The traits of an op with one input and so many outputs through which no gradient passes.
inline OpTraits without_gradient(std::size_t outputs) {
  OpTraits traits;
  traits.differentiable = false;
  traits.backward_reads_input = {false};
  traits.backward_reads_output.assign(outputs, false);
  traits.gradient_passes = {false};
  return traits;
}

// The traits of an op whose backward reads neither inputs nor outputs.
inline OpTraits traits_without_reads(const Op& op) {
  OpTraits traits;
  traits.backward_reads_input.assign(op.inputs.size(), false);
  traits.backward_reads_output.assign(op.output_dims.size(), false);
  traits.gradient_passes.assign(op.inputs.size(), false);
  return traits;
}

// The dims of a norm's input that its weight lacks: each row along them is normalised on its own.
inline Dims normalised_rows(const Op& op) {
  Dims dims = op.inputs[0].dims;
  dims.resize(dims.size() - op.inputs[1].dims.size());
  return dims;
}

inline at::Tensor rows_of(const at::Tensor& tensor, std::int64_t columns) {
  return tensor.reshape({-1, columns});
}

// `count` entries of the tensor along a dim, from `first` on: the tensor itself where these are
// all, as a view costs what a small kernel does.
inline at::Tensor part_of(const at::Tensor& tensor, std::int64_t dim, std::int64_t first,
                          std::int64_t count) {
  return first == 0 && count == tensor.size(dim) ? tensor : tensor.narrow(dim, first, count);
}

inline bool wanted(const OpCall& call, std::size_t input) {
  return input < call.wants.size() && call.wants[input];
}

// Where the gradient of an input goes: the buffer that was given, or a fresh one.
struct Target {
  at::Tensor tensor;
  bool add = false;  // add to what is there, else overwrite
};

inline Target target(OpCall& call, std::size_t input, at::IntArrayRef shape,
                     const at::TensorOptions& options) {
  call.grad_inputs.resize(std::max(call.grad_inputs.size(), input + 1));
  at::Tensor& slot = call.grad_inputs[input];
  const bool given = slot.defined();
  if (!given) slot = at::empty(shape, options);
  return {slot, given && input < call.accumulate.size() && call.accumulate[input]};
}

// Writes a finished gradient to its target: adds it, or overwrites what is there. An undefined
// gradient is zeros.
inline void put(const Target& to, const at::Tensor& made) {
  if (!made.defined()) {
    if (!to.add) to.tensor.zero_();
  } else if (to.add) {
    to.tensor.add_(made);
  } else {
    to.tensor.copy_(made);
  }
}
// Writes the gradient of `count` entries along a dim, from `first` on, to that part of the target.
inline void put(const Target& to, std::int64_t dim, std::int64_t first, std::int64_t count,
                const at::Tensor& made) {
  put({part_of(to.tensor, dim, first, count), to.add}, made);
}

// Hands over a gradient that a kernel could only make as a tensor of its own, or writes it to the
// given buffer.
inline void deliver(OpCall& call, std::size_t input, const at::Tensor& gradient) {
  call.grad_inputs.resize(std::max(call.grad_inputs.size(), input + 1));
  at::Tensor& slot = call.grad_inputs[input];
  if (!slot.defined()) {
    slot = gradient;
  } else {
    put({slot, input < call.accumulate.size() && call.accumulate[input]}, gradient);
  }
}

inline vector::Write written(const Target& to) {
  return to.add ? vector::Write::added : vector::Write::over;
}

inline void set_outputs(OpCall& call, std::vector<at::Tensor> outputs) {
  call.outputs = std::move(outputs);
}

// The one object of an op type that has no options.
template <typename Type>
std::shared_ptr<const OpType> only() {
  static const std::shared_ptr<const OpType> type = std::make_shared<Type>();
  return type;
}

// The shared object of an op type with these options, if one was made lately. Layers that repeat an
// op so share its type, by which like ops are known (Graph::kind).
template <typename Type, typename Options>
std::shared_ptr<const OpType> only_of(const Options& options) {
  constexpr std::size_t most = 16;
  static std::mutex mutex;
  static std::vector<std::pair<Options, std::shared_ptr<const OpType>>> known;
  const std::lock_guard lock(mutex);
  for (const auto& [of, type] : known) {
    if (of == options) return type;
  }
  if (known.size() == most) known.erase(known.begin());
  return known.emplace_back(options, std::make_shared<Type>(options)).second;
}

}  // namespace mw::kernel
