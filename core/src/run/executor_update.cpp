// What an executor does with the optimizer's ops (meshwright/optimizer.h): brings their operands
// together, in the optimizer's dtype and where its state lies.
#include "meshwright/engine/host.h"
#include "meshwright/optimizer.h"
#include "program/update_steps.h"
#include "run/executor.h"

namespace mw {

void Executor::update(const Instruction& i, Microbatch& m) {
  switch (i.update) {
    case Update::none:
      break;
    case Update::direction:
      direction(i, m);
      break;
    case Update::whole:
      whole(i, m);
      break;
    case Update::apply:
      if (outcome_.update_left_out) break;
      i.parameter >= 0 ? apply_matrix(i, m) : apply(i);
      break;
  }
}

// A gradient in another dtype is cast a piece at a time, so that none is cast as a whole.
void Executor::apply(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const UpdateSteps steps = update_steps(sizes_.of_kind(0), i);
  // Where a device's memory is the host's, nothing is brought: `to` copies only between two.
  const at::Device home = steps.host ? at::Device(at::kCPU) : device_;
  const Ledger::Scope scope(ledger_, home == device_ ? Category::activations : Category::host);
  if (bucket.counts) {
    apply_counts(i);
    return;
  }
  const HostWait waits("an update in host memory");  // nothing waits where it is the device's
  const at::Tensor own = storage_[i.outputs[0]], updated = own.to(home);
  const at::Tensor& gradient = storage_[i.inputs[0]];
  for (std::int64_t at = 0; at < steps.elements; at += steps.at_a_time) {
    const auto piece = [&](const at::Tensor& whole) {
      return whole.narrow(0, at, std::min(steps.at_a_time, steps.elements - at));
    };
    UpdateCall call{piece(updated), piece(gradient).to(updated.options())};
    for (int state : bucket.flat.states) call.state.tensors.push_back(piece(storage_[state]));
    call.lr = outcome_.lr;
    call.step = updates();
    call.grad_scale = scale_;
    bucket.rule->apply->run(call);
  }
  if (!updated.is_same(own)) own.copy_(updated);
}

// Each parameter moves by its own count.
void Executor::apply_counts(const Instruction& i) {
  for (int p : program_.buckets[i.bucket].parameters) {
    const auto& op = graph_.value(program_.parameters[p].value).moved_by;
    if (!op) continue;
    UpdateCall call{storage_.slice(p, storage_[i.outputs[0]]),
                    storage_.slice(p, storage_[i.inputs[0]])};
    call.lr = outcome_.lr;
    call.step = updates();
    op->run(call);
  }
}

// For one parameter of a bucket that is whole, or of the rank's shard of all.
void Executor::direction(const Instruction& i, Microbatch& m) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const at::Tensor& gradient = storage_[i.inputs[0]];
  UpdateCall call;
  for (int slot : bucket.flat.states) {
    const at::Tensor& state = storage_[slot];
    call.state.tensors.push_back(i.parameter < 0 ? state
                                                 : storage_.slice(i.parameter, state).view(-1));
  }
  call.grad_scale = scale_;
  call.step = updates();
  const int to = i.outputs[0];
  const auto options = call.state.tensors.front().options();
  const HostWait waits("an update in host memory");
  if (i.parameter < 0) {
    const at::Tensor& direction = storage_.open(to);
    call.gradient = direction.to(options);
    if (!call.gradient.is_same(gradient)) call.gradient.copy_(gradient);
    if (!outcome_.update_left_out) bucket.rule->direction->run(call);
    if (!call.gradient.is_same(direction)) direction.copy_(call.gradient);
    return;
  }
  call.gradient = gradient.view(-1).to(options);
  if (!outcome_.update_left_out) bucket.rule->direction->run(call);
  m.slots[to] = call.gradient.to(device_).view(program_.local_shape(program_.slots[to], at_));
}

// Only on ranks that update an element of the parameter.
void Executor::whole(const Instruction& i, Microbatch& m) {
  const MatrixUpdate size = matrix_update(sizes_.of_kind(0), i);
  if (size.begin >= size.end || outcome_.update_left_out) return;
  const at::Tensor& direction = tensor(m, i.inputs[0]);
  m.slots[i.outputs[0]] =
      program_.buckets[i.bucket]
          .rule->whole->run(direction.view({size.stacked, size.rows, size.columns}))
          .view(direction.sizes());
}

void Executor::apply_matrix(const Instruction& i, const Microbatch& m) {
  const MatrixUpdate size = matrix_update(sizes_.of_kind(0), i);
  if (size.begin >= size.end) return;
  at::Tensor made = tensor(m, i.inputs[0]);
  for (std::size_t d = 0; d < size.own.size(); ++d)
    made = made.narrow(static_cast<std::int64_t>(d), size.own[d].offset, size.own[d].size);
  made = made.reshape(-1).narrow(0, size.begin, size.end - size.begin);

  const Bucket& bucket = program_.buckets[i.bucket];
  // Where it lies in the rank's shard.
  const std::int64_t first = size.first + size.begin - sizes_.of_kind(0).shard(i.bucket).offset;
  const at::Tensor own = storage_[i.outputs[0]].narrow(0, first, made.numel());
  UpdateCall call;
  const HostWait waits("an update in host memory");
  call.parameter = own.to(storage_[bucket.flat.states.front()].device());
  call.gradient = made.to(call.parameter.device());
  call.lr = outcome_.lr;
  call.step = updates();
  call.rows = size.rows;
  call.columns = size.columns;
  bucket.rule->apply->run(call);
  if (!call.parameter.is_same(own)) own.copy_(call.parameter);
}

}  // namespace mw
