// Carries out one move of a tensor from layout to layout on a rank: packs it where it does not lie
// as it is sent, posts the collective, and joins what arrived.
#include "run/redistribute.h"

#include <c10/util/accumulate.h>

#include <numeric>

#include "meshwright/engine/run.h"

namespace mw {

Buffer::Buffer(Pieces pieces)
    : pieces_(std::move(pieces)),
      splits_(pieces_.splits()),
      elements_(pieces_.elements()),
      whole_(c10::multiply_integers(pieces_.shape)),
      pads_(pieces_.pads()) {
  std::int64_t first = 0;
  for (std::size_t k = 0; k < splits_.size(); ++k) {
    places_.push_back({first, pieces_.slab(k)});
    first += splits_[k];
  }
}

at::Tensor Buffer::piece(const at::Tensor& buffer, std::size_t index) const {
  const Place& place = places_[index];
  at::Tensor part = buffer.narrow(0, place.first, splits_[index]).view(place.slab);
  return pads_ ? part.narrow(pieces_.dim, 0, pieces_.sizes[index]) : part;
}

at::Tensor Buffer::packed(const at::Tensor& tensor) const {
  if (places_.size() == 1 && !pads_) return tensor.clone(at::MemoryFormat::Contiguous);
  at::Tensor buffer =
      pads_ ? at::zeros({elements_}, tensor.options()) : at::empty({elements_}, tensor.options());
  std::int64_t from = 0;
  for (std::size_t k = 0; k < places_.size(); ++k) {
    piece(buffer, k).copy_(tensor.narrow(pieces_.dim, from, pieces_.sizes[k]));
    from += pieces_.sizes[k];
  }
  return buffer;
}

at::Tensor Buffer::joined(const at::Tensor& buffer) const {
  if (places_.size() == 1) return piece(buffer, 0).contiguous();
  c10::SmallVector<at::Tensor, 16> parts;
  for (std::size_t k = 0; k < places_.size(); ++k) parts.push_back(piece(buffer, k));
  return at::cat(at::TensorList(parts.data(), parts.size()), pieces_.dim);
}

at::Tensor Buffer::lying(const at::Tensor& buffer) const {
  return (pads_ ? buffer.narrow(0, 0, whole_) : buffer).view(pieces_.shape);
}

Pending post(const Move& move, const at::Tensor& out, const at::Tensor& in, Communicator& group,
             Purpose purpose, const ReadyMove* ready) {
  switch (move.kind) {
    case Move::Kind::all_gather:
      return group.all_gather(out, in, purpose);
    case Move::Kind::reduce_scatter:
      return group.reduce_scatter(out, in, move.reduction, purpose);
    case Move::Kind::all_to_all:
      return group.all_to_all(out, in.view({-1}), ready->arrived.splits(), ready->sent.splits(),
                              purpose);
    default:
      return group.all_reduce(out, move.reduction, purpose);
  }
}

Underway start_move(const Move& move, const ReadyMove& ready, const at::Tensor& input,
                    Communicator& group, Purpose purpose) {
  const at::Tensor in = ready.steps.packs ? ready.sent.packed(input) : input.contiguous();
  const at::Tensor out =
      ready.steps.receives ? at::empty({ready.arrived.elements()}, in.options()) : in;
  return {post(move, out, in, group, purpose, &ready), {}, in, out};
}

at::Tensor finish_move(Underway& underway, const ReadyMove& ready) {
  underway.pending.wait();
  if (!ready.steps.receives) return underway.out;
  return ready.steps.joins ? ready.arrived.joined(underway.out) : ready.arrived.lying(underway.out);
}

at::Tensor local_move(const Move& move, const MoveSteps& steps, const at::Tensor& input) {
  if (move.kind == Move::Kind::keep)
    return steps.index == 0 ? input.clone() : at::zeros_like(input);
  const std::vector<std::int64_t>& sizes = steps.sent.sizes;
  const auto own = sizes.begin() + steps.index;
  return input.narrow(steps.sent.dim, std::accumulate(sizes.begin(), own, std::int64_t{0}), *own)
      .clone(at::MemoryFormat::Contiguous);
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
