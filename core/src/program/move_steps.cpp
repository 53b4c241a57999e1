// Works out how a rank carries out a move: pieces that are padded where parts are uneven, and
// copies only where the tensor does not lie as it is sent or arrives.
#include "meshwright/engine/rank_view.h"

#include <algorithm>
#include <numeric>

namespace mw {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t product(Sizes::const_iterator begin, Sizes::const_iterator end) {
  return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
}
std::int64_t sum(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}
Sizes with(Sizes shape, std::int64_t dim, std::int64_t size) {
  if (!shape.empty()) shape[dim] = size;
  return shape;
}

}  // namespace

Sizes Pieces::slab(std::size_t piece) const {
  return with(shape, dim, width > 0 ? width : sizes[piece]);
}

Sizes Pieces::splits() const {
  const Sizes row = with(shape, dim, 1);
  const std::int64_t elements = product(row.begin(), row.end());
  Sizes splits;
  for (std::int64_t size : sizes) splits.push_back(elements * (width > 0 ? width : size));
  return splits;
}

std::int64_t Pieces::elements() const {
  const Sizes row = with(shape, dim, 1);
  const auto pieces = static_cast<std::int64_t>(sizes.size());
  return product(row.begin(), row.end()) * (width > 0 ? width * pieces : sum(sizes));
}

bool Pieces::pads() const {
  return width > 0 &&
         std::any_of(sizes.begin(), sizes.end(), [&](std::int64_t s) { return s != width; });
}

bool Pieces::lies() const {
  const bool one = sizes.size() == 1, leading = product(shape.begin(), shape.begin() + dim) == 1;
  return pads() ? one && leading : one || leading;
}

std::int64_t MoveSteps::joined() const {
  return joins ? product(arrived.shape.begin(), arrived.shape.end()) : 0;
}

Pieces whole(Sizes shape) {
  const std::int64_t size = shape.empty() ? 1 : shape.front();
  return {std::move(shape), 0, {size}, 0};
}

MoveSteps move_steps(const Move& move, const Dims& dims, const Sizes& shape, const Layout& from,
                     const Layout& to, const Mesh& mesh, const Coordinates& at,
                     const std::function<std::int64_t(Dim)>& size) {
  using MoveKind = Move::Kind;
  const auto position = [&](Dim dim) {
    return std::find(dims.begin(), dims.end(), dim) - dims.begin();
  };
  const auto parts = [&](Dim dim, const Layout& layout) {
    return dim.valid() ? local_sizes(dim, size(dim), layout, mesh, move.atoms, at) : Sizes{};
  };
  const Sizes come = parts(move.from, from), go = parts(move.to, to);
  const std::int64_t joint = position(move.from), cut = position(move.to);
  const auto widest = [](const Sizes& sizes) {
    return *std::max_element(sizes.begin(), sizes.end());
  };
  MoveSteps steps;
  for (int atom : move.atoms)  // mesh order: the outermost counts most
    steps.index = steps.index * mesh.atoms()[atom].ways + at[atom];
  const Sizes part = move.to.valid() ? with(shape, cut, go[steps.index]) : shape;
  steps.sent = whole(shape);
  steps.arrived = whole(part);
  steps.receives =
      communicates(move.kind) && move.kind != MoveKind::all_reduce && move.kind != MoveKind::send;
  switch (move.kind) {
    case MoveKind::all_gather:
      steps.sent = {shape, joint, {shape[joint]}, widest(come)};
      steps.arrived = {with(shape, joint, sum(come)), joint, come, widest(come)};
      break;
    case MoveKind::reduce_scatter:
      steps.sent = {shape, cut, go, widest(go)};
      steps.arrived = {part, cut, {go[steps.index]}, widest(go)};
      break;
    case MoveKind::all_to_all:
      steps.arrived = {with(part, joint, sum(come)), joint, come, 0};
      [[fallthrough]];
    case MoveKind::slice:
      steps.sent = {shape, cut, go, 0};
      break;
    case MoveKind::all_reduce:
      steps.packs = true;  // unless it may overwrite the tensor (RankView::steps)
      return steps;
    case MoveKind::keep:
      break;
    case MoveKind::send:
    case MoveKind::recv:
    case MoveKind::shift:
      return steps;
  }
  steps.packs = steps.receives && (!steps.sent.lies() || steps.sent.pads());
  steps.joins = !steps.receives || !steps.arrived.lies();
  return steps;
}

}  // namespace mw
