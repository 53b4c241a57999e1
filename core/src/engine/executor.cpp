#include "engine/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "engine/order.h"
#include "engine/precision.h"
#include "meshwright/error.h"

namespace mw {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A kernel's, an op's or the ledger's own words, and where they were said.
Error failed(const Instruction& i, int microbatch, const std::string& why,
             const std::string& hint = "") {
  return {Stage::run,
          fmt::format("{} (in the {} of {}, microbatch {})", why, name_of(i.piece), i.label,
                      microbatch),
          hint};
}

}  // namespace

Executor::Executor(const Program& program, int rank, at::Device device, CommunicatorSource& source,
                   Ledger& ledger, const StepInput& input)
    : program_(program),
      graph_(*program.graph),
      rank_(rank),
      at_(program.mesh.coordinates(rank)),
      real_(real_type(program, program.element)),
      device_(device),
      source_(source),
      ledger_(ledger),
      input_(input),
      storage_(program, at_, device, *input.optimizer, ledger),
      sizes_(program, at_),
      scaler_(std::make_shared<LossScaler>(input.loss_scale)) {
  number_rows();
  make_hooks();
}

Executor::~Executor() = default;

Communicator& Executor::group(const RankSet& set) {
  auto& communicator = groups_[set];
  if (!communicator) {
    const std::vector<int> ranks = program_.ranks_of(set, rank_);
    const auto index = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    communicator =
        make_communicator(source_, program_.name_of(set), ranks, static_cast<int>(index), &ledger_);
  }
  return *communicator;
}

// Parameters are looked up at each use: those stored in parts come and go.
const at::Tensor& Executor::tensor(const Microbatch& m, int slot) const {
  const int parameter = storage_.parameter_of(slot);
  return parameter >= 0 ? storage_.parameter(parameter) : m.slots[slot];
}

at::TensorOptions Executor::options(int slot) const {
  return at::TensorOptions().dtype(type_of(program_, program_.slots[slot])).device(device_);
}

StepOutcome Executor::step(std::int64_t index, double lr) {
  const at::NoGradGuard no_grad;
  step_ = index;
  outcome_ = {};
  outcome_.lr = lr;
  if (scaler_->begin(index)) make_hooks();
  storage_.begin_step();
  {
    Ledger::Scope scope(ledger_, Category::buffers);
    loss_ = at::Tensor();  // the last step's is not held beside it
    loss_ = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device_));
  }
  const double begin = now();
  outcome_.began = begin;
  for (std::size_t r = 0; r < program_.timeline.size(); ++r) {
    const SegmentRun& part = program_.timeline[r];
    RunTime time{part.segment, part.microbatch, now() - begin, 0};
    for (const Instruction& i : program_.segments[part.segment].code) run(i, part.microbatch);
    time.end = now() - begin;
    outcome_.runs.push_back(time);
    if (last_run_[r]) microbatches_[part.microbatch].rows.clear();
  }
  microbatches_.clear();
  return std::move(outcome_);
}

void Executor::run(const Instruction& i, int microbatch) {
  Microbatch& m = microbatches_[microbatch];
  if (m.slots.empty()) {
    m.slots.resize(program_.slots.size());
  }
  Ledger::Scope scope(ledger_, Category::activations);
  switch (i.code) {
    case Code::load:
      load(i, m, microbatch);
      break;
    case Code::compute:
      try {
        compute(i, m, microbatch);
      } catch (const Error& error) {
        const Problem& said = error.problems().front();
        throw failed(i, microbatch, said.message, said.hint);
      } catch (const c10::Error& error) {
        throw failed(i, microbatch, error.what_without_backtrace());
      } catch (const std::exception& error) {
        throw failed(i, microbatch, error.what());
      }
      break;
    case Code::move:
    case Code::start: {
      if (i.move.kind == Move::Kind::send || i.move.kind == Move::Kind::recv) {
        start_transfer(i, m, microbatch);
        break;
      }
      if (i.move.kind == Move::Kind::shift) {
        start_shift(i, m, microbatch);
        break;
      }
      if (!i.move.lands.empty()) {
        m.underway[i.pending] = start_exchange(i, m);
        break;
      }
      const Slot &from = program_.slots[i.inputs[0]], &to = program_.slots[i.outputs[0]];
      const Moving what = moving(i.move, from.dims, from.layout, to.layout);
      if (i.code == Code::start) {
        m.underway[i.pending] =
            start_move(i.move, what, tensor(m, i.inputs[0]), i.in_place, group({i.move.atoms, {}}),
                       {i.phase, &i.label}, sums_wide(program_, i));
      } else {
        m.slots[i.outputs[0]] = local_move(i.move, what, tensor(m, i.inputs[0]),
                                           program_.mesh.index_in_group(rank_, i.move.atoms));
      }
      break;
    }
    case Code::wait: {
      const at::Tensor done = m.underway.at(i.pending).finish();
      if (!i.outputs.empty()) m.slots[i.outputs[0]] = done;
      m.underway.erase(i.pending);
      break;
    }
    case Code::seed:
      m.slots[i.outputs[0]] = at::full({}, scaler_->scale(), options(i.outputs[0]));
      break;
    case Code::add:
      add(i, m);
      break;
    case Code::hand:
      m.slots[i.outputs[0]] = tensor(m, i.inputs[0]);
      break;
    case Code::copy:
      m.slots[i.outputs[0]] = tensor(m, i.inputs[0]).clone();
      break;
    case Code::report:
      if (gives([&](int a) { return !program_.slots[i.inputs[0]].layout[a].is_partial(); })) {
        loss_.add_(tensor(m, i.inputs[0]));
      }
      break;
    case Code::reduce:
      start_reduce(i);
      break;
    case Code::reduced:
      end_reduce(i);
      break;
    case Code::reduce_parts:
      start_reduce_parts(i);
      break;
    case Code::reduced_parts:
      end_reduce_parts(i);
      break;
    case Code::gather:
      start_gather(i);
      break;
    case Code::gathered:
      if (const auto gather = gathers_.find(i.bucket); gather != gathers_.end()) {
        gather->second.wait();
        gathers_.erase(gather);
      }
      break;
    case Code::drop:
      storage_.drop_parameters(i.bucket);
      break;
    case Code::totals:
      totals();
      break;
    case Code::direct:
      direct(i, m);
      break;
    case Code::update:
      i.parameter >= 0 ? update_matrix(i, m) : update(i);
      break;
  }
  for (int slot : i.release) m.slots[slot].reset();
}

void Executor::load(const Instruction& i, Microbatch& m, int microbatch) {
  static const Dim batch("batch"), seq("seq");
  Ledger::Scope scope(ledger_, Category::buffers);
  const std::int64_t rows = graph_.size(batch), sequence = graph_.size(seq);
  const auto cpu = at::TensorOptions().dtype(at::kLong);
  at::Tensor tokens, labels;
  for (int slot : i.outputs) {
    const Slot& s = program_.slots[slot];
    const std::vector<Range> columns =
        program_.lying(seq, local_range(seq, sequence, s.layout, program_.mesh, at_));
    at::Tensor data;
    if (s.name == "positions") {
      std::vector<at::Tensor> runs;
      for (const Range& run : columns) {
        runs.push_back(at::arange(run.offset, run.offset + run.size, cpu));
      }
      data = runs.size() == 1 ? runs[0] : at::cat(runs);
    } else if (s.name == "tokens" || s.name == "labels") {
      const Range part = local_range(batch, rows, s.layout, program_.mesh, at_);
      if (!tokens.defined()) {
        tokens = at::empty({part.size, sequence}, cpu);
        labels = at::empty({part.size, sequence}, cpu);
        input_.data->sample_rows(step_, input_.batch, microbatch * rows + part.offset, tokens,
                                 labels);
      }
      data = in_runs(s.name == "labels" ? labels : tokens, 1, columns).contiguous();
    } else {  // a model file's mistake
      throw std::logic_error("the model asks for the data value \"" + s.name +
                             "\"; there are tokens, labels and positions");
    }
    m.slots[slot] = data.to(device_);
  }
}

// Decides whether this rank writes, adds to or leaves out the gradient of operand `input`.
void Executor::settle_gradient(const Instruction& i, std::size_t input, Microbatch& m,
                               OpCall& call) {
  const int slot = i.grad_inputs[input];
  call.wants[input] = slot >= 0;
  if (slot < 0) return;
  const int parameter = storage_.parameter_of(slot);
  if (parameter < 0) {
    call.accumulate[input] = i.accumulate[input];
    if (i.accumulate[input]) {
      call.grad_inputs[input] = tensor(m, slot);
    } else if (i.in_place) {  // granted for all gradients or none (plan/lifetimes)
      call.grad_inputs[input] = tensor(m, i.inputs[input]);
    }
    return;
  }
  if (!sizes_.first_of(i.first_of[input])) {
    call.wants[input] = false;
    return;
  }
  if (widens()) return;
  call.grad_inputs[input] = storage_.gradient(parameter);
  call.accumulate[input] = storage_.written(parameter);
  storage_.write(parameter);
}

void Executor::add_gradient(int parameter, const at::Tensor& gradient) {
  const at::Tensor& sum = storage_.gradient(parameter);
  if (storage_.written(parameter)) {
    sum.add_(gradient);
  } else {
    sum.copy_(gradient);
  }
  storage_.write(parameter);
}

void Executor::call(const Instruction& i, OpCall& call) {
  const Op& op = graph_.ops()[i.op];
  const double began = now();
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
  double flops = sizes_.cost(i.op, i.piece, i.turn).executed;
  if (!call.rows.empty()) flops *= share_of_rows(i, call.rows);
  ledger_.worked(op.kind(), name_of(i.piece), flops, now() - began);
}

void Executor::compute(const Instruction& i, Microbatch& m, int microbatch) {
  auto gather = [&](const std::vector<int>& slots) {
    std::vector<at::Tensor> tensors(slots.size());
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] >= 0) tensors[k] = tensor(m, slots[k]);
    }
    return tensors;
  };
  OpCall call{sizes_.dims(i.op, i.turn),
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
              i.turn,
              i.turns};
  if (i.piece == Piece::forward) {
    if (i.turn > 0) {
      call.outputs = gather(i.outputs);
      call.saved = gather(i.saved);
    } else {
      call.outputs.resize(i.outputs.size());
      call.saved.resize(i.saved.size());
    }
    take_rows(i, m, call);
    this->call(i, call);
    keep_rows(i, m, call);
    for (std::size_t k = 0; k < i.outputs.size(); ++k)
      m.slots[i.outputs[k]] = std::move(call.outputs[k]);
    for (std::size_t k = 0; k < i.saved.size(); ++k) m.slots[i.saved[k]] = std::move(call.saved[k]);
    if (watcher_ != nullptr && i.turn + 1 == i.turns && !recomputes(i)) {
      for (int slot : i.outputs) watcher_->computed(i, slot, microbatch, tensor(m, slot));
    }
    return;
  }
  call.outputs = gather(i.outputs);
  call.saved = gather(i.saved);
  call.grad_outputs = gather(i.grad_outputs);
  if (watcher_ != nullptr && i.piece != Piece::wgrad && i.turn == 0) {
    for (int slot : i.grad_outputs) {
      if (slot >= 0) watcher_->computed(i, slot, microbatch, tensor(m, slot));
    }
  }
  call.grad_inputs.resize(i.grad_inputs.size());
  call.wants.assign(i.grad_inputs.size(), false);
  call.accumulate.assign(i.grad_inputs.size(), false);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) settle_gradient(i, k, m, call);
  if (std::none_of(call.wants.begin(), call.wants.end(), [](bool w) { return w; })) return;
  take_rows(i, m, call);
  this->call(i, call);
  keep_rows(i, m, call);
  for (std::size_t k = 0; k < i.grad_inputs.size(); ++k) {
    const int slot = i.grad_inputs[k];
    if (slot < 0) continue;
    const int parameter = storage_.parameter_of(slot);
    if (parameter < 0) {
      m.slots[slot] = call.grad_inputs[k];
    } else if (call.wants[k] && widens()) {
      add_gradient(parameter, call.grad_inputs[k]);
    }
  }
}

void Executor::add(const Instruction& i, Microbatch& m) {
  const int parameter = storage_.parameter_of(i.outputs[0]);
  if (parameter < 0) {
    tensor(m, i.outputs[0]).add_(tensor(m, i.inputs[0]));
    return;
  }
  if (!i.first_of.empty() && !sizes_.first_of(i.first_of[0])) return;
  add_gradient(parameter, tensor(m, i.inputs[0]));
}

}  // namespace mw
