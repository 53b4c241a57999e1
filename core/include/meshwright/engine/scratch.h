// What calls of libraries' kernels allocate beside operands and results on this machine: tried once
// for each CPU, and kept in the user's cache folder.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "meshwright/op.h"

namespace mw {

struct Scratch {
  std::int64_t bytes = 0;
  bool measured = true;        // else an estimate
  std::int64_t estimated = 0;  // bytes, at most, of one that is an estimate
};

// A product of more operations is not tried as it is: no plan should wait for it. It is then cut
// down to less.
constexpr double most_tried_flops = 1 << 28, cut_down_flops = 1 << 24;

// Makes the call with operands of its sizes and returns the bytes that it allocated and let go, at
// most at a time; nothing if it failed. In a thread of its own,
// which has `threads` threads for its kernels.
std::optional<std::int64_t> try_scratch(const LibraryCall& call, at::ScalarType type, int threads);

// Measurements of one machine, which any thread may ask for.
class ScratchBook {
 public:
  // With what `folder` keeps of this CPU (engine/host.h: kernels_key); an empty one keeps nothing.
  explicit ScratchBook(const std::filesystem::path& folder);
  ~ScratchBook();  // keeps what was measured
  ScratchBook(const ScratchBook&) = delete;
  ScratchBook& operator=(const ScratchBook&) = delete;

  // What a call alone takes, without what is `beside` it.
  Scratch of(const LibraryCall& call, at::ScalarType type, int threads);

 private:
  std::optional<std::int64_t> measured(const LibraryCall& call, at::ScalarType type, int threads);
  // What a product takes: what two smaller ones take, and in proportion to m n what the larger of
  // them takes more. What a kernel takes for each thread is thus taken once.
  std::int64_t estimate(const LibraryCall& call, at::ScalarType type, int threads);

  const std::filesystem::path file_;
  const std::string key_;
  std::mutex lock_;
  std::map<std::string, std::int64_t> known_, fresh_;  // by call, type and threads
};

// What kernels allocate for themselves on a device that is not this machine's CPU.
class DeviceScratch {
 public:
  virtual ~DeviceScratch() = default;
  // What a piece of an op takes, its library calls not counted.
  virtual std::int64_t workspace(const Cost& cost) const {
    return cost.accelerator_workspace.value_or(cost.workspace);
  }
  // What one call alone takes, with reals of `element` bytes.
  virtual std::int64_t of(const LibraryCall& call, int element) const = 0;
};

// That of the process, in cache_folder().
ScratchBook& scratch_book();

}  // namespace mw
