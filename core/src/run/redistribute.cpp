// Carries out one move of a tensor from layout to layout on a rank: packs it where it does not lie
// as it is sent, posts the collective, and joins what arrived.
#include "run/redistribute.h"

#include <c10/util/accumulate.h>

#include <numeric>

#include "meshwright/engine/run.h"

namespace mw {

Buffer::Buffer(Pieces of)
    : pieces(std::move(of)),
      splits(pieces.splits()),
      elements(pieces.elements()),
      pads(pieces.pads()) {
  std::int64_t first = 0;
  for (std::size_t k = 0; k < splits.size(); ++k) {
    places.push_back({first, pieces.slab(k)});
    first += splits[k];
  }
}

at::Tensor Buffer::piece(const at::Tensor& buffer, std::size_t index) const {
  const auto& [first, slab] = places[index];
  at::Tensor part = buffer.narrow(0, first, splits[index]).view(slab);
  return pads ? part.narrow(pieces.dim, 0, pieces.sizes[index]) : part;
}

at::Tensor Buffer::packed(const at::Tensor& tensor) const {
  if (places.size() == 1 && !pads) return tensor.clone(at::MemoryFormat::Contiguous);
  at::Tensor buffer =
      pads ? at::zeros({elements}, tensor.options()) : at::empty({elements}, tensor.options());
  std::int64_t from = 0;
  for (std::size_t k = 0; k < places.size(); ++k) {
    piece(buffer, k).copy_(tensor.narrow(pieces.dim, from, pieces.sizes[k]));
    from += pieces.sizes[k];
  }
  return buffer;
}

at::Tensor Buffer::joined(const at::Tensor& buffer) const {
  if (places.size() == 1) return piece(buffer, 0).contiguous();
  c10::SmallVector<at::Tensor, 16> parts;
  for (std::size_t k = 0; k < places.size(); ++k) parts.push_back(piece(buffer, k));
  return at::cat(at::TensorList(parts.data(), parts.size()), pieces.dim);
}

at::Tensor Buffer::lying(const at::Tensor& buffer) const {
  const at::Tensor whole =
      pads ? buffer.narrow(0, 0, c10::multiply_integers(pieces.shape)) : buffer;
  return whole.view(pieces.shape);
}

Pending post(const Move& move, const at::Tensor& out, const at::Tensor& in, Communicator& group,
             Purpose purpose, const ReadyMove* ready) {
  switch (move.kind) {
    case Move::Kind::all_gather:
      return group.all_gather(out, in, purpose);
    case Move::Kind::reduce_scatter:
      return group.reduce_scatter(out, in, move.reduction, purpose);
    case Move::Kind::all_to_all:
      return group.all_to_all(out, in.view({-1}), ready->arrived.splits, ready->sent.splits,
                              purpose);
    default:
      return group.all_reduce(out, move.reduction, purpose);
  }
}

Underway start_move(const Move& move, const ReadyMove& ready, const at::Tensor& input,
                    Communicator& group, Purpose purpose) {
  const at::Tensor in = ready.steps.packs ? ready.sent.packed(input) : input.contiguous();
  const at::Tensor out =
      ready.steps.receives ? at::empty({ready.arrived.elements}, in.options()) : in;
  return {post(move, out, in, group, purpose, &ready), {}, in, out};
}

at::Tensor finish_move(Underway& underway, const ReadyMove& ready) {
  underway.pending.wait();
  if (!ready.steps.receives) return underway.out;
  return ready.steps.joins ? ready.arrived.joined(underway.out) : ready.arrived.lying(underway.out);
}

at::Tensor local_move(const Move& move, const ReadyMove& ready, const at::Tensor& input) {
  if (move.kind == Move::Kind::keep)
    return ready.steps.index == 0 ? input.clone() : at::zeros_like(input);
  const std::vector<std::int64_t>& sizes = ready.sent.pieces.sizes;
  const auto own = sizes.begin() + ready.steps.index;
  return input
      .narrow(ready.sent.pieces.dim, std::accumulate(sizes.begin(), own, std::int64_t{0}), *own)
      .clone(at::MemoryFormat::Contiguous);
}

at::Tensor in_runs(const at::Tensor& whole, std::int64_t at, const std::vector<Range>& runs) {
  if (runs.size() == 1) return whole.narrow(at, runs[0].offset, runs[0].size);
  std::vector<at::Tensor> parts;
  parts.reserve(runs.size());
  for (const Range& run : runs) parts.push_back(whole.narrow(at, run.offset, run.size));
  return at::cat(parts, at);
}

at::Tensor from_runs(const at::Tensor& lies, std::int64_t at, const std::vector<Range>& runs) {
  at::Tensor whole = at::empty_like(lies);
  std::int64_t next = 0;
  for (const Range& range : runs) {
    whole.narrow(at, range.offset, range.size).copy_(lies.narrow(at, next, range.size));
    next += range.size;
  }
  return whole;
}

}  // namespace mw
