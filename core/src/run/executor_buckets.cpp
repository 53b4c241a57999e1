// What an executor does with whole buckets: reductions, gathers, the step's totals, the optimizer.
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "meshwright/engine/bucket_shape.h"
#include "meshwright/engine/host_wait.h"
#include "meshwright/engine/scalar_type.h"
#include "run/executor.h"

namespace mw {

void Executor::make_hooks() {
  Ledger::Scope scope(ledger_, Category::buffers);
  hook_of_bucket_.clear();
  const auto options =
      at::TensorOptions().device(device_).dtype(scalar_type(program_.gradient_dtype));
  for (const Bucket& bucket : program_.buckets) {
    hook_of_bucket_.push_back(
        bucket.hook ? bucket.hook->make(shape_of(program_, bucket, at_), options) : nullptr);
  }
}

Underway Executor::start_lasting(const Instruction& i) {
  const at::Tensor& source = storage_[i.inputs[0]];
  Communicator& ranks = group({i.move.atoms, i.move.stages});
  const Purpose purpose{i.phase, &i.label};
  const at::Tensor& target = storage_.open(i.outputs[0]);
  const auto nothing = [] { return at::Tensor(); };
  // Where the source is still on its way from host memory, the transfer follows it there, and what
  // the rank computes goes on beside both.
  std::optional<c10::StreamGuard> guard;
  if (copies_.brings(source)) guard.emplace(copies_.stream_of(source));
  return {i.move.kind == Move::Kind::all_reduce ? ranks.all_reduce(target, Reduction::sum, purpose)
          : i.move.kind == Move::Kind::reduce_scatter
              ? ranks.reduce_scatter(target, source, Reduction::sum, purpose)
              : ranks.all_gather(target, source, purpose),
          nothing};
}

Underway Executor::start_hook(const Instruction& i) {
  const Ledger::Scope scope(ledger_, Category::buffers);
  hook_of_bucket_[i.bucket]->start(storage_[i.inputs[0]], group({i.move.atoms, i.move.stages}),
                                   {i.phase, &i.label});
  return {{}, [this, &i] {
            const Ledger::Scope again(ledger_, Category::buffers);
            hook_of_bucket_[i.bucket]->finish();
            return at::Tensor();
          }};
}

at::Tensor Executor::whole(int bucket, bool gradients) {
  const Bucket& b = program_.buckets[bucket];
  const at::Tensor& parameters = storage_[b.flat.parameters];
  if (!gradients && parameters.defined()) return parameters;
  const HostWait waits("a gather outside of steps");
  at::Tensor part = storage_[gradients ? b.flat.reduced : b.flat.stored].to(device_);
  if (b.shard_atoms.empty()) return part;
  Communicator& ranks = group({b.shard_atoms, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for comparison";
  ranks.all_gather(all, part.contiguous(), {"verify", &label}).wait();
  return all;
}

at::Tensor Executor::slice(int parameter, const at::Tensor& whole) const {
  return storage_.slice(parameter, whole);
}

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
    // In pieces, as what is in bf16 is widened first. The CPU's kernel adds up in few lanes of
    // fp32: over millions of squares that tells 4e-5 less or more, by how they are sharded.
    const at::ScalarType wide = scalar_type(wider(program_.gradient_dtype, Dtype::fp32));
    const std::int64_t most =
        device_.is_cpu() && own.scalar_type() == wide ? few_squares : cast_at_a_time;
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

}  // namespace mw
