// The simulated accelerator's memory blocks, streams and clocks, and the search for races.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/operator_name.h>
#include <c10/core/Stream.h>

#include <mutex>
#include <optional>
#include <utility>

#include "simulated.h"

namespace mw::sim {

constexpr auto device_type = c10::DeviceType::PrivateUse1;
constexpr std::uintptr_t span = std::uintptr_t{1} << 36;  // addresses of a device

// By stream: up to which of its ops everything has happened.
using Clock = std::vector<std::uint64_t>;

struct Access {
  std::size_t begin, end;  // bytes of the block
  std::uint32_t stream;
  std::uint64_t time;
  std::string op;
  bool write;
};

// An allocation: of a device, or (device -1) page-locked memory of the host.
struct Block {
  char* host;            // where the bytes are
  std::uintptr_t first;  // what data_ptr() says; of a device: nobody can touch it
  std::size_t size;
  int device;
  std::uint32_t stream;  // current when it was allocated: gets the memory back
  std::vector<Access> accesses;
  std::vector<std::uint32_t> recorded;  // record_stream
};

struct Use {
  Block* block;
  std::size_t begin, end;
  bool write;
};

struct Stamp {
  std::uint32_t stream;
  std::uint64_t time;
};

// A copy between a device and page-locked memory that the host has not waited for.
struct Copying {
  Stamp stamp;
  Block* block;
  void* host;
  std::vector<char> data;  // what is copied
  bool to_host;
};

// A wait that was left out.
struct Missing {
  std::uint32_t stream;
  Clock clock;
  bool made_up_for = false;
};

struct StreamInfo {
  int device, number;  // its number on the device: what reports say
};

struct State {
  std::mutex mutex;
  bool installed = false;
  char* base = nullptr;
  std::vector<StreamInfo> streams;  // stream d is the default of device d; does not move
  std::vector<Clock> clocks;        // by stream
  std::vector<int> last_stream;     // by device: its newest stream's number
  std::map<std::uintptr_t, Block*> blocks;
  std::vector<std::uintptr_t> next;
  std::vector<Counts> counts;
  std::vector<at::Generator> generators;
  std::vector<Copying> copying;
  std::vector<std::string> reports;
  std::optional<Missing> missing;
  std::map<std::string, std::int64_t> host_waits;
};
State& state();  // never destroyed: tensors outlive static objects

int current_device();
void set_current_device(int device);
std::uint32_t current_stream_of(int device);
void set_current_stream_of(int device, std::uint32_t stream);
std::uint32_t index_of(c10::Stream stream);
c10::Stream stream_at(std::uint32_t index);

void join(Clock& to, const Clock& from);
bool holds(const Clock& clock, const Clock& other);
// Under the lock: the stream's clock has grown.
void look_for_missing(std::uint32_t stream);
Clock& host_clock();  // of the calling thread

// Enters an op: its place in the order, and a report for each access that is out of order.
Stamp enqueue(const std::string& op, std::uint32_t stream, const std::vector<Use>& uses);
// Under the lock. Copies that the host has now waited for, or that `block` is needed from, land.
void settle(const Block* block = nullptr);
// Under the lock, before a device writes to the block. Ends all copies that read it: they come
// before, or enqueue() has reported a race.
void settle_reads(const Block* block);
// The host waits for what the stream holds, because of `op`.
void host_sync(std::uint32_t stream, const std::string& op);
void host_sync(const Clock& clock, std::uint32_t stream, const std::string& op);

// memory.cpp
Block* new_block(int device, std::size_t size);
c10::DataPtr owned(Block* block, int device);
// Null for memory that is none of ours; throws for addresses of a device that nothing lies at.
Block* block_of(const c10::DataPtr& data);
Block* find_block(const void* address);
std::optional<Use> use_of(const at::Tensor& tensor, bool write);  // the bytes that it spans
void use_on(const c10::DataPtr& data, c10::Stream stream);        // record_stream
void tell_of(const Block& block, std::int64_t bytes);             // whoever listens to allocations
c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();

// ops.cpp
void register_kernels();

}  // namespace mw::sim
