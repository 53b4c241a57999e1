// What an executor does with whole buckets: reductions, gathers, the step's totals, the optimizer.
#include <algorithm>

#include "program/bucket_shape.h"
#include "program/rank_view.h"
#include "program/scalar_type.h"
#include "run/executor.h"

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

void Executor::find_lasting() {
  lasting_.assign(program_.slots.size(), nullptr);
  own_.resize(program_.slots.size());
  for (std::size_t s = 0; s < program_.slots.size(); ++s) {
    if (program_.slots[s].persistent) lasting_[s] = &own_[s];
  }
  for (std::size_t p = 0; p < program_.parameters.size(); ++p)
    lasting_[program_.parameters[p].slot] = &storage_.parameter(static_cast<int>(p));
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    const FlatSlots& flat = program_.buckets[b].flat;
    const Storage::Flat& tensors = storage_.flats()[b];
    lasting_[flat.stored] = &tensors.own_parameters;
    lasting_[flat.parameters] = &tensors.parameters;
    lasting_[flat.reduced] = &tensors.own_gradients;
    lasting_[flat.gradients] = &tensors.gradients;
    if (flat.master >= 0) lasting_[flat.master] = &tensors.master;
  }
}

const at::Tensor& Executor::flat_source(int slot) {
  const int bucket = program_.slots[slot].bucket;
  return slot == program_.buckets[bucket].flat.gradients ? storage_.settle(bucket)
                                                         : *lasting_[slot];
}

const at::Tensor& Executor::open(int slot) {
  const at::Tensor& tensor = *lasting_[slot];
  if (tensor.defined()) return tensor;
  const Slot& s = program_.slots[slot];
  if (slot == program_.buckets[s.bucket].flat.parameters) return storage_.open_parameters(s.bucket);
  const Ledger::Scope scope(ledger_, s.category);
  return own_[slot] = at::empty(program_.local_shape(s, at_), options(slot));
}

void Executor::let_go(int slot) {
  const Slot& s = program_.slots[slot];
  const FlatSlots& flat = program_.buckets[s.bucket].flat;
  if (slot == flat.parameters) {
    storage_.drop_parameters(s.bucket);
  } else if (slot == flat.gradients) {
    storage_.drop_gradients(s.bucket);
  } else {
    own_[slot].reset();
  }
}

void Executor::start_flat(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  const at::Tensor& source = flat_source(i.inputs[0]);
  Communicator& ranks = group({i.move.atoms, i.move.stages});
  const Purpose purpose{i.phase, &i.label};
  if (bucket.hook && i.pending == bucket.flat.reduction) {
    const Ledger::Scope scope(ledger_, Category::buffers);
    hooked_[i.bucket]->start(source, ranks, purpose);
    return;
  }
  const at::Tensor& target = open(i.outputs[0]);
  flights_[i.pending] = i.move.kind == Move::Kind::all_reduce
                            ? ranks.all_reduce(target, Reduction::sum, purpose)
                        : i.move.kind == Move::Kind::reduce_scatter
                            ? ranks.reduce_scatter(target, source, Reduction::sum, purpose)
                            : ranks.all_gather(target, source.to(device_), purpose);
}

// A gather that is awaited by several is there for all after the first.
void Executor::end_flat(const Instruction& i) {
  const Bucket& bucket = program_.buckets[i.bucket];
  if (bucket.hook && i.pending == bucket.flat.reduction) {
    const Ledger::Scope scope(ledger_, Category::buffers);
    hooked_[i.bucket]->finish();
    return;
  }
  if (const auto flight = flights_.find(i.pending); flight != flights_.end()) {
    flight->second.wait();
    flights_.erase(flight);
  }
  // The next reduction counts the sum so far once.
  if (bucket.each && !sizes_.of_kind(0).contributes(bucket.reduce)) storage_.begin_sum(i.bucket);
}

at::Tensor Executor::whole(int bucket, bool gradients) {
  const Bucket& b = program_.buckets[bucket];
  const Storage::Flat& flat = storage_.flats()[bucket];
  if (!gradients && flat.parameters.defined()) return flat.parameters;
  at::Tensor part = gradients ? flat.own_gradients : flat.own_parameters.to(device_);
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

// One reduction over the world carries the loss, the squared gradient norm and the wish to stop.
// A quantity that several ranks hold alike is given by the first of them alone,
// so that it counts once.
void Executor::totals(const Instruction& i) {
  at::Tensor sums = at::zeros({3}, at::kDouble);
  sums[0] = lasting_[i.inputs[0]]->item<double>();
  double squares = 0;
  for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
    const Bucket& bucket = program_.buckets[b];
    if (bucket.shard_atoms.empty() && bucket.reduce.empty()) storage_.settle(static_cast<int>(b));
    if (bucket.expert_load) continue;
    if (!bucket.stages.empty() && bucket.stages.front() != program_.stage) continue;
    const auto among = [](const std::vector<int>& atoms, int a) {
      return std::find(atoms.begin(), atoms.end(), a) != atoms.end();
    };
    if (!gives([&](int a) { return !among(bucket.sharded, a) && !among(bucket.shard_atoms, a); }))
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

}  // namespace mw
