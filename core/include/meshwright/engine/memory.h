// Predicted memory of one rank: the program's timeline walked with the rank's sizes, storage by
// storage, as the executor allocates and releases them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "meshwright/engine/footprint.h"
#include "meshwright/ledger.h"

namespace mw {

// Parameters, gradients and optimizer state are constant; activations and buffers come and go, and
// here is their highest (and of host memory, with what is constant there). `peak`: the highest of
// the sum, at most the sum of the categories.
struct MemoryForecast {
  std::array<std::int64_t, category_count> bytes{};
  std::int64_t peak = 0;
  bool measured = true;  // of kernels' scratch: all of it was tried on this machine, none estimated

  std::int64_t operator[](Category category) const {
    return bytes[static_cast<std::size_t>(category)];
  }
  std::int64_t& operator[](Category category) { return bytes[static_cast<std::size_t>(category)]; }
};

// The higher of each.
MemoryForecast highest_of(const MemoryForecast& a, const MemoryForecast& b);

MemoryForecast forecast_memory(const RankView& rank);

// The highest peak of the ranks of these stages. `scratch`: see RankView.
std::int64_t highest_peak(const std::vector<Program>& stages, const DeviceScratch* scratch);

// Bytes that one microbatch holds after these segments have run one after the other.
std::int64_t bytes_left(const RankView& rank, const std::vector<int>& segments);

}  // namespace mw
