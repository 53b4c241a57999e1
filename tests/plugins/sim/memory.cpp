// The simulated accelerator's allocators: memory of devices, whose addresses nobody can touch, and
// page-locked memory of the host.
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>

#include "clocks.h"

namespace mw::sim {
namespace {

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) return;
  State& s = state();
  {
    const std::lock_guard lock(s.mutex);
    s.blocks.erase(block->first);
    if (block->device < 0) {
      settle(block);
    } else {
      Clock clock = s.clocks[block->stream];  // of the next op that could get the memory
      join(clock, host_clock());
      for (const Access& a : block->accesses) {
        const auto& marked = block->recorded;
        if (a.stream < clock.size() && clock[a.stream] >= a.time) continue;
        if (std::find(marked.begin(), marked.end(), a.stream) != marked.end()) continue;
        const StreamInfo &own = s.streams[block->stream], &other = s.streams[a.stream];
        s.reports.push_back(c10::str("race: a block of sim:", own.device, " stream ", own.number,
                                     " is freed while ", a.op, " on sim:", other.device, " stream ",
                                     other.number, a.write ? " writes" : " reads",
                                     " it, with no wait between"));
      }
      Counts& count = s.counts[static_cast<std::size_t>(block->device)];
      count.allocated_bytes -= static_cast<std::int64_t>(block->size);
      --count.blocks;
    }
  }
  if (block->device >= 0) tell_of(*block, -static_cast<std::int64_t>(block->size));
  c10::free_cpu(block->host);
  delete block;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    Block* block = size > 0 ? new_block(current_device(), size) : nullptr;
    c10::DataPtr data = owned(block, current_device());
    if (block != nullptr) tell_of(*block, static_cast<std::int64_t>(size));
    return data;
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "sim: no Allocator::clone");
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t size) override {
    return owned(new_block(-1, std::max<std::size_t>(size, 1)), -1);
  }
  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }
};

}  // namespace

Block* new_block(int device, std::size_t size) {
  State& s = state();
  auto* block = new Block{static_cast<char*>(c10::alloc_cpu(size)), 0, size, device, 0, {}, {}};
  std::memset(block->host, 0xff, size);  // NaN, for whoever reads it first
  if (device >= 0) block->stream = current_stream_of(device);
  const std::lock_guard lock(s.mutex);
  if (device < 0) {
    block->first = reinterpret_cast<std::uintptr_t>(block->host);
  } else {
    const auto at = static_cast<std::size_t>(device);
    block->first = s.next[at];
    s.next[at] += (size + 1023) / 512 * 512;  // and a gap
    TORCH_CHECK(s.next[at] < reinterpret_cast<std::uintptr_t>(s.base) + (at + 1) * span,
                "sim: out of addresses");
    Counts& count = s.counts[at];
    count.allocated_bytes += static_cast<std::int64_t>(size);
    count.peak_bytes = std::max(count.peak_bytes, count.allocated_bytes);
    ++count.blocks;
  }
  s.blocks[block->first] = block;
  // An allocator gives memory back as soon as it is free in the order of the stream that it was
  // handed out on: another stream must come after all that may have used it before.
  if (device >= 0) {
    const Clock& clock = s.clocks[block->stream];
    if (block->stream < clock.size() && clock[block->stream] > 0) {
      block->accesses.push_back(
          {0, size, block->stream, clock[block->stream], "what had it before", true});
    }
  }
  return block;
}

c10::DataPtr owned(Block* block, int device) {
  return {block != nullptr ? reinterpret_cast<void*>(block->first) : nullptr, block, &free_block,
          device < 0 ? c10::Device(c10::kCPU) : sim::device(device)};
}

Block* find_block(const void* address) {
  State& s = state();
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(s.mutex);
  const auto next = s.blocks.upper_bound(at);
  if (next == s.blocks.begin()) return nullptr;
  Block* block = std::prev(next)->second;
  return at < block->first + block->size ? block : nullptr;
}

Block* block_of(const c10::DataPtr& data) {
  if (data.get_deleter() == &free_block) return static_cast<Block*>(data.get_context());
  Block* block = data.get() != nullptr ? find_block(data.get()) : nullptr;
  TORCH_CHECK(block != nullptr || data.get() == nullptr || data.device().is_cpu(),
              "sim: ", data.get(), " is no memory of a device, or was freed");
  return block;
}

std::optional<Use> use_of(const at::Tensor& tensor, bool write) {
  Block* block = tensor.numel() > 0 ? block_of(tensor.storage().data_ptr()) : nullptr;
  if (block == nullptr) return std::nullopt;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const std::size_t item = tensor.element_size();
  const auto at = reinterpret_cast<std::uintptr_t>(tensor.storage().data_ptr().get());
  const std::size_t begin =
      at - block->first + static_cast<std::size_t>(tensor.storage_offset()) * item;
  return Use{block, begin, begin + (static_cast<std::size_t>(last) + 1) * item, write};
}

void use_on(const c10::DataPtr& data, c10::Stream stream) {
  Block* block = block_of(data);
  const std::lock_guard lock(state().mutex);
  if (block != nullptr) block->recorded.push_back(index_of(stream));
}

void tell_of(const Block& block, std::int64_t bytes) {
  const auto now = static_cast<std::size_t>(counts(block.device).allocated_bytes);
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(block.first), bytes, now, now,
                                   device(block.device));
}

c10::Allocator* device_allocator() {
  static DeviceAllocator allocator;
  return &allocator;
}
c10::Allocator* pinned_allocator() {
  static PinnedAllocator allocator;
  return &allocator;
}

}  // namespace mw::sim
