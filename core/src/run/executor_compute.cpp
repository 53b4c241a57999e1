// Runs ops of the model in an executor: brings their operands together, adds up their gradients,
// and counts rows of sparse tensors, whose number only the ranks that hold them know.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "meshwright/engine/host.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "run/executor.h"

namespace mw {
namespace {

// What the run's slice reads or writes of a slot's tensor.
at::Tensor part_of(const OpRun& run, const Operand& operand, const at::Tensor& tensor) {
  if (operand.part_at < 0) return tensor;
  const std::int64_t size = tensor.size(operand.part_at) / run.slices;
  return tensor.narrow(operand.part_at, run.slice * size, size);
}

// Checks what an op has made; throws Error (run). Transfers and flat sums need it contiguous, and a
// derivative by torch may be a view in another order.
at::Tensor taken(const OpRun& run, std::size_t k, Dtype dtype, at::Tensor made) {
  const auto& shape = run.shapes[k];
  const bool fits = made.defined() && (!shape || made.sizes() == at::IntArrayRef(*shape));
  if (fits && made.scalar_type() == scalar_type(dtype))
    return made.is_contiguous() ? std::move(made) : made.contiguous();
  const bool forward = run.piece == Piece::forward;
  const std::string what =
      forward ? fmt::format("output {}", k) : fmt::format("the gradient of input {}", k);
  const auto text = [](at::IntArrayRef sizes) {
    return fmt::format("[{}]", fmt::join(sizes, ", "));
  };
  if (fits) {
    throw Error(Stage::run, "check.placement", "",
                fmt::format("{} ({}), {}: {} has the dtype {}, where {} is needed", run.op.name,
                            run.op.kind(), name_of(run.piece), what,
                            at::toString(made.scalar_type()), at::toString(scalar_type(dtype))),
                "mend the op's kernel: reals have the dtype OpCall::real, or fp32 where "
                "OpTraits::fp32_outputs says so, and a gradient has that of its input "
                "(meshwright/op.h)");
  }
  throw Error(
      Stage::run, "check.placement", "",
      made.defined()
          ? fmt::format("{} ({}), {}: {} has the shape {}, where its dims have {} on this rank",
                        run.op.name, run.op.kind(), name_of(run.piece), what, text(made.sizes()),
                        text(*shape))
          : fmt::format("{} ({}), {}: {} was not made", run.op.name, run.op.kind(),
                        name_of(run.piece), what),
      "mend the op's kernel: OpCall::dims says the sizes on a rank (meshwright/op.h)");
}

std::int64_t rows_in(const std::vector<std::int64_t>& groups) {
  return std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
}

}  // namespace

void Executor::gather(const std::vector<Operand>& from, std::vector<at::Tensor>& into,
                      const OpRun& run, const Microbatch& m) const {
  into.resize(from.size());
  for (std::size_t k = 0; k < from.size(); ++k) {
    if (from[k].slot < 0) continue;
    const at::Tensor& all = tensor(m, from[k]);
    into[k] = part_of(run, from[k], all);
    if (from[k].part_at >= 0 && !from[k].lasts) into[k] = into[k].contiguous();
  }
}

void Executor::compute(Lowered& l, Microbatch& m) {
  OpRun& run = *l.op;
  OpCall& call = run.call;
  call.draws = !forward_only_;
  const bool forward = run.piece == Piece::forward;
  if (run.shows_operands)
    forward ? show(&Watcher::reads, l, run.inputs, m)
            : show(&Watcher::computed, l, run.grad_outputs, m);
  if (!run.wanted) return;
  gather(run.inputs, call.inputs, run, m);
  if (forward) {
    for (std::size_t k = 0; k < run.inputs.size(); ++k)
      if (run.inputs[k].counted) call.inputs[k] = at::zeros_like(call.inputs[k]);
  }
  if (forward && call.dims.ring_step() == 0) {
    call.outputs.resize(run.outputs.size());
    call.saved.resize(run.saved.size());
  } else {
    gather(run.outputs, call.outputs, run, m);
    gather(run.saved, call.saved, run, m);
  }
  gather(run.grad_outputs, call.grad_outputs, run, m);
  call.grad_inputs.resize(run.ways.size());
  for (std::size_t k = 0; k < run.ways.size(); ++k) settle_gradient(run, k, m);
  take_rows(run, m);
  const int from = clock_.mark();
  {
    const Ledger::Kernel kernel(ledger_);
    (run.op.type.get()->*run.kernel)(run.op, call);
  }
  double flops = run.flops;
  if (!call.rows.empty() && run.supposed > 0)
    flops *= static_cast<double>(rows_in(call.rows)) / static_cast<double>(run.supposed);
  work_.push_back({run.entry, flops, from, clock_.mark()});
  if (run.makes_rows) {
    Rows& rows = m.rows[static_cast<std::size_t>(run.rows)];
    rows.known = true;
    rows.of_group.swap(call.rows);
    rows.from.clear();
  }
  if (forward) keep_results(run, m);
  for (std::size_t k = 0; k < run.ways.size(); ++k) keep_gradient(l, k, m);
  if (run.shows_results) show(&Watcher::computed, l, run.outputs, m);
  for (auto* tensors :
       {&call.inputs, &call.outputs, &call.saved, &call.grad_outputs, &call.grad_inputs})
    tensors->clear();
  call.rows.clear();
}

// Brings results to their slots. Where they are sums over slices, later slices add to the first
// one's.
void Executor::keep_results(OpRun& run, Microbatch& m) {
  for (std::size_t k = 0; k < run.outputs.size(); ++k) {
    at::Tensor& slot = m.slots[run.outputs[k].slot];
    if (run.outputs[k].counted) {
      slot.add_(run.call.outputs[k]);
    } else {
      slot =
          taken(run, k, program_.slots[run.outputs[k].slot].dtype, std::move(run.call.outputs[k]));
    }
  }
  for (std::size_t k = 0; k < run.saved.size(); ++k)
    m.slots[run.saved[k].slot] = std::move(run.call.saved[k]);
}

void Executor::settle_gradient(OpRun& run, std::size_t input, const Microbatch& m) {
  const Operand& to = run.grad_inputs[input];
  at::Tensor& gradient = run.call.grad_inputs[input];
  if (run.ways[input] == GradientWay::made) {
    if (run.call.accumulate[input]) {
      gradient = tensor(m, to);
    } else if (run.call.in_place) {  // granted for all gradients or none (grant_in_place)
      gradient = tensor(m, run.inputs[input]);
    }
  } else if (run.ways[input] == GradientWay::summed) {
    const bool part = to.part_at >= 0;
    gradient = part_of(run, to, part ? storage_.summed(to.slot) : storage_.open(to.slot));
    run.call.accumulate[input] = storage_.written(to.slot);
    storage_.write(to.slot);
  }
}

void Executor::keep_gradient(const Lowered& l, std::size_t input, Microbatch& m) {
  const OpRun& run = *l.op;
  const Operand& to = run.grad_inputs[input];
  const at::Tensor& made = run.call.grad_inputs[input];
  switch (run.ways[input]) {
    case GradientWay::made:
      m.slots[to.slot] = taken(run, input, program_.slots[to.slot].dtype, made);
      return;
    case GradientWay::part: {
      if (!to.lasts && !l.said->accumulate[input]) {  // the first slice
        std::vector<std::int64_t> shape = made.sizes().vec();
        shape[static_cast<std::size_t>(to.part_at)] *= run.slices;
        m.slots[to.slot] = at::zeros(shape, made.options());
      }
      part_of(run, to, to.lasts ? storage_.summed(to.slot) : m.slots[to.slot]).add_(made);
      return;
    }
    case GradientWay::widened:
      return storage_.add(to.slot, made);
    case GradientWay::none:
    case GradientWay::summed:
      return;
  }
}

void Executor::take_rows(OpRun& run, const Microbatch& m) {
  if (run.rows < 0) return;
  const Rows& rows = m.rows[static_cast<std::size_t>(run.rows)];
  if (!rows.known) return;  // this op makes them
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
  std::vector<int> others = world_atoms(program_.mesh);
  std::erase(others, program_.stage_atom);
  if (!sizes_.of_kind(0).contributes(others)) return counts;
  for (const auto& [parameter, layer] : expert_loads_) {
    const HostWait waits("the experts' load");
    const at::Tensor count = storage_.gradient(parameter).to(at::kCPU, at::kLong).contiguous();
    const auto* element = count.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count.numel(); ++i) counts[{layer, i}] = element[i];
  }
  return counts;
}

}  // namespace mw
