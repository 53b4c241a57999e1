// What an executor does with ops: those of the model, whose operands it brings together and whose
// gradients it adds up; and rows of sparse tensors, of which only the ranks that hold them know how
// many there are.
#include "run/executor.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "meshwright/engine/host.h"
#include "meshwright/optimizer.h"
#include "program/slots.h"
#include "program/update_steps.h"

namespace mw {

at::Tensor Executor::part_of(const Instruction& i, int slot, const at::Tensor& tensor) const {
  const int at = program_.sliced_at(i, slot);
  if (at < 0) return tensor;
  const std::int64_t size = tensor.size(at) / program_.slicing_of(i)->slices;
  return tensor.narrow(at, i.ring_step * size, size);
}

// Decides whether this rank writes, adds to or leaves out the gradient of operand `input`.
void Executor::settle_gradient(const Instruction& i, std::size_t input, Microbatch& m,
                               OpCall& call) {
  const int slot = i.grad_inputs[input];
  call.wants[input] = slot >= 0;
  if (slot < 0) return;
  // An additive operand of a sum over the slices counts in the first of them.
  if (i.ring_step > 0 && graph_.ops()[i.op].inputs[input].additive && sums_slices(i)) {
    call.wants[input] = false;
    return;
  }
  const bool part = program_.sliced_at(i, slot) >= 0;
  if (!lasts(slot)) {
    if (part) return;  // made apart, and brought to its part of the slot
    call.accumulate[input] = i.accumulate[input];
    if (i.accumulate[input]) {
      call.grad_inputs[input] = tensor(m, slot);
    } else if (i.in_place) {  // granted for all gradients or none (plan/lifetimes)
      call.grad_inputs[input] = tensor(m, i.inputs[input]);
    }
    return;
  }
  if (!sizes_.of_kind(0).contributes(i.contributing[input])) {
    call.wants[input] = false;
    return;
  }
  if (widens()) return;
  if (part) {
    call.grad_inputs[input] = part_of(i, slot, storage_.summed(slot));
    call.accumulate[input] = true;
    return;
  }
  call.grad_inputs[input] = storage_.open(slot);
  call.accumulate[input] = storage_.written(slot);
  storage_.write(slot);
}

void Executor::keep_gradient(const Instruction& i, std::size_t input, Microbatch& m,
                             const OpCall& call) {
  const int slot = i.grad_inputs[input];
  if (slot < 0 || !call.wants[input]) return;
  const at::Tensor& made = call.grad_inputs[input];
  const bool part = program_.sliced_at(i, slot) >= 0;
  if (lasts(slot)) {
    if (widens() && part) {
      part_of(i, slot, storage_.summed(slot)).add_(made);
    } else if (widens()) {
      storage_.add(slot, made);
    }
    return;
  }
  if (!part) {
    m.slots[slot] = made;
    return;
  }
  if (!i.accumulate[input]) {  // the first slice; the others fill up their parts
    std::vector<std::int64_t> shape = made.sizes().vec();
    shape[program_.sliced_at(i, slot)] *= program_.slicing_of(i)->slices;
    m.slots[slot] = at::zeros(shape, made.options());
  }
  part_of(i, slot, tensor(m, slot)).add_(made);
}

void Executor::call(const Instruction& i, const Microbatch& m, OpCall& call) {
  const Op& op = graph_.ops()[i.op];
  const int from = clock_.mark();
  switch (i.piece) {
    case Piece::forward:
      op.type->forward(op, call);
      break;
    case Piece::backward:
      op.type->backward(op, call);
      break;
    case Piece::dgrad:
      op.type->dgrad(op, call);
      break;
    case Piece::wgrad:
      op.type->wgrad(op, call);
      break;
  }
  double flops = m.sizes->cost(i.op, i.piece, i.ring_step).executed;
  if (!call.rows.empty()) flops *= share_of_rows(i, *m.sizes, call.rows);
  work_.push_back({&op, i.piece, flops, from, clock_.mark()});
}

bool Executor::sums_slices(const Instruction& i) const {
  const Slicing* sliced = program_.slicing_of(i);
  if (sliced == nullptr) return false;
  const Dims& dims = graph_.value(graph_.ops()[i.op].outputs[0]).dims;
  return std::none_of(dims.begin(), dims.end(),
                      [&](Dim dim) { return contains(sliced->dims, dim); });
}

void Executor::compute(const Instruction& i, Microbatch& m, int microbatch) {
  const bool sliced = program_.slicing_of(i) != nullptr;
  auto gather = [&](const std::vector<int>& slots) {
    std::vector<at::Tensor> tensors(slots.size());
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] < 0) continue;
      tensors[k] = part_of(i, slots[k], tensor(m, slots[k]));
      const bool part = program_.sliced_at(i, slots[k]) >= 0;
      if (part && !lasts(slots[k])) tensors[k] = tensors[k].contiguous();
    }
    return tensors;
  };
  OpCall call{m.sizes->dims(i.op, i.ring_step),
              gather(i.inputs),
              {},
              {},
              {},
              {},
              {},
              {},
              i.in_place,
              real_,
              {},
              sliced ? 0 : i.ring_step,
              sliced ? 1 : i.ring_steps};
  if (i.piece == Piece::forward) {
    if (sliced && i.ring_step > 0 && sums_slices(i)) {
      for (std::size_t k = 0; k < call.inputs.size(); ++k) {
        if (graph_.ops()[i.op].inputs[k].additive) call.inputs[k] = at::zeros_like(call.inputs[k]);
      }
    }
    if (call.ring_step > 0) {
      call.outputs = gather(i.outputs);
      call.saved = gather(i.saved);
    } else {
      call.outputs.resize(i.outputs.size());
      call.saved.resize(i.saved.size());
    }
    take_rows(i, m, call);
    if (watcher_ != nullptr && i.ring_step == 0 && !recomputes(i)) {
      for (int slot : i.inputs) {
        if (slot >= 0 && program_.slots[slot].slices == 1)
          watcher_->reads(i, slot, microbatch, tensor(m, slot));
      }
    }
    this->call(i, m, call);
    keep_rows(i, m, call);
    keep_results(i, m, microbatch, call);
    return;
  }
  call.outputs = gather(i.outputs);
  call.saved = gather(i.saved);
  call.grad_outputs = gather(i.grad_outputs);
  if (watcher_ != nullptr && i.piece != Piece::wgrad && i.ring_step == 0) {
    for (int slot : i.grad_outputs) {
      if (slot >= 0 && program_.slots[slot].slices == 1)
        watcher_->computed(i, slot, microbatch, tensor(m, slot));
    }
  }
  call.grad_inputs.resize(i.grad_inputs.size());
  call.wants.assign(i.grad_inputs.size(), false);
  call.accumulate.assign(i.grad_inputs.size(), false);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) settle_gradient(i, k, m, call);
  if (std::none_of(call.wants.begin(), call.wants.end(), [](bool w) { return w; })) return;
  take_rows(i, m, call);
  this->call(i, m, call);
  keep_rows(i, m, call);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) keep_gradient(i, k, m, call);
}

// Results of forward; what a later slice makes of a sum over all of them is added to the sum.
void Executor::keep_results(const Instruction& i, Microbatch& m, int microbatch, OpCall& call) {
  const bool later = program_.slicing_of(i) != nullptr && i.ring_step > 0;
  for (std::size_t k = 0; k < i.outputs.size(); ++k) {
    at::Tensor& slot = m.slots[i.outputs[k]];
    if (later && program_.slots[i.outputs[k]].slices == 1) {
      slot.add_(call.outputs[k]);
    } else {
      slot = std::move(call.outputs[k]);
    }
  }
  for (std::size_t k = 0; k < i.saved.size(); ++k) m.slots[i.saved[k]] = std::move(call.saved[k]);
  if (watcher_ == nullptr || i.ring_step + 1 != i.ring_steps || recomputes(i)) return;
  for (int slot : i.outputs) {
    if (program_.slots[slot].slices == 1) watcher_->computed(i, slot, microbatch, tensor(m, slot));
  }
}

namespace {

std::int64_t sum(const std::vector<std::int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), std::int64_t{0});
}

// Sums over equal runs: rows for each rank, of rows for each group.
std::vector<std::int64_t> by_rank(const std::vector<std::int64_t>& groups, int ranks) {
  const std::size_t each = groups.size() / static_cast<std::size_t>(ranks);
  std::vector<std::int64_t> rows;
  for (auto at = groups.begin(); at != groups.end(); at += static_cast<std::ptrdiff_t>(each)) {
    rows.push_back(std::accumulate(at, at + static_cast<std::ptrdiff_t>(each), std::int64_t{0}));
  }
  return rows;
}

// Rows of an exchange with so many `from` each rank and of each group: they travel by rank and lie
// by group.
at::Tensor reordered(const at::Tensor& rows, const std::vector<std::vector<std::int64_t>>& from,
                     bool by_group) {
  const std::size_t ranks = from.size(), groups = from.empty() ? 0 : from.front().size();
  if (ranks < 2 || groups < 2) return rows;
  std::vector<at::Tensor> runs(ranks * groups);
  std::int64_t place = 0;
  for (std::size_t n = 0; n < runs.size(); ++n) {  // as they are
    const std::size_t rank = by_group ? n / groups : n % ranks;
    const std::size_t group = by_group ? n % groups : n / ranks;
    runs[by_group ? group * ranks + rank : rank * groups + group] =
        rows.narrow(0, place, from[rank][group]);
    place += from[rank][group];
  }
  return at::cat(runs);
}

}  // namespace

void Executor::number_rows() {
  rows_of_slot_.assign(program_.slots.size(), -1);
  std::set<int> seen;
  last_run_.resize(program_.timeline.size());
  for (std::size_t r = last_run_.size(); r-- > 0;) {
    const SegmentRun& run = program_.timeline[r];
    for (int lane = 0; lane < lanes_of(run); ++lane)
      last_run_[r].push_back(seen.insert(microbatch_of(run, lane)).second);
  }
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const int value = program_.parameters[p].value;
    if (!graph_.value(value).counts) continue;
    const auto user = std::find_if(graph_.ops().begin(), graph_.ops().end(), [&](const Op& op) {
      return std::any_of(op.inputs.begin(), op.inputs.end(),
                         [&](const Use& use) { return use.value == value; });
    });
    expert_loads_.emplace_back(static_cast<int>(p), user->layer);
  }
  if (graph_.sparse.dims.empty()) return;
  std::vector<SparseRows> known;
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    std::optional<SparseRows> rows = sparse_rows(program_, static_cast<int>(s));
    if (!rows) continue;
    const auto found = std::find(known.begin(), known.end(), *rows);
    rows_of_slot_[s] = static_cast<int>(found - known.begin());
    if (found == known.end()) known.push_back(std::move(*rows));
  }
}

double Executor::share_of_rows(const Instruction& i, const RankView& sizes,
                               const std::vector<std::int64_t>& rows) const {
  const std::int64_t supposed = sizes.dims(i.op).count(graph_.sparse.dims);
  return supposed > 0 ? static_cast<double>(sum(rows)) / static_cast<double>(supposed) : 1;
}

int Executor::sparse_operand(const Instruction& i) const {
  if (graph_.sparse.dims.empty()) return -1;
  for (const auto* slots : {&i.inputs, &i.grad_outputs, &i.outputs, &i.grad_inputs}) {
    const auto found = std::find_if(slots->begin(), slots->end(), [&](int s) { return sparse(s); });
    if (found != slots->end()) return *found;
  }
  return -1;
}

void Executor::take_rows(const Instruction& i, Microbatch& m, OpCall& call) {
  const int slot = sparse_operand(i);
  if (slot < 0) return;
  const auto known = m.rows.find(rows_of_slot_[slot]);
  if (known == m.rows.end()) return;  // to be made
  call.rows = known->second.of_group;
  const Op& op = graph_.ops()[i.op];
  if (!op.counts_rows || i.piece != Piece::forward || recomputes(i)) return;
  const Dims& cells = graph_.sparse.dims;
  ledger_.compare_rows(sum(call.rows), m.sizes->dims(i.op).count(cells));
  // Where several ranks work on the same rows, the first of them counts.
  const auto alike = [&](int atom) {
    const Placement& cut = program_.cut[i.op][atom];
    return !cut.is_shard() || std::find(cells.begin(), cells.end(), cut.dim) == cells.end();
  };
  if (contributes(alike)) {
    const std::int64_t first = m.sizes->dims(i.op).at(graph_.sparse.dims.front()).offset;
    for (std::size_t g = 0; g < call.rows.size(); ++g) {
      ledger_.took_rows(op.layer, first + static_cast<std::int64_t>(g), call.rows[g]);
    }
  }
}

void Executor::keep_rows(const Instruction& i, Microbatch& m, OpCall& call) {
  const int slot = sparse_operand(i);
  if (slot < 0) return;
  const bool makes =
      std::none_of(graph_.ops()[i.op].inputs.begin(), graph_.ops()[i.op].inputs.end(),
                   [&](const Use& use) { return graph_.sparse.has(use.dims); });
  if (!makes) return;
  if (i.piece == Piece::forward) m.rows[rows_of_slot_[slot]] = {call.rows, {}};
}

std::map<std::pair<int, std::int64_t>, std::int64_t> Executor::expert_loads() {
  std::map<std::pair<int, std::int64_t>, std::int64_t> counts;
  if (!contributes([](int) { return true; })) return counts;
  for (const auto& [parameter, layer] : expert_loads_) {
    const HostWait waits("the experts' load");
    const at::Tensor count = storage_.gradient(parameter).to(at::kCPU, at::kLong).contiguous();
    const auto* element = count.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count.numel(); ++i) counts[{layer, i}] = element[i];
  }
  return counts;
}

Underway Executor::start_exchange(const Instruction& i, Microbatch& m) {
  const at::Tensor& input = tensor(m, i.inputs[0]);
  Communicator& ranks = group({i.move.atoms, {}, true}, i.move.stream);
  const Purpose purpose{i.phase, &i.label};
  const int ways = ranks.ways();
  const auto counts = at::TensorOptions().dtype(at::kLong);
  Rows& source = m.rows.at(rows_of_slot_[i.inputs[0]]);
  const auto shape_of = [&](std::int64_t rows) {
    auto shape = input.sizes().vec();
    shape[0] = rows;
    return shape;
  };
  if (i.move.to != graph_.sparse.dims.front()) {  // home: to those that hold the tokens
    const Rows& target = m.rows.at(rows_of_slot_[i.outputs[0]]);
    const at::Tensor in = reordered(input, source.from, false).contiguous();
    std::vector<std::int64_t> in_splits;
    for (const auto& from : source.from) in_splits.push_back(sum(from));
    at::Tensor out = at::empty(shape_of(sum(target.of_group)), input.options());
    Pending pending = ranks.all_to_all(out, in, by_rank(target.of_group, ways), in_splits, purpose);
    return {std::move(pending), [out, in] { return out; }};
  }
  const int going = rows_of_slot_[i.outputs[0]];
  if (i.move.brings_counts) {  // how many will come, and from whom
    Rows& target = m.rows[going] = {};
    const std::size_t here = source.of_group.size() / static_cast<std::size_t>(ways);
    const at::Tensor mine = sent_to(device_, at::tensor(source.of_group, counts));
    const at::Tensor theirs = at::empty_like(mine);
    ranks.all_to_all(theirs, mine, {}, {}, purpose).wait();
    const HostWait waits("rows of experts");
    const at::Tensor arrived = theirs.cpu();
    target.of_group.assign(here, 0);
    target.from.assign(ways, std::vector<std::int64_t>(here));
    for (std::size_t rank = 0; rank < target.from.size(); ++rank) {
      for (std::size_t g = 0; g < here; ++g) {
        const std::int64_t rows = arrived.const_data_ptr<std::int64_t>()[rank * here + g];
        target.from[rank][g] = rows;
        target.of_group[g] += rows;
      }
    }
  }
  const auto known = m.rows.find(going);
  if (known == m.rows.end()) {  // a pass's mistake
    throw std::logic_error(i.label +
                           ": rows are exchanged before the exchange that brings their counts");
  }
  const Rows& target = known->second;
  std::vector<std::int64_t> out_splits;
  for (const auto& from : target.from) out_splits.push_back(sum(from));
  const at::Tensor in = input.contiguous();
  const at::Tensor out = at::empty(shape_of(sum(target.of_group)), input.options());
  Pending pending = ranks.all_to_all(out, in, out_splits, by_rank(source.of_group, ways), purpose);
  return {std::move(pending), [out, in, from = target.from] { return reordered(out, from, true); }};
}

}  // namespace mw
