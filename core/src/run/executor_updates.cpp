// Sums the step's totals, updates a bucket by its optimizer's ops, on the device or in host memory,
// and carries out the updates that a step has left to the next one.
#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "meshwright/engine/host.h"
#include "meshwright/engine/scalar_type.h"
#include "meshwright/optimizer.h"
#include "program/update_steps.h"
#include "run/executor.h"

namespace mw {

constexpr std::int64_t few_squares = 1 << 14;

// One reduction over the world carries the loss, the squared gradient norm and the wish to stop.
// A quantity that several ranks hold alike is given by the first of them alone,
// so that it counts once.
void Executor::totals(const Instruction& i) {
  at::Tensor sums = at::zeros({3}, at::kDouble);
  const auto counts = [&](std::size_t k) {
    return sizes_.of_kind(0).contributes(i.contributing[k]);
  };
  const at::Tensor& loss = storage_[i.inputs[0]];
  double squares = 0;
  at::Tensor on_device;  // the loss and the squares, where reading each would wait for the device
  if (!device_.is_cpu()) on_device = at::zeros({3}, sums.options().device(device_));
  if (!counts(0)) {
    // Others hold the same.
  } else if (on_device.defined()) {
    on_device[0].copy_(loss.squeeze());
  } else {
    sums[0] = loss.item<double>();
  }
  for (std::size_t k = 1; k < i.inputs.size(); ++k) {
    if (!counts(k)) continue;
    const at::Tensor& own = storage_[i.inputs[k]];
    // The CPU goes by pieces: it widens bf16 before it adds, and its kernel adds in few lanes of
    // fp32, so that sums of millions of squares differ by 4e-5 with how they are sharded. A GPU's
    // kernel widens what it reads, and adds as a tree.
    const at::ScalarType wide = scalar_type(wider(program_.gradient_dtype, Dtype::fp32));
    const std::int64_t most = !own.is_cpu()               ? std::max<std::int64_t>(own.numel(), 1)
                              : own.scalar_type() == wide ? few_squares
                                                          : cast_at_a_time;
    for (std::int64_t at = 0; at < own.numel(); at += most) {
      const at::Tensor piece = at::linalg_vector_norm(
          own.narrow(0, at, std::min(most, own.numel() - at)), 2, std::nullopt, false, wide);
      if (on_device.defined()) {
        on_device[1].add_(piece.to(at::kDouble).square());
        continue;
      }
      const auto norm = piece.item<double>();
      squares += norm * norm;
    }
  }
  sums[1] = squares;
  if (input_.stop_request != nullptr && input_.stop_request->load()) sums[2] = 1;
  if (on_device.defined()) sums = on_device.add_(sent_to(device_, sums));
  if (program_.mesh.size() > 1) {
    static const std::string label = "loss, gradient norm";
    group({world_atoms(program_.mesh), {}})
        .all_reduce(sums, Reduction::sum, {"report", &label})
        .wait();
  }
  const HostWait waits("loss and gradient norm");
  sums = sums.cpu();
  outcome_.loss = sums[0].item<double>();
  if (input_.forward_only) return;
  outcome_.loss_scale = scaler_->scale();
  outcome_.grad_norm = scaler_->end(std::sqrt(sums[1].item<double>()));
  outcome_.update_left_out = scaler_->overflowed();
  if (leaves_out_ && !outcome_.update_left_out) {
    outcome_.not_finite = !std::isfinite(outcome_.loss) || !std::isfinite(outcome_.grad_norm);
    outcome_.update_left_out = outcome_.not_finite;
  }
  outcome_.stop = sums[2].item<double>() > 0;
  scale_ = clip_factor(outcome_.grad_norm, input_.optimizer->clip()) / outcome_.loss_scale;
  if (watcher_ != nullptr) watcher_->gradients(*this);
}

// The instructions of each bucket's update that a step leaves to the next one's forward.
void Executor::find_updates() {
  std::set<int> segments;
  for (const SegmentRun& run : program_.timeline) {
    if (!segments.insert(run.segment).second) continue;
    for (const Instruction& i : program_.segments[run.segment].code)
      if (completes_update(program_, i)) updates_[i.bucket].push_back(&i);
  }
}

// Whether an instruction of an update that the step before has left is still to be carried out: not
// if somebody who read parameters between the steps has had it made (await_updates()).
bool Executor::goes_on(const Instruction& i) {
  Left& left = kept_->left;
  const bool goes = !left.made[i.bucket];
  if (&i == updates_.at(i.bucket).back()) left.made[i.bucket] = true;
  return goes;
}

void Executor::leave_updates() {
  if (!updates_.empty())
    kept_->left = {{outcome_.lr, updates(), scale_, outcome_.update_left_out}, true, {}};
}

void Executor::await_updates() {
  if (kept_->left.any) {
    for (const auto& [bucket, code] : updates_) {
      if (kept_->left.made[bucket]) continue;
      for (const Instruction* i : code) run(*i, -1);
    }
    if (copies_.any()) copies_.finish();
  }
  for (auto& [bucket, gather] : kept_->gathers) gather.finish();
  kept_->gathers.clear();
}

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
      if (numbers_of(i).left_out && i.outputs.size() == 1) break;
      i.parameter >= 0 ? apply_matrix(i, m) : apply(i);
      break;
  }
}

std::vector<int> Executor::states_of(const Instruction& i) const {
  if (i.saved.empty()) return program_.buckets[i.bucket].flat.states;
  return {i.saved.begin(), i.saved.end()};
}

// A gradient in another dtype is cast a piece at a time, so that none is cast as a whole.
void Executor::apply(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const UpdateSteps steps = update_steps(sizes_.of_kind(0), i, !device_.is_cpu());
  const UpdateNumbers numbers = numbers_of(i);
  // A piece that is cast in host memory takes none of the device's, and no footprint counts it. On
  // the CPU, where both are one memory, it would else raise the peak of the forward around it.
  std::optional<Ledger::Pause> unbooked;
  if (steps.host) unbooked.emplace(ledger_);
  if (bucket.counts) {
    apply_counts(i);
    return;
  }
  if (steps.host) {
    const HostWait waits("an update in host memory");
    copies_.there(storage_[i.inputs[0]]);
    for (const int slot : i.outputs) copies_.there(storage_[slot]);
  }
  for (std::int64_t at = 0; at < steps.elements; at += steps.at_a_time) {
    const auto piece = [&](int slot) {
      return storage_[slot].narrow(0, at, std::min(steps.at_a_time, steps.elements - at));
    };
    UpdateCall call{piece(i.outputs[0]), piece(i.inputs[0])};
    if (call.gradient.scalar_type() != call.parameter.scalar_type())
      call.gradient = call.gradient.to(call.parameter.scalar_type());
    for (int state : states_of(i)) call.state.tensors.push_back(piece(state));
    call.lr = numbers.lr;
    call.step = numbers.step;
    call.grad_scale = numbers.scale;
    if (!numbers.left_out) bucket.rule->apply->run(call);
    if (i.outputs.size() > 1) piece(i.outputs[1]).copy_(call.parameter);
  }
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

// Computes the optimizer's direction: of one parameter of a bucket that is kept whole, or of the
// rank's shard of the bucket.
void Executor::direction(const Instruction& i, Microbatch& m) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const at::Tensor& gradient = storage_[i.inputs[0]];
  UpdateCall call;
  for (int slot : states_of(i)) {
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
  const Bucket& bucket = program_.buckets[i.bucket];
  std::vector<at::Tensor> kept;
  for (std::size_t k = 0; k < bucket.flat.of_matrix.size(); ++k) {
    const int slot = bucket.flat.of_matrix[k];
    const Range lies = sizes_.of_kind(0).of_matrix(slot, i.parameter);
    const auto [rows, columns] = bucket.rule->of_matrix[k].shape(size.rows, size.columns);
    kept.push_back(
        storage_[slot].narrow(0, lies.offset, lies.size).view({size.stacked, rows, columns}));
  }
  m.slots[i.outputs[0]] =
      bucket.rule->whole->run(direction.view({size.stacked, size.rows, size.columns}), kept)
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
  const bool on_host = update_steps(sizes_.of_kind(0), i, !device_.is_cpu()).host;
  call.parameter = own.to(on_host ? at::Device(at::kCPU) : device_);
  call.gradient = made.to(call.parameter.device());
  call.lr = outcome_.lr;
  call.step = updates();
  call.rows = size.rows;
  call.columns = size.columns;
  bucket.rule->apply->run(call);
  if (!call.parameter.is_same(own)) own.copy_(call.parameter);
}

}  // namespace mw
