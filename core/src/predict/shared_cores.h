// Ranks as threads of one machine: they share its cores and memory, and copy their messages
// themselves, so that nothing overlaps.
#pragma once

#include "predict/device.h"
#include "predict/machine.h"

namespace mw {

class SharedCores final : public Machine {
 public:
  explicit SharedCores(Device device) : device_(std::move(device)) {}

  std::string name() const override;
  std::int64_t room() const override;
  std::unique_ptr<RankMachine> of_rank(const RankView& view, int ranks, int threads) const override;
  bool overlaps() const override { return false; }
  // Threads copy when both are there.
  bool stages_wait() const override { return true; }
  int threads_of(int ranks, int asked) const override { return device_.threads_of(ranks, asked); }
  double peak(int ranks, Dtype dtype, int threads) const override;
  double turns(int ranks, int threads) const override;
  double slowdown(int ranks, int threads, int active) const override;
  std::int64_t memory() const override { return device_.memory; }
  bool memory_together() const override { return true; }

 private:
  Device device_;
};

// This machine, measured (device.h).
const Machine& this_machine();

}  // namespace mw
