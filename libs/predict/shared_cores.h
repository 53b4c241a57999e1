// Ranks as threads of one machine: they share its cores and memory, and copy their messages
// themselves, so that nothing overlaps.
#pragma once

#include <memory>

#include "predict/calibration.h"
#include "predict/device.h"
#include "predict/machine.h"

namespace mw {

class SharedCores final : public Machine {
 public:
  // `calibration`: of the same machine; null: prices follow the device's roofline alone.
  explicit SharedCores(Device device, std::shared_ptr<const Calibration> calibration = nullptr);

  std::string name() const override;
  const Machine* by_core_seconds() const override { return by_core_seconds_.get(); }
  double error() const override { return calibration_ ? calibration_->step_error : 0; }
  std::int64_t room() const override;
  std::unique_ptr<RankMachine> of_rank(const RankView& view, int ranks, int threads) const override;
  bool overlaps() const override { return false; }
  // A message between stages is copied by the ranks' threads when both are there.
  bool stages_wait() const override { return true; }
  int threads_of(int ranks, int asked) const override { return device_.threads_of(ranks, asked); }
  double peak(int ranks, Dtype dtype, int threads) const override;
  double turns(int ranks, int threads) const override;
  double slowdown(int ranks, int threads, int active) const override;
  std::int64_t memory() const override { return device_.memory; }
  bool memory_together() const override { return true; }

 private:
  struct NoTurns {};
  SharedCores(const SharedCores& of, NoTurns);

  Device device_;
  std::shared_ptr<const Calibration> calibration_;
  bool turns_ = true;  // ranks take turns on cores
  std::unique_ptr<SharedCores> by_core_seconds_;
};

// This machine, measured (device.h), and calibrated where there is a calibration of it.
const Machine& this_machine();

}  // namespace mw
