// Resolves a program's instructions for one rank: operands, kernels, sizes, steps of moves, and
// where the ledger books them.
#include "run/lowered.h"

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>

#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/optimizer.h"
#include "program/slots.h"

namespace mw {
namespace {

bool recomputes(const Instruction& i) {
  return i.phase == std::string_view("recompute");
}

}  // namespace

Lowering::Lowering(const RankViews& sizes, at::Device device, Ledger& ledger)
    : sizes_(sizes),
      program_(sizes.of_kind(0).program()),
      graph_(*program_.graph),
      at_(sizes.of_kind(0).at()),
      device_(device),
      ledger_(ledger),
      rows_of_slot_(program_.slots.size(), -1),
      updates_(program_.buckets.size()) {
  number_rows();
  std::set<int> segments;
  for (const SegmentRun& run : program_.timeline) {
    if (!segments.insert(run.segment).second) continue;
    for (const Instruction& i : program_.segments[run.segment].code) note(i);
  }
}

void Lowering::note(const Instruction& i) {
  if (completes_update(program_, i)) updates_[i.bucket].push_back(&i);
  const bool gram = i.update == Update::gram && !program_.buckets[i.bucket].shard_atoms.empty();
  const bool moves = i.code == Code::move || i.begins_transfer();
  if (gram || (moves && !i.inputs.empty() && of_some_.contains(i.inputs[0])))
    of_some_.insert(i.outputs.begin(), i.outputs.end());
}

void Lowering::number_rows() {
  if (graph_.sparse.dims.empty()) return;
  std::vector<SparseRows> known;
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    std::optional<SparseRows> rows = sparse_rows(program_, static_cast<int>(s));
    if (!rows) continue;
    const auto found = std::find(known.begin(), known.end(), *rows);
    rows_of_slot_[s] = static_cast<int>(found - known.begin());
    if (found == known.end()) known.push_back(std::move(*rows));
  }
  rows_ = known.size();
}

LoweredCode Lowering::segment(int segment, const std::vector<int>& kinds) const {
  const std::vector<Instruction>& code = program_.segments[segment].code;
  LoweredCode lowered;
  for (std::size_t n = 0; n < code.size(); ++n) {
    const RankView& sizes = sizes_.of_kind(kinds.at(static_cast<std::size_t>(code[n].lane)));
    const auto add = [&](const Instruction& i, int inner) {
      Lowered& l = lowered.list.emplace_back(lower(i, sizes));
      l.lane = code[n].lane;
      l.index = static_cast<int>(n);
      l.inner = inner;
    };
    if (!code[n].ring) {
      add(code[n], -1);
      continue;
    }
    int inner = 0;
    for (const Instruction& step : lowered.rings.emplace_back(ring_steps(program_, code[n])))
      add(step, inner++);
  }
  return lowered;
}

LoweredCode Lowering::updates() const {
  LoweredCode updates;
  for (const auto& code : updates_)
    for (const Instruction* i : code) updates.list.push_back(lower(*i, sizes_.of_kind(0)));
  return updates;
}

Operand Lowering::operand(int slot) const {
  if (slot < 0) return {};
  const Slot& of = program_.slots[slot];
  return {slot, rows_of_slot_[slot], -1, of.persistent, of.slices == 1};
}

Operand Lowering::operand(const Instruction& i, int slot) const {
  Operand made = operand(slot);
  if (slot >= 0) made.part_at = static_cast<std::int8_t>(program_.sliced_at(i, slot));
  return made;
}

std::vector<Operand> Lowering::operands(const Instruction& i, const Slots& slots) const {
  std::vector<Operand> made;
  for (const int slot : slots) made.push_back(operand(i, slot));
  return made;
}

Lowered Lowering::lower(const Instruction& i, const RankView& sizes) const {
  const RankView& rank = sizes_.of_kind(0);
  Lowered l;
  l.said = &i;
  l.code = i.code;
  l.of_step = between_lasting(program_, i);
  // Other programs have other pending numbers: what outlasts a step has one by its bucket.
  const int buckets = static_cast<int>(program_.buckets.size());
  l.transfer = !outlasts_step(program_, i)           ? i.pending
               : i.serves == Serves::outer_gradients ? -1 - buckets - i.bucket
                                                     : -1 - i.bucket;
  l.completes_update = completes_update(program_, i);
  l.ends_update = l.completes_update && updates_[i.bucket].back() == &i;
  if (!i.inputs.empty()) l.input = operand(i.inputs[0]);
  if (!i.outputs.empty()) l.output = operand(i.outputs[0]);
  l.shown = (i.code == Code::move || i.code == Code::wait || i.code == Code::copy) &&
            l.output.slot >= 0 && !l.output.lasts && l.output.whole &&
            !of_some_.contains(l.output.slot);
  for (const int slot : i.release) l.release.push_back(operand(slot));
  if (!device_.is_cpu()) for_each_slot(i, [&](int slot) { l.touched.push_back(operand(slot)); });
  if (i.code == Code::load) l.load = load(i, sizes);
  if (i.runs_op()) l.op = op_run(i, sizes);
  if (i.code == Code::compute && i.update != Update::none) l.update = update_run(i);
  // Only ranks that update an element of the parameter's matrices carry it out.
  l.idle = l.update && i.parameter >= 0 && i.owner < 0 && l.update->own.size <= 0 &&
           (i.update == Update::whole || i.update == Update::apply);
  const bool starts = i.code == Code::start && !l.of_step && !i.move.exchanges_rows();
  if (i.code == Code::move || starts) l.move = std::make_unique<ReadyMove>(sizes.steps(i));
  if (i.code == Code::add) l.idle = !i.contributing.empty() && !rank.contributes(i.contributing[0]);
  if (i.code == Code::begin_sum)  // a rank that contributes goes on with the sum so far
    l.idle = !i.contributing.empty() && !i.contributing[0].empty() &&
             rank.contributes(i.contributing[0]);
  for (std::size_t k = 0; i.code == Code::totals && k < i.inputs.size(); ++k)
    l.shares.push_back(rank.contributes(i.contributing[k]) ? 1 : 0);
  return l;
}

std::unique_ptr<OpRun> Lowering::op_run(const Instruction& i, const RankView& sizes) const {
  const Op& op = graph_.ops()[i.op];
  const Slicing* sliced = program_.slicing_of(i);
  constexpr std::array kernels{&OpType::forward, &OpType::backward, &OpType::dgrad, &OpType::wgrad};
  auto run =
      std::make_unique<OpRun>(OpRun{op, i.piece, kernels.at(static_cast<std::size_t>(i.piece)),
                                    OpCall{sizes.dims(i.op, i.part())}});
  run->inputs = operands(i, i.inputs);
  run->outputs = operands(i, i.outputs);
  run->saved = operands(i, i.saved);
  run->grad_outputs = operands(i, i.grad_outputs);
  run->grad_inputs = operands(i, i.grad_inputs);
  const bool forward = i.piece == Piece::forward;
  run->shows_operands = i.part() == 0 && (forward ? !recomputes(i) : i.piece != Piece::wgrad);
  run->shows_results = forward && !recomputes(i) && i.part() + 1 == i.parts();
  run->flops = sizes.cost(i.op, i.piece, i.part()).executed;
  run->entry = ledger_.work_entry(op.kind(), name_of(i.piece));
  OpCall& call = run->call;
  call.in_place = i.in_place;
  call.real = scalar_type(program_.dtype);
  call.ring_steps = i.ring_steps;
  run->slice = i.slice;
  run->slices = i.slices;
  if (run->slice > 0) {
    const Dims& dims = graph_.value(op.outputs[0]).dims;
    const bool sums = std::none_of(dims.begin(), dims.end(),
                                   [&](Dim dim) { return contains(sliced->dims, dim); });
    for (std::size_t k = 0; k < run->inputs.size(); ++k)
      run->inputs[k].counted = sums && op.inputs[k].additive;
    for (Operand& output : run->outputs) output.counted = output.whole;
  }
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    run->ways.push_back(way(i, k, *run));
    call.wants.push_back(run->ways[k] != GradientWay::none);
    call.accumulate.push_back(run->ways[k] == GradientWay::made && i.accumulate[k]);
  }
  const auto add_shape = [&](const Dims& called, int value) {
    const bool rows = graph_.sparse.has(graph_.value(value).dims);
    run->shapes.push_back(rows ? std::nullopt : std::optional(call.dims.shape(called)));
  };
  for (std::size_t k = 0; forward && k < op.outputs.size(); ++k)
    add_shape(op.output_dims[k], op.outputs[k]);
  for (std::size_t k = 0; !forward && k < i.grad_inputs.size(); ++k)
    add_shape(op.inputs[k].dims, op.inputs[k].value);
  run->wanted =
      forward || std::find(call.wants.begin(), call.wants.end(), true) != call.wants.end();
  if (rows_ > 0) find_rows(i, sizes, *run);
  return run;
}

GradientWay Lowering::way(const Instruction& i, std::size_t input, const OpRun& run) const {
  const Operand& to = run.grad_inputs[input];
  if (to.slot < 0) return GradientWay::none;
  // An additive operand of a sum over slices counts in the first slice alone.
  if (input < run.inputs.size() && run.inputs[input].counted) return GradientWay::none;
  if (to.lasts && !sizes_.of_kind(0).contributes(i.contributing[input])) return GradientWay::none;
  const bool wide = to.lasts && program_.gradient_dtype != program_.dtype;
  if (to.part_at >= 0 && (wide || !to.lasts)) return GradientWay::part;
  return wide ? GradientWay::widened : to.lasts ? GradientWay::summed : GradientWay::made;
}

void Lowering::find_rows(const Instruction& i, const RankView& sizes, OpRun& run) const {
  for (const auto* operands : {&run.inputs, &run.grad_outputs, &run.outputs, &run.grad_inputs}) {
    for (const Operand& operand : *operands)
      if (run.rows < 0) run.rows = operand.rows;
  }
  if (run.rows < 0) return;
  const Sparse& sparse = graph_.sparse;
  const LocalDims& dims = sizes.dims(i.op);
  run.supposed = dims.count(sparse.dims);
  run.makes_rows = i.piece == Piece::forward &&
                   std::none_of(run.op.inputs.begin(), run.op.inputs.end(),
                                [&](const Use& use) { return sparse.has(use.dims); });
  run.compares_rows = run.op.counts_rows && i.piece == Piece::forward && !recomputes(i);
  if (!run.compares_rows) return;
  run.group = dims.at(sparse.dims.front()).offset;
  // Where several ranks work on the same rows, the first of them counts.
  std::vector<int> alike = world_atoms(program_.mesh);
  std::erase_if(alike, [&](int atom) {
    const Placement& cut = program_.cut[i.op][atom];
    return atom == program_.stage_atom || (cut.is_shard() && contains(sparse.dims, cut.dim));
  });
  run.counts_rows = sizes.contributes(alike);
}

std::unique_ptr<UpdateRun> Lowering::update_run(const Instruction& i) const {
  auto run = std::make_unique<UpdateRun>();
  const RankView& sizes = sizes_.of_kind(0);
  const Bucket& bucket = program_.buckets[i.bucket];
  run->states =
      i.saved.empty() ? bucket.flat.states : std::vector<int>(i.saved.begin(), i.saved.end());
  const bool outer = of_outer_step(i.update);
  if (outer) run->states = bucket.flat.outer_states;
  const UpdateRule* const rule = rule_of_update(program_, i);
  const bool reads_sums = rule != nullptr && !rule->sums.empty();
  if (i.update == Update::apply || i.update == Update::sums || outer) {
    const UpdateSteps steps = update_steps(sizes, i, !device_.is_cpu());
    run->host = steps.host;
    run->casts = steps.casts;
    run->at_a_time = steps.at_a_time;
    if (reads_sums) add_summed(i, sizes, *run);
    const bool by_piece = rule != nullptr && !reads_sums && i.parameter < 0;
    for (std::int64_t at = 0; by_piece && at < steps.elements; at += steps.at_a_time)
      run->parts.push_back({rule->apply, {at, std::min(steps.at_a_time, steps.elements - at)}});
    for (int p : bucket.counts && !outer ? bucket.parameters : std::vector<int>()) {
      const auto& op = graph_.value(program_.parameters[p].value).moved_by;
      if (op) run->parts.push_back({op.get(), sizes.place(p)});
    }
  }
  if (i.parameter < 0) return run;
  if (i.update == Update::direction) {
    run->shape = program_.local_shape(program_.slots[i.outputs[0]], at_);
    return run;
  }
  if (i.update == Update::gram || i.update == Update::gram_step) {
    run->takes_part = takes_part(sizes, i);
    run->parts_of_matrices = matrix_parts(sizes, i.parameter);
    run->shape = program_.local_shape(program_.slots[i.outputs[0]], at_);
    return run;
  }
  run->takes_part = i.owner < 0 || takes_part(sizes, i);
  const MatrixUpdate& matrix = run->matrix = matrix_update(sizes, i);
  run->own = {matrix.first + matrix.begin - sizes.shard(i.bucket).offset,
              matrix.end - matrix.begin};
  run->kept = kept_of(bucket, sizes, i.parameter, matrix);
  return run;
}

// What the rule keeps of a parameter's matrices.
std::vector<UpdateRun::Kept> Lowering::kept_of(const Bucket& bucket, const RankView& sizes,
                                               int parameter, const MatrixSizes& matrix) {
  std::vector<UpdateRun::Kept> kept;
  for (std::size_t k = 0; k < bucket.flat.of_matrix.size(); ++k) {
    const int slot = bucket.flat.of_matrix[k];
    const auto [rows, columns] = bucket.rule->of_matrix[k].shape(matrix.rows, matrix.columns);
    kept.push_back({slot, sizes.of_matrix(slot, parameter), {matrix.stacked, rows, columns}});
  }
  return kept;
}

void Lowering::add_summed(const Instruction& i, const RankView& sizes, UpdateRun& run) const {
  const Bucket& bucket = program_.buckets[i.bucket];
  const SumPlaces places = places_of_sums(program_, i.bucket);
  for (std::size_t n = 0; n < bucket.parameters.size(); ++n) {
    const int p = bucket.parameters[n];
    UpdateRun::Summed one{.part = updated_part(sizes, i.bucket, n)};
    if (one.part.elements.size == 0) continue;
    one.first = sizes.place(p).offset + one.part.elements.offset - sizes.shard(i.bucket).offset;
    one.contributes = i.contributing.empty() || sizes.contributes(i.contributing[n]);
    one.places = places.of_parameter[n];
    one.kept = kept_of(bucket, sizes, p, program_.matrices(program_.parameters[p], at_));
    run.summed.push_back(std::move(one));
  }
}

std::vector<Loaded> Lowering::load(const Instruction& i, const RankView& sizes) const {
  std::vector<Loaded> all;
  for (const int slot : i.outputs) {
    Loaded one{data_value_of(program_.slots[slot].name), slot};
    if (is_read_in_rows(one.what)) {
      one.input = input_cut(sizes, slot);
      one.shares = all.size();
      all.push_back(std::move(one));
      continue;
    }
    one.cut = sizes.data_cut(slot);
    const auto same = std::find_if(all.begin(), all.end(), [&](const Loaded& other) {
      return (other.what == DataValue::tokens || other.what == DataValue::labels) &&
             one.cut.of_rows(other.cut.rows);
    });
    one.shares = static_cast<std::size_t>(same - all.begin());
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace mw
