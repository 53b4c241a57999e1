// Allocates a rank's lasting slots by their sizes, keeps the views of them, and opens, sums and
// lets go of those that come and go.
#include "run/storage.h"

#include <algorithm>
#include <array>

#include "meshwright/engine/scalar_type.h"
#include "run/host_copy.h"

namespace mw {
namespace {

void add_bf16(const at::Tensor& sum, const at::Tensor& more) {
  float* to = sum.data_ptr<float>();
  const at::BFloat16* from = more.const_data_ptr<at::BFloat16>();
  const std::int64_t end = sum.numel();
  for (std::int64_t k = 0; k < end; ++k) to[k] += static_cast<float>(from[k]);
}

// A plain loop widens fp16 by integer operations, libtorch by the CPU's own: piece by piece, on the
// stack.
void add_fp16(const at::Tensor& sum, const at::Tensor& more) {
  constexpr std::int64_t most = 1 << 14;
  const at::Tensor to = sum.view({-1}), from = more.view({-1});
  alignas(64) std::array<float, most> piece;
  const at::Tensor wide = at::from_blob(piece.data(), {most}, at::kFloat);
  for (std::int64_t k = 0; k < to.numel(); k += most) {
    const std::int64_t count = std::min(most, to.numel() - k);
    to.narrow(0, k, count).add_(wide.narrow(0, 0, count).copy_(from.narrow(0, k, count)));
  }
}

// Adds to a sum without a copy: on a CPU libtorch adds reals of 2 bytes to fp32 by way of an fp32
// copy of them all.
void add_to(const at::Tensor& sum, const at::Tensor& more) {
  const bool direct = sum.is_cpu() && more.is_cpu() && sum.is_contiguous() &&
                      more.is_contiguous() && sum.scalar_type() == at::kFloat &&
                      sum.sizes() == more.sizes();
  if (direct && more.scalar_type() == at::kBFloat16) {
    add_bf16(sum, more);
  } else if (direct && more.scalar_type() == at::kHalf) {
    add_fp16(sum, more);
  } else {
    sum.add_(more);
  }
}

}  // namespace

Storage::Storage(const RankView& rank, at::Device device, Ledger& ledger, const Storage* other)
    : rank_(rank),
      program_(rank.program()),
      device_(device),
      ledger_(ledger),
      tensors_(program_.slots.size()),
      places_(program_.slots.size()),
      views_(program_.slots.size()),
      written_(program_.slots.size(), false) {
  const std::vector<Slot>& slots = program_.slots;
  const auto add_view = [&](int slot, Range range, std::vector<std::int64_t> shape) {
    places_[slot] = {range, std::move(shape)};
    views_.at(static_cast<std::size_t>(slots[slot].alias_of)).push_back(slot);
  };
  for (std::size_t p = 0; p < program_.parameters.size(); ++p) {
    const ProgramParameter& parameter = program_.parameters[p];
    for (int slot : {parameter.slot, parameter.gradient_slot})
      if (slot >= 0)
        add_view(slot, rank.place(static_cast<int>(p)),
                 program_.local_shape(slots[parameter.slot], rank.at()));
  }
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const int slot = static_cast<int>(s);
    if (!slots[s].persistent) continue;
    if (slots[s].alias_of < 0) {
      if (!slots[s].transient) lasting_.push_back(slot);
    } else if (slots[s].is_flat()) {
      add_view(slot, rank.part(slot), {rank.part(slot).size});
    }
  }
  for (std::size_t k = 0; k < lasting_.size(); ++k)
    set(lasting_[k],
        other != nullptr ? other->tensors_[other->lasting_.at(k)] : room(lasting_[k]).zero_());
}

at::Tensor Storage::room(int slot) const {
  const Slot& s = program_.slots[slot];
  const bool host = s.memory == Memory::host;
  const at::ScalarType type = scalar_type(s.dtype);
  const std::int64_t elements = rank_.bytes(slot) / bytes_of(s.dtype);
  const Ledger::Scope scope(ledger_, host ? Category::host : s.category);
  return host ? host_memory({elements}, {1}, type, device_, ledger_)
              : at::empty({elements}, at::TensorOptions().dtype(type).device(device_));
}

at::Tensor Storage::view(int slot, const at::Tensor& whole) const {
  const View& place = places_[slot];
  return whole.narrow(0, place.range.offset, place.range.size).view(place.shape);
}

void Storage::set(int slot, at::Tensor tensor) {
  for (int v : views_[slot]) {
    tensors_[v] = tensor.defined() ? view(v, tensor) : at::Tensor();
    written_[v] = false;
  }
  tensors_[slot] = std::move(tensor);
  written_[slot] = false;
}

const at::Tensor& Storage::open(int slot) {
  if (!tensors_[slot].defined()) {
    const int root = program_.root(slot);
    set(root, room(root));
  }
  return tensors_[slot];
}

void Storage::add(int slot, const at::Tensor& tensor) {
  const at::Tensor& sum = open(slot);
  if (written_[slot]) {
    add_to(sum, tensor);
  } else {
    sum.copy_(tensor);
  }
  written_[slot] = true;
}

const at::Tensor& Storage::summed(int slot) {
  const at::Tensor& sum = open(slot);
  if (!written_[slot]) sum.zero_();
  written_[slot] = true;
  return sum;
}

void Storage::settle(int slot) {
  const at::Tensor& whole = open(slot);
  std::int64_t end = 0;  // end of the parameters' parts, which are settled one by one
  const auto clear = [&](int part, const at::Tensor& tensor) {
    if (!written_[part]) tensor.zero_();
    written_[part] = true;
  };
  for (int v : views_[slot]) {
    if (program_.slots[v].is_flat()) continue;
    clear(v, tensors_[v]);
    end = std::max(end, places_[v].range.offset + places_[v].range.size);
  }
  if (end == 0) {
    clear(slot, whole);
  } else if (end < whole.numel()) {
    whole.narrow(0, end, whole.numel() - end).zero_();
  }
}

void Storage::begin_sum(int slot) {
  for (int v : views_[slot]) written_[v] = false;
  written_[slot] = false;
}

const Bucket& Storage::bucket_of(int parameter) const {
  return program_
      .buckets[program_.slots[program_.root(program_.parameters[parameter].slot)].bucket];
}

std::pair<at::Tensor, Range> Storage::among(int slot, Range range) const {
  const Range part = rank_.part(slot);
  const std::int64_t begin = std::max(part.offset, range.offset);
  const std::int64_t end = std::min(part.offset + part.size, range.offset + range.size);
  if (begin >= end) return {tensors_[slot].narrow(0, 0, 0), {}};
  return {tensors_[slot].narrow(0, begin - part.offset, end - begin), {begin, end - begin}};
}

at::Tensor Storage::own_gradient(int parameter) const {
  const Bucket& bucket = bucket_of(parameter);
  if (bucket.frozen) return at::empty({0}, tensors_[bucket.flat.stored].options());
  return among(bucket.flat.reduced, rank_.place(parameter)).first;
}

void Storage::fill(int parameter, std::int64_t first, const at::Tensor& numbers) {
  const Bucket& bucket = bucket_of(parameter);
  const FlatSlots& flat = bucket.flat;
  const std::int64_t begin = rank_.place(parameter).offset + first;
  const bool whole = tensors_[flat.parameters].defined();
  const auto [a, b, c] = flat.begin_as_parameters();
  for (const int slot : {whole ? flat.parameters : flat.stored, a, b, c}) {
    if (slot < 0) continue;
    const auto [own, range] = among(slot, {begin, numbers.numel()});
    if (range.size > 0) own.copy_(numbers.reshape(-1).narrow(0, range.offset - begin, range.size));
  }
}

}  // namespace mw
