// Carries out one move of a tensor from layout to layout on a rank: slicing, padding of uneven
// parts, the collective, and bringing what arrived into place.
#include "run/redistribute.h"

#include <algorithm>
#include <numeric>

namespace mw {
namespace {

std::int64_t position(const Dims& dims, Dim dim) {
  return std::find(dims.begin(), dims.end(), dim) - dims.begin();
}

bool even(const std::vector<std::int64_t>& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](std::int64_t p) { return p == parts[0]; });
}

std::vector<at::Tensor> split(const at::Tensor& x, const std::vector<std::int64_t>& parts,
                              std::int64_t dim) {
  return x.split_with_sizes(parts, dim);
}

// `x` with `dim` padded to `size` (what is beyond its end is never looked at).
at::Tensor padded(const at::Tensor& x, std::int64_t dim, std::int64_t size) {
  if (x.size(dim) == size) return x.contiguous();
  auto shape = x.sizes().vec();
  shape[dim] = size;
  at::Tensor wide = at::zeros(shape, x.options());
  wide.narrow(dim, 0, x.size(dim)).copy_(x);
  return wide;
}

// Each rank's part is a slab of `gathered` (ways, ...); puts them one after the other along `dim`.
at::Tensor join(const at::Tensor& gathered, const std::vector<std::int64_t>& parts,
                std::int64_t dim) {
  if (dim == 0 && even(parts)) return gathered.flatten(0, 1);
  std::vector<at::Tensor> slabs;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    slabs.push_back(gathered[static_cast<std::int64_t>(i)].narrow(dim, 0, parts[i]));
  }
  return at::cat(slabs, dim);
}

Underway all_gather(const Moving& moving, const Move& move, const at::Tensor& input,
                    Communicator& group, Purpose purpose) {
  const std::int64_t dim = position(moving.dims, move.from);
  const auto& parts = moving.from_parts;
  const std::int64_t widest = *std::max_element(parts.begin(), parts.end());
  at::Tensor in = padded(input, dim, widest);
  auto shape = in.sizes().vec();
  shape.insert(shape.begin(), group.ways());
  at::Tensor out = at::empty(shape, in.options());
  Pending pending = group.all_gather(out, in, purpose);
  return {std::move(pending), [out, in, parts, dim] { return join(out, parts, dim); }};
}

Underway reduce_scatter(const Moving& moving, const Move& move, const at::Tensor& input,
                        Communicator& group, Purpose purpose) {
  const std::int64_t dim = position(moving.dims, move.to);
  const auto& parts = moving.to_parts;
  const std::int64_t widest = *std::max_element(parts.begin(), parts.end());
  at::Tensor in;
  if (dim == 0 && even(parts)) {
    in = input.contiguous();
  } else {
    std::vector<at::Tensor> slabs;
    for (const at::Tensor& part : split(input, parts, dim))
      slabs.push_back(padded(part, dim, widest));
    in = at::stack(slabs);
  }
  auto shape = input.sizes().vec();
  shape[dim] = widest;
  at::Tensor out = at::empty(shape, input.options());
  const std::int64_t mine = parts[group.index()];
  Pending pending = group.reduce_scatter(out, in, move.reduction, purpose);
  return {std::move(pending),
          [out, in, dim, mine] { return out.narrow(dim, 0, mine).contiguous(); }};
}

Underway all_to_all(const Moving& moving, const Move& move, const at::Tensor& input,
                    Communicator& group, Purpose purpose) {
  const std::int64_t from = position(moving.dims, move.from), to = position(moving.dims, move.to);
  const std::int64_t mine_from = moving.from_parts[group.index()];
  const std::int64_t mine_to = moving.to_parts[group.index()];
  std::int64_t rest = 1;
  for (std::int64_t d = 0; d < input.dim(); ++d) {
    if (d != from && d != to) rest *= input.size(d);
  }
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> in_splits, out_splits;
  std::vector<std::vector<std::int64_t>> shapes;
  const auto pieces = split(input, moving.to_parts, to);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    flat.push_back(pieces[i].reshape(-1));
    in_splits.push_back(mine_from * moving.to_parts[i] * rest);
    out_splits.push_back(moving.from_parts[i] * mine_to * rest);
    auto shape = input.sizes().vec();
    shape[from] = moving.from_parts[i];
    shape[to] = mine_to;
    shapes.push_back(shape);
  }
  at::Tensor in = at::cat(flat);
  at::Tensor out = at::empty(std::accumulate(out_splits.begin(), out_splits.end(), std::int64_t{0}),
                             input.options());
  Pending pending = group.all_to_all(out, in, out_splits, in_splits, purpose);
  return {std::move(pending), [out, in, out_splits, shapes, from] {
            std::vector<at::Tensor> parts = out.split_with_sizes(out_splits);
            for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].view(shapes[i]);
            return at::cat(parts, from);
          }};
}

}  // namespace

at::Tensor Underway::finish() {
  pending_.wait();
  at::Tensor tensor = result_();
  result_ = nullptr;
  return tensor;
}

Underway start_move(const Move& move, const Moving& moving, const at::Tensor& input, bool in_place,
                    Communicator& group, Purpose purpose) {
  switch (move.kind) {
    case Move::Kind::all_gather:
      return all_gather(moving, move, input, group, purpose);
    case Move::Kind::reduce_scatter:
      return reduce_scatter(moving, move, input, group, purpose);
    case Move::Kind::all_to_all:
      return all_to_all(moving, move, input, group, purpose);
    default:
      break;
  }
  at::Tensor out =
      in_place && input.is_contiguous() ? input : input.clone(at::MemoryFormat::Contiguous);
  Pending pending = group.all_reduce(out, move.reduction, purpose);
  return {std::move(pending), [out] { return out; }};
}

at::Tensor local_move(const Move& move, const Moving& moving, const at::Tensor& input, int index) {
  if (move.kind == Move::Kind::keep) {
    return index == 0 ? input.clone() : at::zeros_like(input);
  }
  const auto& parts = moving.to_parts;
  const std::int64_t offset =
      std::accumulate(parts.begin(), parts.begin() + index, std::int64_t{0});
  return input.narrow(position(moving.dims, move.to), offset, parts[index])
      .clone(at::MemoryFormat::Contiguous);
}

}  // namespace mw
