// What an executor does with whole buckets: reductions, gathers, the step's totals, the optimizer.
#include <algorithm>

#include "engine/executor.h"
#include "engine/precision.h"
#include "program/rank_view.h"

namespace mw {

void Executor::make_hooks() {
  Ledger::Scope scope(ledger_, Category::buffers);
  hooked_.clear();
  const auto options =
      at::TensorOptions().device(device_).dtype(scalar_type(program_.gradient_dtype));
  for (const Bucket& bucket : program_.buckets) {
    hooked_.push_back(bucket.hook ? bucket.hook->make(shape_of(program_, bucket, at_), options)
                                  : nullptr);
  }
}

void Executor::start_reduce(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const at::Tensor& whole = storage_.settle(i.bucket);
  Reducing& reduction = reductions_[i.bucket];
  const Purpose purpose{i.phase, &bucket.name};
  if (bucket.hook) {
    Ledger::Scope scope(ledger_, Category::buffers);
    hooked_[i.bucket]->start(whole, group(program_.reduction(bucket)), purpose);
    return;
  }
  reduction.sum = summed(whole);
  if (bucket.parts.empty()) {
    reduction.pending =
        group(program_.reduction(bucket)).all_reduce(reduction.sum, Reduction::sum, purpose);
    return;
  }
  at::Tensor part = storage_.flats()[i.bucket].own_gradients;
  if (bucket.parted >= Parted::gradients || !reduction.sum.is_same(whole)) {
    Ledger::Scope scope(ledger_, Category::buffers);
    part = reduction.part = at::empty(part.sizes(), reduction.sum.options());
  }
  reduction.pending =
      group({bucket.parts, {}}).reduce_scatter(part, reduction.sum, Reduction::sum, purpose);
}

at::Tensor Executor::summed(const at::Tensor& gradients) {
  Ledger::Scope scope(ledger_, Category::buffers);
  return gradients.to(scalar_type(wider(program_.gradient_dtype, program_.reduce_dtype)));
}

void Executor::start_reduce_parts(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  Reducing& reduction = reductions_[i.bucket];
  reduction.sum = summed(storage_.flats()[i.bucket].own_gradients);
  reduction.pending = group(program_.part_reduction(bucket))
                          .all_reduce(reduction.sum, Reduction::sum, {i.phase, &bucket.name});
}

void Executor::end_reduce_parts(const Instruction& i) {
  Reducing& reduction = reductions_.at(i.bucket);
  reduction.pending.wait();
  const at::Tensor& own = storage_.flats()[i.bucket].own_gradients;
  if (!reduction.sum.is_same(own)) own.copy_(reduction.sum);
  reductions_.erase(i.bucket);
}

void Executor::end_reduce(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  if (bucket.hook) {
    Ledger::Scope scope(ledger_, Category::buffers);
    hooked_[i.bucket]->finish();
    return;
  }
  Reducing& reduction = reductions_.at(i.bucket);
  reduction.pending.wait();
  Storage::Flat& flat = storage_.flats()[i.bucket];
  const bool wide = reduction.sum.scalar_type() != flat.own_gradients.scalar_type();
  if (bucket.parted >= Parted::gradients) {
    reduction.sum = at::Tensor();  // before the sum lets the whole go
    storage_.sum_part(i.bucket, reduction.part);
  } else if (wide && reduction.part.defined()) {
    flat.own_gradients.copy_(reduction.part);
  } else if (wide) {
    flat.gradients.copy_(reduction.sum);
  }
  reductions_.erase(i.bucket);
  // The next reduction counts the sum so far once.
  if (bucket.each && !sizes_.of_kind(0).contributes(bucket.reduce)) storage_.begin_sum(i.bucket);
}

void Executor::start_gather(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  gathers_[i.bucket] = group({bucket.parts, {}})
                           .all_gather(storage_.open_parameters(i.bucket),
                                       storage_.flats()[i.bucket].own_parameters.to(device_),
                                       {i.phase, &bucket.name});
}

at::Tensor Executor::whole(int bucket, bool gradients) {
  const Bucket& b = program_.buckets[bucket];
  const Storage::Flat& flat = storage_.flats()[bucket];
  if (!gradients && flat.parameters.defined()) return flat.parameters;
  at::Tensor part = gradients ? flat.own_gradients : flat.own_parameters.to(device_);
  if (b.parts.empty()) return part;
  Communicator& ranks = group({b.parts, {}});
  at::Tensor all = at::empty({part.numel() * ranks.ways()}, part.options());
  static const std::string label = "gather for comparison";
  ranks.all_gather(all, part.contiguous(), {"verify", &label}).wait();
  return all;
}

at::Tensor Executor::slice(int parameter, const at::Tensor& whole) const {
  return storage_.slice(parameter, whole);
}

// One reduction over the world carries the loss, the squared gradient norm and the wish to stop.
// A quantity that several ranks hold alike is given by the first of them alone, so that it counts once.
void Executor::totals(const Instruction& i) {
  at::Tensor sums = at::zeros({3}, at::kDouble);
  sums[0] = lasting(i.inputs[0]).item<double>();
  double squares = 0;
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    const Bucket& bucket = program_.buckets[b];
    if (bucket.parts.empty() && bucket.reduce.empty()) storage_.settle(static_cast<int>(b));
    if (bucket.tally) continue;
    if (!bucket.stages.empty() && bucket.stages.front() != program_.stage) continue;
    const auto among = [](const std::vector<int>& atoms, int a) {
      return std::find(atoms.begin(), atoms.end(), a) != atoms.end();
    };
    if (!gives([&](int a) { return !among(bucket.sharded, a) && !among(bucket.parts, a); }))
      continue;
    storage_.settle_part(static_cast<int>(b));
    const at::Tensor& own = storage_.flats()[b].own_gradients;
    // In pieces, as what is in bf16 is widened first.
    for (std::int64_t at = 0; at < own.numel(); at += cast_at_a_time) {
      const double norm =
          at::linalg_vector_norm(own.narrow(0, at, std::min(cast_at_a_time, own.numel() - at)), 2,
                                 std::nullopt, false,
                                 scalar_type(wider(program_.gradient_dtype, Dtype::fp32)))
              .item<double>();
      squares += norm * norm;
    }
  }
  sums[1] = squares;
  if (input_.stop_request != nullptr && input_.stop_request->load()) sums[2] = 1;
  if (program_.mesh.size() > 1) {
    static const std::string label = "loss, gradient norm";
    sums = sums.to(device_);
    group({world_atoms(program_.mesh), {}})
        .all_reduce(sums, Reduction::sum, {"report", &label})
        .wait();
    sums = sums.cpu();
  }
  outcome_.loss = sums[0].item<double>();
  outcome_.loss_scale = scaler_->scale();
  outcome_.grad_norm = scaler_->end(std::sqrt(sums[1].item<double>()));
  outcome_.left_out = scaler_->overflowed();
  outcome_.stop = sums[2].item<double>() > 0;
  scale_ = clip_factor(outcome_.grad_norm, input_.optimizer->clip()) / outcome_.loss_scale;
  if (watcher_ != nullptr) watcher_->gradients(*this);
}

void Executor::update(const Instruction& i) {
  if (outcome_.left_out) return;
  Storage::Flat& flat = storage_.flats()[i.bucket];
  // Copies only between a device and its host; a part that lies in host memory is updated in place.
  const bool host = program_.buckets[i.bucket].offload != Offload::nothing;
  const at::Device home = host ? at::Device(at::kCPU) : device_;
  Ledger::Scope scope(ledger_, home == device_ ? Category::activations : Category::host);
  if (program_.buckets[i.bucket].tally) {
    even_out(i.bucket);
    return;
  }
  if (flat.master.defined()) {
    update_masters(flat);
    return;
  }
  const at::Tensor parameters = flat.own_parameters.to(home);
  input_.optimizer->step(parameters, flat.own_gradients.to(home), flat.state, outcome_.lr,
                         updates(), scale_);
  if (!parameters.is_same(flat.own_parameters)) flat.own_parameters.copy_(parameters);
}

// The bias of a group that got less than the mean goes up, of one that got more goes down.
void Executor::even_out(int bucket) {
  Storage::Flat& flat = storage_.flats()[bucket];
  const at::Tensor& sum = flat.master.defined() ? flat.master : flat.parameters;
  for (int p : program_.buckets[bucket].parameters) {
    const Tally& tally = *graph_.value(program_.parameters[p].value).tally;
    const at::Tensor step = storage_.slice(p, flat.gradients).neg().add_(tally.mean).sign_();
    storage_.slice(p, sum).add_(step.to(sum.scalar_type()), tally.rate);
  }
  if (flat.master.defined()) flat.parameters.copy_(sum);
}

// A piece at a time, so that no gradient is widened as a whole.
void Executor::update_masters(Storage::Flat& flat) {
  const std::int64_t elements = flat.master.numel();
  for (std::int64_t at = 0; at < elements; at += cast_at_a_time) {
    const std::int64_t count = std::min(cast_at_a_time, elements - at);
    const auto piece = [&](const at::Tensor& whole) { return whole.narrow(0, at, count); };
    const at::Tensor master = piece(flat.master);
    OptimizerState state;
    for (const at::Tensor& tensor : flat.state.tensors) state.tensors.push_back(piece(tensor));
    input_.optimizer->step(master, piece(flat.own_gradients).to(master.options()), state,
                           outcome_.lr, updates(), scale_);
    piece(flat.own_parameters).copy_(master);
  }
}

}  // namespace mw
