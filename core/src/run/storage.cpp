// Allocates a rank's flat tensors of parameters, gradients and optimizer state, and hands out
// views of them, gathered or only this rank's part.
#include "run/storage.h"

#include <algorithm>

#include "program/scalar_type.h"

namespace mw {

Storage::Storage(const Program& program, const Coordinates& at, at::Device device, Ledger& ledger)
    : program_(program),
      options_(at::TensorOptions().device(device).dtype(scalar_type(program.dtype))),
      gradient_options_(options_.dtype(scalar_type(program.gradient_dtype))),
      ledger_(ledger),
      flats_(program.buckets.size()),
      shapes_(program.parameters.size()),
      offsets_(program.parameters.size()),
      parameters_(program.parameters.size()),
      gradients_(program.parameters.size()),
      parameter_of_(program.slots.size(), -1),
      bucket_of_(program.parameters.size(), -1),
      written_(program.parameters.size(), false) {
  for (std::size_t p = 0; p < program.parameters.size(); ++p) {
    parameter_of_[program.parameters[p].slot] = static_cast<int>(p);
    parameter_of_[program.parameters[p].gradient_slot] = static_cast<int>(p);
  }
  for (std::size_t b = 0; b < program.buckets.size(); ++b) {
    const Bucket& bucket = program.buckets[b];
    const int number = static_cast<int>(b);
    std::int64_t total = 0;
    for (int p : bucket.parameters) {
      bucket_of_[p] = number;
      shapes_[p] = program.local_shape(program.slots[program.parameters[p].slot], at);
      offsets_[p] = total;
      total += c10::multiply_integers(shapes_[p]);
    }
    const std::int64_t ways =
        bucket.shard_atoms.empty() ? 1 : program.mesh.ways(bucket.shard_atoms);
    std::int64_t index = 0;  // mesh order: the outermost atom counts most
    for (int atom : bucket.shard_atoms) index = index * program.mesh.atoms()[atom].ways + at[atom];
    parts_.push_back((total + ways - 1) / ways);
    sizes_.push_back(parts_.back() * ways);
    index_.push_back(index);
    Flat& flat = flats_[b];
    {
      const bool host = bucket.offload == Offload::parameters;
      Ledger::Scope scope(ledger, host ? Category::host : Category::parameters);
      if (bucket.sharded_state == ShardedState::parameters) {
        flat.own_parameters = at::zeros({parts_[b]}, host ? options_.device(at::kCPU) : options_);
      } else {
        flat.parameters = at::zeros({sizes_[b]}, options_);
        flat.own_parameters = part_of(number, flat.parameters);
        view_parameters(number);
      }
    }
    {
      Ledger::Scope scope(ledger, Category::gradients);
      if (bucket.sharded_state >= ShardedState::gradients) {
        flat.own_gradients = at::zeros({parts_[b]}, gradient_options_);
      } else {
        flat.gradients = at::zeros({sizes_[b]}, gradient_options_);
        flat.own_gradients = part_of(number, flat.gradients);
        view_gradients(number);
      }
    }
    const bool host = bucket.offload != Offload::nothing;
    Ledger::Scope scope(ledger, host ? Category::host : Category::optimizer);
    at::Tensor updated = flat.own_parameters;
    if (host && !device.is_cpu()) updated = at::empty({parts_[b]}, options_.device(at::kCPU));
    if (bucket.flat.master >= 0) {
      updated = flat.master =
          at::zeros({parts_[b]}, updated.options().dtype(scalar_type(program.optimizer_dtype)));
    }
    for (std::size_t k = 0; k < bucket.flat.states.size(); ++k)
      flat.state.tensors.push_back(at::zeros_like(updated, at::MemoryFormat::Contiguous));
  }
}

at::Tensor Storage::part_of(int bucket, const at::Tensor& whole) const {
  return whole.narrow(0, index_[bucket] * parts_[bucket], parts_[bucket]);
}

void Storage::view_parameters(int bucket) {
  const at::Tensor& whole = flats_[bucket].parameters;
  for (int p : program_.buckets[bucket].parameters) {
    parameters_[p] = whole.defined() ? slice(p, whole) : at::Tensor();
  }
}

void Storage::view_gradients(int bucket) {
  const at::Tensor& whole = flats_[bucket].gradients;
  for (int p : program_.buckets[bucket].parameters) {
    gradients_[p] = whole.defined() ? slice(p, whole) : at::Tensor();
  }
}

at::Tensor Storage::slice(int parameter, const at::Tensor& whole) const {
  return whole.narrow(0, offsets_[parameter], c10::multiply_integers(shapes_[parameter]))
      .view(shapes_[parameter]);
}

at::Tensor Storage::own_gradient(int parameter) const {
  const int bucket = bucket_of_[parameter];
  const std::int64_t first = index_[bucket] * parts_[bucket];
  const std::int64_t begin = std::max(first, offsets_[parameter]);
  const std::int64_t end = std::min(
      first + parts_[bucket], offsets_[parameter] + c10::multiply_integers(shapes_[parameter]));
  return flats_[bucket].own_gradients.narrow(0, begin < end ? begin - first : 0,
                                             std::max<std::int64_t>(0, end - begin));
}

void Storage::fill(int parameter, std::int64_t first, const at::Tensor& numbers) {
  const int bucket = bucket_of_[parameter];
  const Flat& flat = flats_[bucket];
  const std::int64_t at = offsets_[parameter] + first;
  if (flat.parameters.defined()) {
    flat.parameters.narrow(0, at, numbers.numel()).copy_(numbers.reshape(-1));
  } else {
    fill_part(bucket, at, numbers, flat.own_parameters);
  }
  if (flat.master.defined()) fill_part(bucket, at, numbers, flat.master);
}

void Storage::fill_part(int bucket, std::int64_t at, const at::Tensor& numbers,
                        const at::Tensor& part) const {
  const std::int64_t first = index_[bucket] * parts_[bucket];
  const std::int64_t begin = std::max(first, at);
  const std::int64_t end = std::min(first + parts_[bucket], at + numbers.numel());
  if (begin >= end) return;
  part.narrow(0, begin - first, end - begin)
      .copy_(numbers.reshape(-1).narrow(0, begin - at, end - begin));
}

const at::Tensor& Storage::gradient(int index) {
  const int bucket = bucket_of_[index];
  if (!flats_[bucket].gradients.defined()) {
    Ledger::Scope scope(ledger_, Category::buffers);
    flats_[bucket].gradients = at::empty({sizes_[bucket]}, gradient_options_);
    view_gradients(bucket);
    for (int p : program_.buckets[bucket].parameters) written_[p] = false;
  }
  return gradients_[index];
}

const at::Tensor& Storage::open_parameters(int bucket) {
  Flat& flat = flats_[bucket];
  if (!flat.parameters.defined()) {
    Ledger::Scope scope(ledger_, Category::buffers);
    flat.parameters = at::empty({sizes_[bucket]}, options_);
    view_parameters(bucket);
  }
  return flat.parameters;
}

void Storage::drop_parameters(int bucket) {
  flats_[bucket].parameters = at::Tensor();
  view_parameters(bucket);
}

const at::Tensor& Storage::settle(int bucket) {
  std::int64_t end = 0;
  for (int p : program_.buckets[bucket].parameters) {
    const at::Tensor& own = gradient(p);
    if (!written_[p]) own.zero_();
    written_[p] = true;
    end = std::max(end, offsets_[p] + own.numel());
  }
  const at::Tensor& whole = flats_[bucket].gradients;
  if (end < whole.numel()) whole.narrow(0, end, whole.numel() - end).zero_();
  return whole;
}

void Storage::settle_part(int bucket) {
  Flat& flat = flats_[bucket];
  if (program_.buckets[bucket].sharded_state < ShardedState::gradients || flat.summed) return;
  flat.own_gradients.zero_();
  flat.summed = true;
}

void Storage::sum_part(int bucket, const at::Tensor& part) {
  Flat& flat = flats_[bucket];
  if (flat.summed) {
    flat.own_gradients.add_(part);
  } else {
    flat.own_gradients.copy_(part);
  }
  flat.summed = true;
}

void Storage::drop_gradients(int bucket) {
  flats_[bucket].gradients = at::Tensor();
  view_gradients(bucket);
}

void Storage::begin_step() {
  written_.assign(written_.size(), false);
  for (Flat& flat : flats_) flat.summed = false;
}

}  // namespace mw
