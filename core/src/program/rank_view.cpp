// A program's sizes on one rank: bytes of slots, costs of ops, and what each move allocates and
// sends.
#include "meshwright/engine/rank_view.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "meshwright/communicator.h"
#include "meshwright/engine/op_cost.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/optimizer.h"

namespace mw {
namespace {

void mix(std::size_t& state, std::size_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  state ^= state >> 32;
}

// A digest of what a slot's size on a rank depends on; not for flat slots.
std::size_t shape_digest(const Slot& slot) {
  std::size_t state = static_cast<std::size_t>(slot.dtype);
  mix(state, static_cast<std::size_t>(slot.extra));
  std::size_t word = slot.dims.size();
  for (const Dim dim : slot.dims) word = word << 16 ^ word >> 48 ^ dim.id();
  mix(state, word);
  for (const Placement& placement : slot.layout)
    mix(state, static_cast<std::size_t>(placement.kind) << 16 | placement.dim.id());
  if (!slot.ring.empty()) mix(state, static_cast<std::size_t>(slot.ring_step));
  if (slot.slices > 1) mix(state, static_cast<std::size_t>(slot.slices));
  return state;
}
bool same_shape_as(const Slot& a, const Slot& b) {
  return a.dtype == b.dtype && a.extra == b.extra && a.dims == b.dims && a.layout == b.layout &&
         a.ring == b.ring && (a.ring.empty() || a.ring_step == b.ring_step) &&
         a.slices == b.slices && a.slice_dim == b.slice_dim;
}

}  // namespace

RankView::RankView(const Program& program, Coordinates at, std::int64_t batch,
                   const DeviceScratch* scratch, std::shared_ptr<const DocumentWork> work,
                   int microbatch)
    : program_(program),
      at_(std::move(at)),
      batch_(batch),
      scratch_(scratch),
      work_(std::move(work)),
      microbatch_(microbatch),
      bytes_(program.slots.size(), -1),
      shapes_(program.slots.size(), -1),
      places_(program.parameters.size()),
      like_(program) {
  for (std::size_t s = 0; s < bytes_.size(); ++s) {
    if (program.slots[s].persistent && !program.slots[s].is_flat()) size_slot(static_cast<int>(s));
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
    if (slot.is_flat())
      bytes_[s] = bytes_of(slot.dtype) * program.flat_elements(slot, shards_[slot.bucket].size);
  }
  for (const Bucket& bucket : program.buckets) {
    for (int slot : bucket.flat.of_matrix)
      bytes_[slot] = bytes_of(program.slots[slot].dtype) * all_of_matrix(slot).size;
  }
}

void RankView::size_slot(int slot) const {
  const Slot& what = program_.slots[slot];
  const std::size_t digest = shape_digest(what);
  const auto [begin, end] = sized_.equal_range(digest);
  const auto same = std::find_if(
      begin, end, [&](const auto& one) { return same_shape_as(program_.slots[one.second], what); });
  if (same != end) {
    shapes_[slot] = shapes_[same->second];
    bytes_[slot] = bytes_[same->second];
    return;
  }
  sized_.emplace(digest, slot);
  shapes_[slot] = static_cast<int>(sized_.size());
  bytes_[slot] = program_.local_bytes(what, at_, batch_);
}

Range RankView::part(int slot) const {
  const Slot& flat = program_.slots[slot];
  const Range& shard = shards_[flat.bucket];
  const std::int64_t elements = program_.flat_elements(flat, shard.size);
  return elements == shard.size ? shard : Range{0, elements};
}

Range RankView::of_matrix(int slot, int parameter) const {
  const int b = program_.slots[slot].bucket;
  const Bucket& bucket = program_.buckets[b];
  const auto& slots = bucket.flat.of_matrix;
  const MatrixState& state =
      bucket.rule->of_matrix[std::find(slots.begin(), slots.end(), slot) - slots.begin()];
  // Each parameter's part begins where ATen would let a tensor of its own begin. Several ranks keep
  // the same matrix, each behind other matrices, and a library's product rounds by the address.
  constexpr std::int64_t alignment = 64;  // bytes
  const std::int64_t unit = alignment / bytes_of(program_.slots[slot].dtype);
  Range found;
  for (int p : bucket.parameters) {
    const Range place = places_[p], shard = shards_[b];
    const bool updates = std::max(place.offset, shard.offset) <
                         std::min(place.offset + place.size, shard.offset + shard.size);
    const MatrixSizes sizes = program_.matrices(program_.parameters[p], at_);
    found.size = updates ? sizes.stacked * state.elements(sizes.rows, sizes.columns) : 0;
    if (p == parameter) return found;
    found.offset += (found.size + unit - 1) / unit * unit;
  }
  return {found.offset, 0};
}

int RankView::index_among(const std::vector<int>& atoms) const {
  return program_.mesh.index_in_group(program_.mesh.rank(at_), atoms);
}

RankView::OfOp& RankView::of(int op) const {
  const auto number = static_cast<std::size_t>(like_.number(op));
  if (ops_.size() <= number) ops_.resize(number + 1);
  return ops_[number];
}

const LocalDims& RankView::dims(int op, int part) const {
  if (part > 0) {
    op = like_.first(op);
    const auto [found, missing] = ring_dims_.try_emplace({op, part});
    if (missing) found->second = program_.local_dims(op, at_, part, batch_);
    return found->second;
  }
  std::optional<LocalDims>& dims = of(op).dims;
  if (!dims) dims = program_.local_dims(like_.first(op), at_, 0, batch_);
  return *dims;
}

const Cost& RankView::cost(int op, Piece piece, int part) const {
  const auto price = [&] {
    const Op& what = program_.graph->ops()[like_.first(op)];
    Cost cost = cost_of(what, piece, dims(op, part), bytes_of(program_.dtype));
    if (work_ == nullptr) return cost;
    const double share = work_->share(*this, like_.first(op), part, microbatch_);
    cost.flops *= share;
    cost.executed *= share;
    return cost;
  };
  if (part > 0) {
    const auto [cost, missing] = ring_costs_.try_emplace({like_.first(op), piece, part});
    if (missing) cost->second = price();
    return cost->second;
  }
  std::optional<Cost>& cost = of(op).costs[static_cast<std::size_t>(piece)];
  if (!cost) cost = price();
  return *cost;
}

Scratch RankView::workspace(int op, Piece piece, int part, int ring_alike) const {
  if (part == 0 && ring_alike == 0) {
    std::optional<Scratch>& known = of(op).workspaces[static_cast<std::size_t>(piece)];
    if (!known) known = make_workspace(op, piece, 0, 0);
    return *known;
  }
  const auto [known, missing] = workspaces_.try_emplace({like_.first(op), piece, part, ring_alike});
  if (missing) known->second = make_workspace(op, piece, part, ring_alike);
  return known->second;
}

Scratch RankView::make_workspace(int op, Piece piece, int part, int ring_alike) const {
  Scratch most;
  for (int step = part; step <= part + ring_alike; ++step) {
    const Cost& declared = cost(op, piece, step);
    const Scratch one = scratch_ != nullptr  ? Scratch{scratch_->workspace(declared)}
                        : declared.workspace ? Scratch{*declared.workspace}
                                             : scratch_of(trial(op, piece, step));
    most = {std::max(most.bytes, one.bytes), most.measured && one.measured,
            std::max(most.estimated, one.estimated)};
  }
  return most;
}

KernelTrial RankView::trial(int op, Piece piece, int part) const {
  const Graph& graph = *program_.graph;
  const Op& tried = graph.ops()[like_.first(op)];
  const at::ScalarType real = scalar_type(program_.dtype);
  const auto type_of = [&](const Value& value) {
    const bool wide = value.fp32_at_least && bytes_of(program_.dtype) < 4;
    return value.scalar == Scalar::index ? at::kLong : wide ? at::kFloat : real;
  };
  KernelTrial trial{tried, piece, dims(op, part), real, program_.threads};
  // Gradients of a value that several ops read are added up, which takes a library more scratch.
  // Backward comes to the last of these ops first, which has nothing to add to.
  const auto is_read_again = [&](int value) {
    int reads = 0;
    for (auto reader = graph.ops().begin() + like_.first(op); reader != graph.ops().end(); ++reader)
      for (const Use& use : reader->inputs) reads += use.value == value ? 1 : 0;
    return reads > 1;
  };
  for (const Use& use : tried.inputs) {
    const Value& value = graph.value(use.value);
    const bool added = value.source == Value::Source::parameter
                           ? program_.gradient_dtype == program_.dtype
                           : piece != Piece::forward && is_read_again(use.value);
    trial.inputs.push_back({type_of(value), value.needs_grad, added});
  }
  for (const int output : tried.outputs) trial.outputs.push_back(type_of(graph.value(output)));
  trial.sparse = graph.sparse;
  return trial;
}

std::int64_t RankView::bytes_of_slice(const Instruction& i, int slot) const {
  const bool part = program_.sliced_at(i, slot) >= 0;
  return part ? bytes(slot) / program_.slicing_of(i)->slices : bytes(slot);
}

std::int64_t RankView::added_to(const Instruction& i, std::set<int>& begun) const {
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    const int slot = i.grad_inputs[k];
    if (slot < 0 || !i.accumulate[k] || !contributes(i.contributing[k])) continue;
    const bool first = program_.slots[slot].persistent && begun.insert(slot).second;
    if (!first) bytes += bytes_of_slice(i, slot);
  }
  return bytes;
}

std::int64_t RankView::copied_operands(const Instruction& i) const {
  if (program_.slicing_of(i) == nullptr) return 0;
  const Op& op = program_.graph->ops()[i.op];
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < i.inputs.size(); ++k) {
    const int slot = i.inputs[k];
    if (slot < 0) continue;
    const bool noughts = op.inputs[k].additive && i.piece == Piece::forward && i.slice > 0 &&
                         program_.slots[i.outputs[0]].slices == 1;
    if (noughts) bytes += bytes_of_slice(i, slot);
    const int at = program_.sliced_at(i, slot);
    if (at <= 0 || program_.slots[slot].persistent) continue;
    const std::vector<std::int64_t> shape = program_.local_shape(program_.slots[slot], at_, batch_);
    // behind dims of size 1 a part lies in one piece
    const auto lies = [](std::int64_t size) { return size == 1; };
    if (!std::all_of(shape.begin(), shape.begin() + at, lies)) bytes += bytes_of_slice(i, slot);
  }
  return bytes;
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

DataCut RankView::data_cut(int slot) const {
  static const Dim batch("batch"), seq("seq");
  const int value = program_.slots[slot].value;
  const Dims& dims = program_.graph->value(value).dims;
  const Dim along = dims.size() == 1 ? dims.front() : seq;  // of positions, their own dim
  const auto range = [&](Dim dim) {
    return local_range(dim, program_.size(dim, batch_), program_.slots[slot].layout, program_.mesh,
                       at_);
  };
  const Range columns = range(along);
  DataCut cut{range(batch), program_.permuted(along, columns)};
  cut.copies =
      cut.columns.size() > 1 || (columns.size < program_.graph->size(along) && cut.rows.size > 1);
  return cut;
}

MoveSteps RankView::steps(const Instruction& instruction) const {
  const auto& [inputs, outputs] = std::tie(instruction.inputs, instruction.outputs);
  const Slot& source = program_.slots[(inputs.empty() ? outputs : inputs)[0]];
  const Slot& target = program_.slots[(outputs.empty() ? inputs : outputs)[0]];
  MoveSteps steps = move_steps(
      instruction.move, source.dims, program_.local_shape(source, at_, batch_), source.layout,
      target.layout, program_.mesh, at_, [&](Dim dim) { return program_.size(dim, batch_); });
  if (instruction.move.kind == Move::Kind::all_reduce) steps.packs = target.alias_of < 0;
  if (instruction.move.kind == Move::Kind::shift)  // what comes is another rank's part
    steps.arrived = whole(program_.local_shape(target, at_, batch_));
  return steps;
}

// Rows for other ranks are sent as they lie. Where a rank holds several groups, rows are brought
// into order on arrival, or, on the way back, before they leave. Numbers of rows are supposed: only
// a run knows them.
MoveSize RankView::size_of_exchange(const Instruction& instruction) const {
  const Move& move = instruction.move;
  const Dim group = program_.graph->sparse.dims.front();
  const int from = instruction.inputs[0], to = instruction.outputs[0];
  const std::int64_t sent = bytes(from), kept = bytes(to);
  const std::int64_t ways = program_.mesh.ways(move.atoms);
  const bool home = move.to != group;
  const Layout& by_group = program_.slots[home ? from : to].layout;
  const bool ordered =
      local_range(group, program_.graph->size(group), by_group, program_.mesh, at_).size > 1;
  MoveSize size;
  size.payload = std::max(sent, kept);
  size.wire = sent * (ways - 1) / ways;
  size.result = kept;
  size.held = kept + (home && ordered ? sent : 0);
  size.output_is_held = home || !ordered;
  size.finish = size.output_is_held ? 0 : kept;
  size.copied = ordered ? (home ? sent : kept) : 0;
  return size;
}

MoveSize RankView::size_of(const Instruction& instruction) const {
  const Move& move = instruction.move;
  if (move.exchanges_rows()) return size_of_exchange(instruction);
  const auto& [inputs, outputs] = std::tie(instruction.inputs, instruction.outputs);
  const int source = (inputs.empty() ? outputs : inputs)[0];
  const int target = (outputs.empty() ? inputs : outputs)[0];
  bytes(source);  // sizes the slots, so that shapes_ has them
  bytes(target);
  if (shapes_[source] < 0 || shapes_[target] < 0) return size_of_steps(instruction);
  const bool aliased = program_.slots[target].alias_of >= 0;
  auto digest =
      static_cast<std::size_t>(shapes_[source]) << 32 | static_cast<std::size_t>(shapes_[target]);
  mix(digest, static_cast<std::size_t>(move.kind) << 1 | (aliased ? 1 : 0));
  for (const int atom : move.atoms) mix(digest, static_cast<std::size_t>(atom));
  const auto [begin, end] = sizes_.equal_range(digest);
  for (auto known = begin; known != end; ++known) {
    const SizedMove& one = known->second;
    if (one.kind == move.kind && one.from == move.from && one.to == move.to &&
        one.source == shapes_[source] && one.target == shapes_[target] && one.aliased == aliased &&
        one.atoms == move.atoms)
      return one.size;
  }
  const MoveSize size = size_of_steps(instruction);
  sizes_.emplace(digest, SizedMove{move.kind, move.from, move.to, shapes_[source], shapes_[target],
                                   aliased, move.atoms, size});
  return size;
}

MoveSize RankView::size_of_steps(const Instruction& instruction) const {
  const Move& move = instruction.move;
  using MoveKind = Move::Kind;
  const MoveSteps steps = this->steps(instruction);
  const auto& slots = instruction.inputs.empty() ? instruction.outputs : instruction.inputs;
  const std::int64_t item = bytes_of(program_.slots[slots[0]].dtype);
  const std::int64_t sent = item * steps.sent.elements(), arrived = item * steps.arrived.elements();
  MoveSize size;
  size.payload = move.kind == MoveKind::all_gather || move.kind == MoveKind::recv ? arrived : sent;
  if (move.kind == MoveKind::all_to_all) {
    size.wire = sent - item * steps.sent.splits()[steps.index];
  } else if (communicates(move.kind)) {
    size.wire = wire_bytes(collective_of(move.kind), size.payload, program_.mesh.ways(move.atoms));
  }
  size.held = item * steps.held();
  size.finish = item * steps.joined();
  size.result = steps.joins ? size.finish : arrived;
  size.copied = (steps.packs ? sent : 0) + size.finish;
  size.output_is_source = move.kind == MoveKind::all_reduce && !steps.packs;
  size.output_is_held = !steps.joins && !size.output_is_source;
  return size;
}

ReductionCost RankView::reduction(int bucket) const {
  const Bucket& b = program_.buckets[bucket];
  return b.hook ? b.hook->cost(shape_of(program_, b, at_)) : ReductionCost{};
}

ReductionCost RankView::gather(int bucket) const {
  const Bucket& b = program_.buckets[bucket];
  return b.gather_hook ? b.gather_hook->gather_cost(gathered_shape_of(program_, b, at_))
                       : ReductionCost{};
}

RankViews::RankViews(std::shared_ptr<const RankView> largest) {
  const RankView& first = *largest;
  const Program& program = first.program();
  const auto& work = first.work();
  std::vector<std::pair<std::int64_t, int>> kinds{{program.batch_of(-1), work ? -1 : 0}};
  views_.push_back(std::move(largest));
  for (int m = 0; m < program.microbatches; ++m) {
    const std::pair kind(program.batch_of(m), work ? work->kind(first, m) : 0);
    const auto known = std::find(kinds.begin(), kinds.end(), kind);
    kind_.push_back(static_cast<int>(known - kinds.begin()));
    if (known != kinds.end()) continue;
    kinds.push_back(kind);
    views_.push_back(std::make_shared<const RankView>(program, first.at(), kind.first,
                                                      first.scratch(), work, m));
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
