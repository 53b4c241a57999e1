// What an executor does with ops of the model: it brings their operands together, adds up their
// gradients, and keeps count of rows of sparse tensors, of which only the ranks that hold them know
// how many there are.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "meshwright/engine/host.h"
#include "run/executor.h"

namespace mw {
namespace {

// A kernel's, an op's or the ledger's own words, and where they were said.
Error failed(const Instruction& i, int microbatch, Problem said) {
  said.stage = Stage::run;
  said.message = fmt::format("{} (in the {} of {}, microbatch {})", said.message, name_of(i.piece),
                             i.label, microbatch);
  return Error(std::move(said));
}

// What the run's slice reads or writes of a slot's tensor.
at::Tensor part_of(const OpRun& run, const Operand& operand, const at::Tensor& tensor) {
  const std::int64_t size = tensor.size(operand.part_at) / run.slices;
  return tensor.narrow(operand.part_at, run.slice * size, size);
}

std::int64_t rows_in(const std::vector<std::int64_t>& groups) {
  return std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
}

void let_go(std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : tensors) tensor.reset();
}

}  // namespace

void Executor::gather(const std::vector<Operand>& from, std::vector<at::Tensor>& into,
                      const OpRun& run, const Microbatch& m) const {
  into.resize(from.size());
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (from[k].slot < 0) continue;
    const at::Tensor& all = tensor(m, from[k]);
    if (from[k].part_at < 0) {
      into[k] = all;
    } else {
      into[k] = part_of(run, from[k], all);
      if (!from[k].lasts) into[k] = into[k].contiguous();
    }
  }
}

void Executor::compute(Lowered& l, Microbatch& m) {
  OpCall& call = l.op->call;
  try {
    l.op->piece == Piece::forward ? forward(l, m) : backward(l, m);
  } catch (const Error& error) {
    throw failed(*l.said, m.number, error.problems().front());
  } catch (const std::exception& error) {
    throw failed(*l.said, m.number, problem_of(error));
  }
  let_go(call.inputs);
  let_go(call.outputs);
  let_go(call.saved);
  let_go(call.grad_outputs);
  let_go(call.grad_inputs);
  call.rows.clear();
}

void Executor::call(OpRun& run) {
  const OpType& type = *run.op.type;
  const int from = clock_.mark();
  switch (run.piece) {
    case Piece::forward:
      type.forward(run.op, run.call);
      break;
    case Piece::backward:
      type.backward(run.op, run.call);
      break;
    case Piece::dgrad:
      type.dgrad(run.op, run.call);
      break;
    case Piece::wgrad:
      type.wgrad(run.op, run.call);
      break;
  }
  double flops = run.flops;
  if (!run.call.rows.empty() && run.supposed > 0)
    flops *= static_cast<double>(rows_in(run.call.rows)) / static_cast<double>(run.supposed);
  work_.push_back({run.entry, flops, from, clock_.mark()});
}

void Executor::forward(const Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  OpRun& run = *l.op;
  OpCall& call = run.call;
  gather(run.inputs, call.inputs, run, m);
  for (std::size_t k = 0; k < run.inputs.size(); ++k)
    if (run.inputs[k].counted) call.inputs[k] = at::zeros_like(call.inputs[k]);
  if (call.dims.ring_step() > 0) {
    gather(run.outputs, call.outputs, run, m);
    gather(run.saved, call.saved, run, m);
  } else {
    call.outputs.resize(run.outputs.size());
    call.saved.resize(run.saved.size());
  }
  take_rows(run, m);
  if (watcher_ != nullptr && i.ring_step == 0 && !run.again) {
    for (const Operand& read : run.inputs)
      if (read.slot >= 0 && read.whole) watcher_->reads(i, read.slot, m.number, tensor(m, read));
  }
  this->call(run);
  if (run.makes_rows) {
    Rows& rows = m.rows[static_cast<std::size_t>(run.rows)];
    rows.known = true;
    rows.of_group = call.rows;
    rows.from.clear();
  }
  keep_results(l, m);
}

// What a later slice makes of a sum over all of them is added to the sum.
void Executor::keep_results(const Lowered& l, Microbatch& m) {
  OpRun& run = *l.op;
  for (std::size_t k = 0; k < run.outputs.size(); ++k) {
    at::Tensor& slot = m.slots[run.outputs[k].slot];
    if (run.outputs[k].counted) {
      slot.add_(run.call.outputs[k]);
    } else {
      slot = std::move(run.call.outputs[k]);
    }
  }
  for (std::size_t k = 0; k < run.saved.size(); ++k)
    m.slots[run.saved[k].slot] = std::move(run.call.saved[k]);
  const Instruction& i = *l.said;
  if (watcher_ == nullptr || i.ring_step + 1 != i.ring_steps || run.again) return;
  for (const Operand& made : run.outputs)
    if (made.whole) watcher_->computed(i, made.slot, m.number, tensor(m, made));
}

void Executor::backward(const Lowered& l, Microbatch& m) {
  const Instruction& i = *l.said;
  OpRun& run = *l.op;
  OpCall& call = run.call;
  if (watcher_ != nullptr && i.piece != Piece::wgrad && i.ring_step == 0) {
    for (const Operand& read : run.grad_outputs) {
      if (read.slot >= 0 && read.whole) watcher_->computed(i, read.slot, m.number, tensor(m, read));
    }
  }
  if (!run.wanted) return;
  gather(run.inputs, call.inputs, run, m);
  gather(run.outputs, call.outputs, run, m);
  gather(run.saved, call.saved, run, m);
  gather(run.grad_outputs, call.grad_outputs, run, m);
  call.grad_inputs.resize(run.ways.size());
  for (std::size_t k = 0; k < run.ways.size(); ++k) settle_gradient(run, k, m);
  take_rows(run, m);
  this->call(run);
  for (std::size_t k = 0; k < run.ways.size(); ++k) keep_gradient(run, k, m);
}

void Executor::settle_gradient(OpRun& run, std::size_t input, const Microbatch& m) {
  const Operand& to = run.grad_inputs[input];
  at::Tensor& gradient = run.call.grad_inputs[input];
  switch (run.ways[input]) {
    case GradientWay::added:
      gradient = tensor(m, to);
      return;
    case GradientWay::over_operand:
      gradient = tensor(m, run.inputs[input]);
      return;
    case GradientWay::summed:
      gradient = storage_.open(to.slot);
      run.call.accumulate[input] = storage_.written(to.slot);
      return storage_.write(to.slot);
    case GradientWay::summed_part:
      gradient = part_of(run, to, storage_.summed(to.slot));
      return;
    default:  // the kernel makes it
      return;
  }
}

void Executor::keep_gradient(const OpRun& run, std::size_t input, Microbatch& m) {
  const Operand& to = run.grad_inputs[input];
  const at::Tensor& made = run.call.grad_inputs[input];
  switch (run.ways[input]) {
    case GradientWay::made:
    case GradientWay::added:
    case GradientWay::over_operand:
      m.slots[to.slot] = made;
      return;
    case GradientWay::first_part: {
      std::vector<std::int64_t> shape = made.sizes().vec();
      shape[static_cast<std::size_t>(to.part_at)] *= run.slices;
      m.slots[to.slot] = at::zeros(shape, made.options());
    }
      [[fallthrough]];
    case GradientWay::part:
      part_of(run, to, m.slots[to.slot]).add_(made);
      return;
    case GradientWay::widened:
      return storage_.add(to.slot, made);
    case GradientWay::widened_part:
      part_of(run, to, storage_.summed(to.slot)).add_(made);
      return;
    case GradientWay::none:
    case GradientWay::summed:
    case GradientWay::summed_part:
      return;
  }
}

void Executor::take_rows(OpRun& run, const Microbatch& m) {
  if (run.rows < 0) return;
  const Rows& rows = m.rows[static_cast<std::size_t>(run.rows)];
  if (!rows.known) return;  // to be made
  run.call.rows = rows.of_group;
  if (!run.compares_rows) return;
  ledger_.compare_rows(rows_in(rows.of_group), run.supposed);
  if (!run.counts_rows) return;
  for (std::size_t g = 0; g < rows.of_group.size(); ++g) {
    ledger_.took_rows(run.op.layer, run.group + static_cast<std::int64_t>(g), rows.of_group[g]);
  }
}

void Executor::find_expert_loads() {
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const int value = program_.parameters[p].value;
    if (!graph_.value(value).counts) continue;
    const auto user = std::find_if(graph_.ops().begin(), graph_.ops().end(), [&](const Op& op) {
      return std::any_of(op.inputs.begin(), op.inputs.end(),
                         [&](const Use& use) { return use.value == value; });
    });
    expert_loads_.emplace_back(static_cast<int>(p), user->layer);
  }
}

std::map<std::pair<int, std::int64_t>, std::int64_t> Executor::expert_loads() {
  std::map<std::pair<int, std::int64_t>, std::int64_t> counts;
  if (!lowering_.first_among([](int) { return true; })) return counts;
  for (const auto& [parameter, layer] : expert_loads_) {
    const HostWait waits("the experts' load");
    const at::Tensor count = storage_.gradient(parameter).to(at::kCPU, at::kLong).contiguous();
    const auto* element = count.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count.numel(); ++i) counts[{layer, i}] = element[i];
  }
  return counts;
}

}  // namespace mw
