// Sums the step's totals, updates a bucket by its optimizer's ops, on the device or in host memory,
// and carries out the updates that a step has left to the next one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <vector>

#include "comm/cores.h"
#include "meshwright/engine/host.h"
#include "meshwright/engine/program_facts.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/error.h"
#include "meshwright/optimizer.h"
#include "run/executor.h"

namespace mw {

namespace {

// Sums squares in fp64 and in an order of its own, so that the sum tells nothing of sharding,
// threads or the CPU: sums of millions of squares in fp32 would differ by 4e-5. The compiler
// vectorizes the lanes.
template <class Real>
double squares_of(const Real* elements, std::int64_t count) {
  constexpr std::int64_t lanes = 16;
  double sums[lanes] = {};
  std::int64_t k = 0;
  for (; k + lanes <= count; k += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const double value = elements[k + lane];
      sums[lane] += value * value;
    }
  }
  for (; k < count; ++k) sums[0] += static_cast<double>(elements[k]) * elements[k];
  return std::accumulate(std::begin(sums), std::end(sums), 0.0);
}

double squares_on_cpu(const at::Tensor& all, at::ScalarType wide) {
  if (all.is_contiguous() && all.scalar_type() == at::kFloat)
    return squares_of(all.const_data_ptr<float>(), all.numel());
  if (all.is_contiguous() && all.scalar_type() == at::kDouble)
    return squares_of(all.const_data_ptr<double>(), all.numel());
  double squares = 0;  // summed piece by piece, each widened first
  for (std::int64_t at = 0; at < all.numel(); at += cast_at_a_time) {
    const at::Tensor piece = all.narrow(0, at, std::min(cast_at_a_time, all.numel() - at));
    const auto norm = at::linalg_vector_norm(piece, 2, std::nullopt, false, wide).item<double>();
    squares += norm * norm;
  }
  return squares;
}

}  // namespace

// One all-reduce over all ranks adds up the loss, the squared gradient norm and the wishes to stop.
// Where several ranks hold copies of a gradient, the first of them adds its square, and the others
// add the squares of their copies times 0. That product is 0 for a finite copy. For a copy with NaN
// or Inf it is NaN, and so is then the norm: all ranks see the fault before they update.
void Executor::totals(const Lowered& l) {
  // Loss, squared norm and wish to stop. Where replicas differ, each clips by its own norm, and the
  // squared norm of each replica follows.
  const int replicas = program_.outer ? program_.replicas() : 0, own = program_.replica_of(at_);
  at::Tensor sums =
      at::zeros({3 + replicas}, at::TensorOptions().dtype(at::kDouble).device(device_));
  const at::ScalarType wide = scalar_type(wider(program_.gradient_dtype, Dtype::fp32));
  for (std::size_t k = 0; k < l.shares.size(); ++k) {
    const Ledger::Kernel kernel(ledger_);
    const at::Tensor& counted = storage_[l.said->inputs[k]];
    if (k == 0) {
      sums[0].copy_(counted.squeeze()).mul_(l.shares[k]);
    } else if (device_.is_cpu()) {
      sums[1].add_(l.shares[k] * squares_on_cpu(counted, wide));
    } else if (counted.numel() > 0) {  // the device's kernel widens and adds as a tree
      const at::Tensor norm = at::linalg_vector_norm(counted, 2, std::nullopt, false, wide);
      sums[1].add_(norm.to(at::kDouble).square().mul_(l.shares[k]));
    }
  }
  if (replicas > 0) sums[3 + own].copy_(sums[1]);
  if (stop_ != nullptr && stop_->load()) sums[2].fill_(1);
  if (program_.mesh.size() > 1) {
    static const std::string label = "loss, gradient norm";
    group({world_atoms(program_.mesh), {}})
        .all_reduce(sums, Reduction::sum, {"report", &label})
        .wait();
    if (comm::Sleeper::own().cores() != nullptr) kept_->met = {seconds_now(), cpu_seconds_now()};
  }
  const HostWait waits("loss and gradient norm");
  sums = sums.cpu();
  outcome_.loss = sums[0].item<double>();
  outcome_.stop = sums[2].item<double>() > 0;
  if (forward_only_) return;
  outcome_.loss_scale = kept_->scaler.scale();
  outcome_.grad_norm = kept_->scaler.end(std::sqrt(sums[1].item<double>() / std::max(replicas, 1)),
                                         outcome_.labels > 0);
  const double clipped = replicas > 0
                             ? std::sqrt(sums[3 + own].item<double>()) / outcome_.loss_scale
                             : outcome_.grad_norm;
  outcome_.update_left_out = kept_->scaler.overflowed() || outcome_.labels == 0;
  // A smaller loss scale does not make the loss finite: the forward pass does not depend on it.
  if (kept_->leaves_out && outcome_.labels > 0 &&
      (!outcome_.update_left_out || !std::isfinite(outcome_.loss))) {
    outcome_.not_finite = !std::isfinite(outcome_.loss) || !std::isfinite(outcome_.grad_norm);
    outcome_.update_left_out = outcome_.not_finite;
  }
  scale_ = clip_factor(clipped, setup_.optimizer->clip()) / outcome_.loss_scale;
  show([&](Watcher& watcher) { watcher.gradients(*this); });
}

// Whether an instruction of an update that the step before has left is still to be carried out: not
// if somebody who read parameters between the steps has had it made (await_updates()).
bool Executor::goes_on(const Lowered& l) {
  const auto bucket = static_cast<std::size_t>(l.said->bucket);
  const bool goes = !kept_->left.made[bucket];
  if (l.ends_update) kept_->left.made[bucket] = true;
  return goes;
}

void Executor::leave_updates() {
  if (updates_.list.empty()) return;
  Left& left = kept_->left;
  left.numbers = {outcome_.lr, updates(), scale_, outcome_.update_left_out};
  left.any = true;
  left.made.assign(left.made.size(), false);
}

template <class Ends>
void Executor::await_begun(const Ends& ends) {
  for (Begun& one : kept_->begun)
    if (ends(one)) one.underway.pending.wait();
  std::erase_if(kept_->begun, ends);
}

void Executor::await_parameters() {
  if (kept_->left.any) {
    for (Lowered& l : updates_.list) run(l, microbatch(-1));
    if (copies_.any()) copies_.finish();
  }
  await_begun([](const Begun& one) {
    return one.start->transfer < 0 && one.start->said->serves != Serves::outer_gradients;
  });
}

void Executor::await_updates() {
  await_parameters();
  await_begun([](const Begun& one) { return one.start->transfer < 0; });
}

namespace {

void let_go(UpdateCall& call) {
  call.parameter.reset();
  call.gradient.reset();
  call.state = {};
  call.sums.clear();
}

}  // namespace

void Executor::update(Lowered& l, Microbatch& m) {
  UpdateCall& call = l.update->call;
  const UpdateNumbers numbers = numbers_of(l);
  const UpdateRule* const rule = rule_of_update(program_, *l.said);
  call.lr = numbers.lr * (rule ? rule->lr_scale : 1);
  call.step = numbers.step;
  switch (l.said->update) {
    case Update::none:
      break;
    case Update::direction:
      direction(l, m, numbers);
      break;
    case Update::whole:
      whole(l, m, numbers.left_out);
      break;
    case Update::gram:
      gram(l, m, numbers.left_out);
      break;
    case Update::gram_step:
      gram_step(l, m, numbers.left_out);
      break;
    case Update::sums:
      sums(l, m, numbers);
      break;
    case Update::swap:
      swap(*l.said);
      break;
    case Update::outer_gradient:
      outer_gradient(l);
      break;
    case Update::outer_step:
      apply(l, numbers);
      break;
    case Update::apply:
      if (numbers.left_out && l.said->outputs.size() == 1) break;
      if (l.said->parameter >= 0) {
        apply_matrix(l, m);
      } else {
        rule && !rule->sums.empty() ? apply_summed(l, m, numbers) : apply(l, numbers);
      }
      break;
  }
  let_go(call);
}

namespace {

// The gradient in the parameter's dtype. An accelerator scales it in the same pass, after which the
// scale is 1: its kernel widens what it reads, where the scale is a tensor of the wider dtype.
at::Tensor widened(const at::Tensor& gradient, const at::Tensor& parameter, double& scale) {
  if (gradient.is_cpu() || scale == 1) return gradient.to(parameter.scalar_type());
  const at::Tensor factor = at::full({1}, scale, parameter.options());
  scale = 1;
  return gradient.mul(factor);
}

template <class Work>
void for_each_piece(const UpdateRun& run, const UpdateRun::Summed& summed, const Work& work) {
  for (std::int64_t at = 0; at < summed.part.elements.size; at += run.at_a_time)
    work(Range{at, std::min(run.at_a_time, summed.part.elements.size - at)});
}

}  // namespace

void Executor::update_elements(const ElementOp& op, const UpdateCall& call) {
  const Ledger::Kernel kernel(ledger_);
  op.run(call);
}

// A gradient in another dtype is cast a piece at a time, so that none is cast as a whole.
void Executor::apply(const Lowered& l, const UpdateNumbers& numbers) {
  const UpdateRun& run = *l.update;
  const Slots& outputs = l.said->outputs;
  // A piece that is cast in host memory takes no memory of the device, and no footprint counts it.
  // On the CPU, where both are one memory, it would else raise the peak of the forward around it.
  std::optional<Ledger::Pause> unbooked;
  if (run.host) {
    unbooked.emplace(ledger_);
    const HostWait waits("an update in host memory");
    copies_.there(storage_[l.input.slot]);
    for (const int slot : outputs) copies_.there(storage_[slot]);
  }
  UpdateCall& call = l.update->call;
  const bool outer = l.said->update == Update::outer_step;
  const double keeps = outer ? program_.outer->keeps : 0;
  for (const auto& [op, range] : run.parts) {
    const auto part = [&, at = range](int slot) {
      return storage_[slot].narrow(0, at.offset, at.size);
    };
    call.parameter = part(l.output.slot);
    call.gradient = part(l.input.slot);
    call.grad_scale = !outer && program_.buckets[l.said->bucket].counts ? 1 : numbers.scale;
    if (run.casts) call.gradient = widened(call.gradient, call.parameter, call.grad_scale);
    call.state.tensors.clear();
    for (const int state : run.states) call.state.tensors.push_back(part(state));
    if (!numbers.left_out) update_elements(*op, call);
    if (outputs.size() < 2) continue;
    keeps > 0 ? part(outputs[1]).lerp_(call.parameter, 1 - keeps)
              : part(outputs[1]).copy_(call.parameter);
  }
}

void Executor::outer_gradient(const Lowered& l) {
  const Ledger::Kernel kernel(ledger_);
  at::Tensor made = storage_.open(l.output.slot);
  const at::Tensor &anchor = storage_[l.input.slot], &own = storage_[l.said->inputs[1]];
  for (const auto& [op, range] : l.update->parts) {
    const auto part = [&, at = range](const at::Tensor& all) {
      return all.narrow(0, at.offset, at.size);
    };
    at::Tensor to = part(made);
    l.update->casts ? to.copy_(part(anchor).sub(part(own)))
                    : at::sub_out(to, part(anchor), part(own));
  }
}

// Computes the optimizer's direction: of one parameter of a bucket that is kept whole, or of the
// rank's shard of the bucket.
void Executor::direction(const Lowered& l, Microbatch& m, const UpdateNumbers& numbers) {
  const Instruction& i = *l.said;
  const ElementOp& op = *program_.buckets[i.bucket].rule->direction;
  const at::Tensor& gradient = storage_[l.input.slot];
  UpdateCall& call = l.update->call;
  for (const int slot : l.update->states) {
    const at::Tensor& state = storage_[slot];
    call.state.tensors.push_back(i.parameter < 0 ? state
                                                 : storage_.slice(i.parameter, state).view(-1));
  }
  call.grad_scale = numbers.scale;
  const auto options =
      at::TensorOptions(scalar_type(program_.optimizer_dtype))
          .device(call.state.tensors.empty() ? device_ : call.state.tensors.front().device());
  const HostWait waits("an update in host memory");
  if (i.parameter < 0) {
    const at::Tensor& direction = storage_.open(l.output.slot);
    call.gradient = direction.to(options);
    if (!call.gradient.is_same(gradient)) call.gradient.copy_(gradient);
    if (!numbers.left_out) update_elements(op, call);
    if (!call.gradient.is_same(direction)) direction.copy_(call.gradient);
    return;
  }
  call.gradient = gradient.view(-1).to(options);
  if (!numbers.left_out) update_elements(op, call);
  m.slots[l.output.slot] = call.gradient.to(device_).view(l.update->shape);
}

std::vector<at::Tensor> Executor::kept_of(const std::vector<UpdateRun::Kept>& list) const {
  std::vector<at::Tensor> kept;
  for (const auto& [slot, range, shape] : list)
    kept.push_back(storage_[slot].narrow(0, range.offset, range.size).view(shape));
  return kept;
}

namespace {

// Throws an Error if a matrix op has made of a stack what is no stack like it.
void check_update(const MatrixOp& op, const std::string& parameter, const at::Tensor& stack,
                  const at::Tensor& made) {
  if (made.defined() && made.sizes() == stack.sizes() && made.scalar_type() == stack.scalar_type())
    return;
  const auto text = [](const at::Tensor& tensor) {
    if (!tensor.defined()) return std::string("nothing");
    return fmt::format("[{}] of {}", fmt::join(tensor.sizes(), ", "),
                       at::toString(tensor.scalar_type()));
  };
  throw Error(Stage::run, "check.placement", "optimizer",
              fmt::format("the update {} of {} made {} of a stack of matrices that is {}",
                          op.name(), parameter, text(made), text(stack)),
              "mend the MatrixOp: its result has the shape and dtype of its stack "
              "(meshwright/optimizer.h)");
}

}  // namespace

void Executor::whole(const Lowered& l, Microbatch& m, bool left_out) {
  if (left_out && l.said->owner < 0) return;
  const MatrixUpdate& size = l.update->matrix;
  const at::Tensor& direction = tensor(m, l.input);
  if (!l.update->takes_part || left_out) {  // the moves that follow are those of every step
    m.slots[l.output.slot] = at::zeros_like(direction);
    return;
  }
  const std::vector<at::Tensor> kept = kept_of(l.update->kept);
  const at::Tensor stack = direction.view({size.stacked, size.rows, size.columns});
  const MatrixOp& op = *program_.buckets[l.said->bucket].rule->whole;
  const at::Tensor made = [&] {
    const Ledger::Kernel kernel(ledger_);
    return op.run(stack, kept);
  }();
  check_update(op, l.said->label, stack, made);
  m.slots[l.output.slot] = made.reshape(direction.sizes());
}

void Executor::gram(const Lowered& l, Microbatch& m, bool left_out) {
  const MatrixParts& part = l.update->parts_of_matrices;
  const at::Tensor& direction = tensor(m, l.input);
  at::Tensor& made = m.slots[l.output.slot];
  if (!l.update->takes_part || left_out) {  // the sum that follows is that of every step
    made = at::zeros(l.update->shape, direction.options());
    return;
  }
  const Ledger::Kernel kernel(ledger_);
  const at::Tensor x = direction.view({part.stacked, part.rows, part.columns});
  const at::Tensor turned = x.transpose(1, 2);
  made = (part.rows_are_cut ? at::bmm(turned, x) : at::bmm(x, turned)).view(l.update->shape);
}

void Executor::gram_step(const Lowered& l, Microbatch& m, bool left_out) {
  const MatrixParts& part = l.update->parts_of_matrices;
  const at::Tensor& before = tensor(m, l.input);
  if (!l.update->takes_part || left_out) {
    m.slots[l.output.slot] = before;
    return;
  }
  const at::Tensor x = before.view({part.stacked, part.rows, part.columns});
  const at::Tensor gram = m.slots[l.said->inputs[1]].view({part.stacked, part.n(), part.n()});
  const MatrixOp& op = *program_.buckets[l.said->bucket].rule->whole;
  const at::Tensor made = [&] {
    const Ledger::Kernel kernel(ledger_);
    return op.gram_step(l.said->round, x, gram, part.rows_are_cut);
  }();
  check_update(op, l.said->label, x, made);
  m.slots[l.output.slot] = made.view(before.sizes());
}

// The sums of a parameter that are made already, in the shapes of rows and columns. `first`: where
// the slots of the rounds stand among the instruction's inputs.
std::vector<at::Tensor> Executor::sums_of(const Lowered& l, const Microbatch& m,
                                          const UpdateRun::Summed& summed,
                                          std::size_t first) const {
  const std::vector<UpdateSum>& all = program_.buckets[l.said->bucket].rule->sums;
  std::vector<at::Tensor> sums;
  for (std::size_t k = 0; k < all.size(); ++k) {
    const std::size_t input = first + static_cast<std::size_t>(all[k].round);
    if (input >= l.said->inputs.size()) break;
    const Range& place = summed.places[k];
    const at::Tensor sum = m.slots[l.said->inputs[input]]
                               .narrow(0, place.offset, place.size)
                               .view(summed.part.shape(all[k]));
    const double over = all[k].mean ? static_cast<double>(summed.part.summed(all[k])) : 1;
    sums.push_back(sum.div(over).to(scalar_type(program_.optimizer_dtype)));
  }
  return sums;
}

// Has the call work on a piece of a parameter.
void Executor::take_piece(const Lowered& l, const UpdateRun::Summed& summed, const Range& piece,
                          int parameters, const UpdateNumbers& numbers,
                          const std::vector<at::Tensor>& sums) {
  UpdateCall& call = l.update->call;
  const auto part = [&](int slot) {
    return storage_[slot].narrow(0, summed.first + piece.offset, piece.size);
  };
  call.parameter = part(parameters);
  call.gradient = part(l.input.slot);
  call.grad_scale = numbers.scale;
  if (l.update->casts) call.gradient = widened(call.gradient, call.parameter, call.grad_scale);
  call.state.tensors.clear();
  for (const int state : l.update->states) call.state.tensors.push_back(part(state));
  const auto spread = [&](const std::vector<at::Tensor>& list) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& numbers_of : list) {
      const at::Tensor one = summed.part.spread(numbers_of);
      all.push_back(one.numel() == 1 ? one : one.narrow(0, piece.offset, piece.size));
    }
    return all;
  };
  call.state.of_matrix = spread(kept_of(summed.kept));
  call.sums = spread(sums);
}

void Executor::sums(const Lowered& l, Microbatch& m, const UpdateNumbers& numbers) {
  const UpdateRule& rule = *program_.buckets[l.said->bucket].rule;
  const int round = static_cast<int>(l.said->inputs.size()) - 2;
  const Ledger::Kernel kernel(ledger_);
  const at::Tensor made = at::zeros({program_.slots[l.output.slot].extra},
                                    at::TensorOptions().dtype(at::kDouble).device(device_));
  for (const UpdateRun::Summed& summed : l.update->summed) {
    if (!summed.contributes) continue;
    const std::vector<at::Tensor> before = sums_of(l, m, summed, 2);
    for_each_piece(*l.update, summed, [&](const Range& piece) {
      take_piece(l, summed, piece, l.said->inputs[1], numbers, before);
      for (std::size_t k = 0; k < rule.sums.size(); ++k) {
        if (rule.sums[k].round != round) continue;
        const Range& place = summed.places[k];
        UpdatedPart part = summed.part;
        part.elements.offset += piece.offset;
        part.elements.size = piece.size;
        part.add(rule.summing->terms(k, l.update->call),
                 made.narrow(0, place.offset, place.size).view(part.shape(rule.sums[k])));
      }
    });
  }
  let_go(l.update->call);  // while what it holds is the kernel's
  m.slots[l.output.slot] = made;
}

void Executor::apply_summed(const Lowered& l, const Microbatch& m, const UpdateNumbers& numbers) {
  const UpdateRule& rule = *program_.buckets[l.said->bucket].rule;
  UpdateCall& call = l.update->call;
  const Ledger::Kernel kernel(ledger_);
  for (const UpdateRun::Summed& summed : l.update->summed) {
    std::vector<at::Tensor> sums = sums_of(l, m, summed, 1);
    for_each_piece(*l.update, summed, [&](const Range& piece) {
      take_piece(l, summed, piece, l.output.slot, numbers, sums);
      rule.apply->run(call);
    });
    if (summed.kept.empty()) continue;
    call.state.tensors.clear();
    call.state.of_matrix = kept_of(summed.kept);
    for (at::Tensor& sum : sums) sum = summed.part.of_own_matrices(sum);
    call.sums = std::move(sums);
    rule.summing->keep(call);
  }
  let_go(call);
}

void Executor::swap(const Instruction& i) {
  constexpr std::int64_t at_a_time = 1 << 15;
  const Ledger::Kernel kernel(ledger_);
  const HostWait waits("an exchange of averages and parameters");
  const at::Tensor &a = storage_[i.outputs[0]], &b = storage_[i.outputs[1]];
  for (std::int64_t at = 0; at < a.numel(); at += at_a_time) {
    const std::int64_t size = std::min(at_a_time, a.numel() - at);
    const at::Tensor piece = a.narrow(0, at, size), other = b.narrow(0, at, size),
                     before = piece.clone();
    piece.copy_(other);
    other.copy_(before);
  }
}

void Executor::apply_matrix(const Lowered& l, const Microbatch& m) {
  const UpdateRun& run = *l.update;
  at::Tensor made = tensor(m, l.input);
  for (std::size_t d = 0; d < run.matrix.own.size(); ++d)
    made =
        made.narrow(static_cast<std::int64_t>(d), run.matrix.own[d].offset, run.matrix.own[d].size);
  made = made.reshape(-1).narrow(0, run.matrix.begin, run.own.size);
  const at::Tensor own = storage_[l.output.slot].narrow(0, run.own.offset, run.own.size);
  UpdateCall& call = l.update->call;
  const HostWait waits("an update in host memory");
  call.parameter = own.to(run.host ? at::Device(at::kCPU) : device_);
  call.gradient = made.to(call.parameter.device());
  call.rows = run.matrix.rows;
  call.columns = run.matrix.columns;
  for (const int state : run.states)
    call.state.tensors.push_back(storage_[state].narrow(0, run.own.offset, run.own.size));
  update_elements(*program_.buckets[l.said->bucket].rule->apply, call);
  if (!call.parameter.is_same(own)) own.copy_(call.parameter);
}

}  // namespace mw
