// Carries out one move of a tensor from layout to layout on a rank: packs it where it does not lie
// as it is sent, posts the collective, and joins what arrived.
#include "run/redistribute.h"

#include "meshwright/engine/run.h"

namespace mw {
namespace {

// The pieces that lie in a buffer, without what pads them.
std::vector<at::Tensor> pieces_in(const at::Tensor& buffer, const Pieces& pieces) {
  std::vector<at::Tensor> parts = buffer.split_with_sizes(pieces.splits());
  const bool pads = pieces.pads();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = parts[i].view(pieces.slab(i));
    if (pads) parts[i] = parts[i].narrow(pieces.dim, 0, pieces.sizes[i]);
  }
  return parts;
}

at::Tensor packed(const at::Tensor& input, const Pieces& pieces) {
  const bool pads = pieces.pads();
  if (pieces.sizes.size() == 1 && !pads) return input.clone(at::MemoryFormat::Contiguous);
  at::Tensor buffer = pads ? at::zeros({pieces.elements()}, input.options())
                           : at::empty({pieces.elements()}, input.options());
  const std::vector<at::Tensor> from = input.split_with_sizes(pieces.sizes, pieces.dim);
  const std::vector<at::Tensor> to = pieces_in(buffer, pieces);
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  return buffer;
}

at::Tensor result(const MoveSteps& steps, const at::Tensor& out) {
  const Pieces& pieces = steps.arrived;
  if (steps.joins) {
    const std::vector<at::Tensor> parts = pieces_in(out, pieces);
    return parts.size() == 1 ? parts[0].contiguous() : at::cat(parts, pieces.dim);
  }
  return (pieces.pads() ? out.narrow(0, 0, c10::multiply_integers(pieces.shape)) : out)
      .view(pieces.shape);
}

Pending post(const Move& move, const MoveSteps& steps, const at::Tensor& out, const at::Tensor& in,
             Communicator& group, Purpose purpose) {
  switch (move.kind) {
    case Move::Kind::all_gather:
      return group.all_gather(out, in, purpose);
    case Move::Kind::reduce_scatter:
      return group.reduce_scatter(out, in, move.reduction, purpose);
    case Move::Kind::all_to_all:
      return group.all_to_all(out, in.view({-1}), steps.arrived.splits(), steps.sent.splits(),
                              purpose);
    default:
      return group.all_reduce(out, move.reduction, purpose);
  }
}

}  // namespace

at::Tensor Underway::finish() {
  pending_.wait();
  at::Tensor tensor = result_();
  result_ = nullptr;
  return tensor;
}

Underway start_move(const Move& move, const MoveSteps& steps, const at::Tensor& input,
                    Communicator& group, Purpose purpose) {
  const at::Tensor in = steps.packs ? packed(input, steps.sent) : input.contiguous();
  const at::Tensor out = steps.receives ? at::empty({steps.arrived.elements()}, in.options()) : in;
  return {post(move, steps, out, in, group, purpose),
          [out, in, &steps] { return steps.receives ? result(steps, out) : out; }};
}

at::Tensor local_move(const Move& move, const MoveSteps& steps, const at::Tensor& input) {
  if (move.kind == Move::Kind::keep)
    return steps.index == 0 ? input.clone() : at::zeros_like(input);
  const std::vector<at::Tensor> parts = input.split_with_sizes(steps.sent.sizes, steps.sent.dim);
  return parts[steps.index].clone(at::MemoryFormat::Contiguous);
}

at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs) {
  if (runs.size() == 1) return whole.narrow(at, runs[0].offset, runs[0].size);
  std::vector<at::Tensor> parts;
  parts.reserve(runs.size());
  for (const Range& run : runs) parts.push_back(whole.narrow(at, run.offset, run.size));
  return at::cat(parts, at);
}

at::Tensor in_own_order(const Program& program, at::Tensor whole, const Dims& dims) {
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto order = program.token_permutation.find(dims[d]);
    if (order == program.token_permutation.end()) continue;
    const auto at = static_cast<std::int64_t>(d);
    at::Tensor own = at::empty_like(whole);
    std::int64_t lies = 0;
    for (const Range& range : order->second) {
      own.narrow(at, range.offset, range.size).copy_(whole.narrow(at, lies, range.size));
      lies += range.size;
    }
    whole = own;
  }
  return whole;
}

}  // namespace mw
