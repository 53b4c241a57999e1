// A program's sizes on one rank: bytes of slots, costs of ops, and what each move allocates and
// sends.
#include "program/rank_view.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "meshwright/communicator.h"
#include "program/bucket_shape.h"
#include "program/scalar_type.h"

namespace mw {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t sum(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}
std::int64_t product(const Sizes& sizes, std::size_t end) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(end),
                         std::int64_t{1}, std::multiplies<>());
}
bool even(const Sizes& parts) {
  return std::adjacent_find(parts.begin(), parts.end(), std::not_equal_to<>()) == parts.end();
}
std::size_t position(const Dims& dims, Dim dim) {
  return static_cast<std::size_t>(std::find(dims.begin(), dims.end(), dim) - dims.begin());
}

// What the moves are worked out from.
struct Input {
  Sizes shape;            // of the tensor that moves, on this rank
  std::int64_t item = 4;  // bytes of an element
  int ways = 1;
  std::size_t index = 0;  // of the rank in its group
  Sizes from_parts, to_parts;
  std::size_t from = 0, to = 0;  // positions of the dims

  std::int64_t bytes() const { return item * product(shape, shape.size()); }
  // Bytes if the size along `dim` were one.
  std::int64_t row(std::size_t dim) const {
    Sizes other = shape;
    other[dim] = 1;
    return item * product(other, other.size());
  }
};

MoveSize all_gather(const Input& in) {
  MoveSize m;
  const std::int64_t widest = *std::max_element(in.from_parts.begin(), in.from_parts.end());
  const std::int64_t row = in.row(in.from);
  const std::int64_t padded = in.shape[in.from] == widest ? 0 : row * widest;
  m.payload = row * widest * in.ways;
  m.wire = wire_bytes(Collective::all_gather, m.payload, in.ways);
  m.held = padded + m.payload;
  m.start_peak = m.held;
  m.result = row * sum(in.from_parts);
  m.takes_held = in.from == 0 && even(in.from_parts);
  m.finish = m.takes_held ? 0 : m.result;
  m.copied = padded + m.finish;
  return m;
}

MoveSize reduce_scatter(const Input& in) {
  MoveSize m;
  const std::int64_t widest = *std::max_element(in.to_parts.begin(), in.to_parts.end());
  const std::int64_t row = in.row(in.to), out = row * widest;
  const bool leading = product(in.shape, in.to) == 1;  // parts are contiguous as they lie
  m.payload = row * widest * in.ways;
  m.wire = wire_bytes(Collective::reduce_scatter, m.payload, in.ways);
  if (in.to == 0 && even(in.to_parts)) {
    m.held = out;
    m.start_peak = out;
  } else {
    std::int64_t slabs = 0;
    for (std::int64_t part : in.to_parts) slabs += part == widest && leading ? 0 : out;
    m.held = m.payload + out;
    m.start_peak = std::max(slabs + m.payload, m.held);
    m.copied = slabs + m.payload;
  }
  const std::int64_t mine = in.to_parts[in.index];
  m.takes_held = mine == widest || leading;  // a leading part of the output, not copied
  m.result = m.takes_held ? out : row * mine;
  m.finish = m.takes_held ? 0 : m.result;
  m.copied += m.finish;
  return m;
}

MoveSize all_to_all(const Input& in) {
  MoveSize m;
  const std::int64_t area = std::max<std::int64_t>(1, in.shape[in.from] * in.shape[in.to]);
  const std::int64_t rest = in.bytes() / area;
  const std::int64_t mine_from = in.from_parts[in.index], mine_to = in.to_parts[in.index];
  const bool leading = product(in.shape, in.to) == 1;
  const std::int64_t flat = leading ? 0 : in.bytes();
  m.payload = in.bytes();
  m.wire = rest * mine_from * (sum(in.to_parts) - mine_to);
  m.result = rest * sum(in.from_parts) * mine_to;
  m.held = m.payload + m.result;
  m.start_peak = flat + m.held;
  m.finish = m.result;
  m.copied = flat + m.payload + m.finish;
  return m;
}

MoveSize all_reduce(const Input& in, bool in_place) {
  MoveSize m;
  m.payload = in.bytes();
  m.wire = wire_bytes(Collective::all_reduce, m.payload, in.ways);
  m.result = m.payload;
  m.takes_source = in_place;
  m.takes_held = !in_place;
  m.held = m.start_peak = m.copied = in_place ? 0 : m.payload;
  return m;
}

}  // namespace

RankView::RankView(const Program& program, Coordinates at, std::int64_t batch)
    : program_(program),
      at_(std::move(at)),
      batch_(batch),
      bytes_(program.slots.size()),
      places_(program.parameters.size()),
      dims_(program.graph->ops().size()),
      costs_(program.graph->ops().size() * 4) {
  for (std::size_t s = 0; s < bytes_.size(); ++s) {
    if (program.slots[s].bucket < 0) bytes_[s] = program.local_bytes(program.slots[s], at_, batch);
  }
  for (const Bucket& bucket : program.buckets) {
    std::int64_t total = 0;
    for (int p : bucket.parameters) {
      const int slot = program.parameters[p].slot;
      places_[p] = {total, bytes_[slot] / bytes_of(program.slots[slot].dtype)};
      total += places_[p].size;
    }
    const std::int64_t ways = program.mesh.ways(bucket.shard_atoms),
                       part = (total + ways - 1) / ways;
    shards_.push_back({index_among(bucket.shard_atoms) * part, part});
  }
  for (std::size_t s = 0; s < bytes_.size(); ++s) {
    const Slot& slot = program.slots[s];
    if (slot.bucket >= 0)
      bytes_[s] = bytes_of(slot.dtype) * program.flat_elements(slot, shards_[slot.bucket].size);
  }
}

Range RankView::part(int slot) const {
  const Slot& flat = program_.slots[slot];
  const Range& shard = shards_[flat.bucket];
  const std::int64_t elements = program_.flat_elements(flat, shard.size);
  return elements == shard.size ? shard : Range{0, elements};
}

int RankView::index_among(const std::vector<int>& atoms) const {
  return program_.mesh.index_in_group(program_.mesh.rank(at_), atoms);
}

const LocalDims& RankView::dims(int op, int ring_step) const {
  if (ring_step > 0) {
    const auto [turned, missing] = turned_dims_.try_emplace({op, ring_step});
    if (missing) turned->second = program_.local_dims(op, at_, ring_step, batch_);
    return turned->second;
  }
  std::optional<LocalDims>& dims = dims_[op];
  if (!dims) dims = program_.local_dims(op, at_, 0, batch_);
  return *dims;
}

const Cost& RankView::cost(int op, Piece piece, int ring_step) const {
  const auto price = [&] {
    const Op& what = program_.graph->ops()[op];
    return what.type->cost(what, piece, dims(op, ring_step), bytes_of(program_.dtype));
  };
  if (ring_step > 0) {
    const auto [cost, missing] = turned_.try_emplace({op, piece, ring_step});
    if (missing) cost->second = price();
    return cost->second;
  }
  std::optional<Cost>& cost =
      costs_[static_cast<std::size_t>(op) * 4 + static_cast<std::size_t>(piece)];
  if (!cost) cost = price();
  return *cost;
}

Scratch RankView::workspace(int op, Piece piece, int ring_step) const {
  const auto [known, missing] = workspaces_.try_emplace({op, piece, ring_step});
  if (!missing) return known->second;
  const Cost& of = cost(op, piece, ring_step);
  Scratch& most = known->second;
  most.bytes = of.workspace;
  for (const LibraryCall& call : of.calls) {
    const Scratch scratch = scratch_book().of(call, scalar_type(program_.dtype), program_.threads);
    most.bytes = std::max(most.bytes, call.beside + scratch.bytes);
    most.measured = most.measured && scratch.measured;
  }
  return most;
}

bool RankView::contributes(const std::vector<int>& atoms) const {
  return std::all_of(atoms.begin(), atoms.end(), [&](int a) { return at_[a] == 0; });
}

bool RankView::runs(const Instruction& instruction) const {
  if (instruction.code != Code::compute || instruction.piece == Piece::forward) return true;
  for (std::size_t i = 0; i < instruction.grad_inputs.size(); ++i) {
    const int slot = instruction.grad_inputs[i];
    if (slot < 0) continue;
    if (!program_.slots[slot].persistent || contributes(instruction.contributing[i])) return true;
  }
  return false;
}

MoveSize RankView::size_of(const Instruction& instruction) const {
  const Move& move = instruction.move;
  if (move.kind == Move::Kind::send || move.kind == Move::Kind::recv) {
    const bool sends = move.kind == Move::Kind::send;
    MoveSize size;
    size.payload = bytes_[(sends ? instruction.inputs : instruction.outputs)[0]];
    size.wire = sends ? size.payload : 0;
    if (sends) return size;
    size.held = size.start_peak = size.result = size.payload;
    size.takes_held = true;
    return size;
  }
  if (move.kind == Move::Kind::shift) {
    MoveSize size;
    size.payload = size.wire = bytes_[instruction.inputs[0]];
    size.held = size.start_peak = size.result = bytes_[instruction.outputs[0]];
    size.takes_held = true;
    return size;
  }
  const Slot &source = program_.slots[instruction.inputs[0]],
             &target = program_.slots[instruction.outputs[0]];
  if (!move.lands.empty()) {
    // Rows for other ranks are sent as they lie; where several groups are held, they are brought
    // into order on arrival, or before they leave.
    const Dim group = program_.graph->sparse.dims.front();
    const std::int64_t sent = bytes_[instruction.inputs[0]], kept = bytes_[instruction.outputs[0]];
    const std::int64_t ways = program_.mesh.ways(move.atoms);
    const bool home = move.to != group;
    const Layout& by_group = home ? source.layout : target.layout;
    const bool ordered =
        local_range(group, program_.graph->size(group), by_group, program_.mesh, at_).size > 1;
    MoveSize size;
    size.payload = std::max(sent, kept);
    size.wire = sent * (ways - 1) / ways;
    size.result = kept;
    size.held = size.start_peak = kept + (home && ordered ? sent : 0);
    size.takes_held = home || !ordered;
    size.finish = size.takes_held ? 0 : kept;
    size.copied = ordered ? (home ? sent : kept) : 0;
    return size;
  }
  Input in;
  in.shape = program_.local_shape(source, at_, batch_);
  in.item = bytes_of(source.dtype);
  in.ways = program_.mesh.ways(move.atoms);
  in.index = static_cast<std::size_t>(index_among(move.atoms));
  auto parts = [&](Dim dim, const Layout& layout) {
    return local_sizes(dim, program_.size(dim, batch_), layout, program_.mesh, move.atoms, at_);
  };
  if (move.from.valid()) {
    in.from = position(source.dims, move.from);
    in.from_parts = parts(move.from, source.layout);
  }
  if (move.to.valid()) {
    in.to = position(source.dims, move.to);
    in.to_parts = parts(move.to, target.layout);
  }
  switch (move.kind) {
    case Move::Kind::all_gather:
      return all_gather(in);
    case Move::Kind::reduce_scatter:
      return reduce_scatter(in);
    case Move::Kind::all_to_all:
      return all_to_all(in);
    case Move::Kind::all_reduce:
      return all_reduce(in, instruction.in_place);
    case Move::Kind::slice:
    case Move::Kind::keep:
    case Move::Kind::send:
    case Move::Kind::recv:
    case Move::Kind::shift:
      break;
  }
  MoveSize local;
  local.result = local.finish = local.copied = bytes_[instruction.outputs[0]];
  return local;
}

ReductionCost RankView::reduction(int bucket) const {
  const Bucket& b = program_.buckets[bucket];
  return b.hook ? b.hook->cost(shape_of(program_, b, at_)) : ReductionCost{};
}

RankViews::RankViews(std::shared_ptr<const RankView> largest) {
  const RankView& first = *largest;
  const Program& program = first.program();
  std::vector<std::int64_t> sizes{program.batch_of(-1)};
  views_.push_back(std::move(largest));
  for (int m = 0; m < program.microbatches; ++m) {
    const std::int64_t size = program.batch_of(m);
    const auto known = std::find(sizes.begin(), sizes.end(), size);
    kind_.push_back(static_cast<int>(known - sizes.begin()));
    if (known != sizes.end()) continue;
    sizes.push_back(size);
    views_.push_back(std::make_shared<const RankView>(program, first.at(), size));
  }
}

RankViews::RankViews(const RankView& largest)
    : RankViews(std::shared_ptr<const RankView>(std::shared_ptr<void>(), &largest)) {}

RankViews::RankViews(const Program& program, const Coordinates& at)
    : RankViews(std::make_shared<const RankView>(program, at)) {}

std::vector<int> world_atoms(const Mesh& mesh) {
  std::vector<int> atoms(mesh.atoms().size());
  std::iota(atoms.begin(), atoms.end(), 0);
  return atoms;
}

}  // namespace mw
