// The run-time check: asserts, while a run goes on, what its plan says about tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "meshwright/engine/run.h"
#include "observers/replicas.h"

namespace mw {

// Watches one rank's executor. Every output of an op, every gradient that reaches one, and the
// result of every collective must have the shape and type that its slot's placement says, be
// finite, and have the same bits on all ranks of an axis where it is Replicate. So must parameters
// and optimizer states after each step. Throws Error (run) on the rank that meets the fault, with
// the step, the op and the axis. Replicas are compared by 63-bit sums of their bits: those of a
// segment in one all-reduce for each set of axes, booked under the phase "check". The memory that
// this takes is not booked.
class Check : public Watcher {
 public:
  // `overflows`: gradients may be infinite, as a dynamic loss scale finds its size by that, but
  // only in a step whose update is left out.
  explicit Check(bool overflows = false) : overflows_(overflows) {}

  void begin(RankRun& executor, std::int64_t step) override;
  void computed(const Instruction& instruction, int slot, int microbatch,
                const at::Tensor& tensor) override;
  void moved(const Instruction& instruction, int slot, int microbatch,
             const at::Tensor& tensor) override;
  void ran(int microbatch) override;
  void gradients(RankRun& executor) override;
  void ended() override;

  CheckReport report() const;

 private:
  void look(const std::string& what, bool backward, int slot, int microbatch,
            const at::Tensor& tensor);
  void look_for_infinities(const std::string& what, bool backward, const std::string& where,
                           const at::Tensor& tensor);
  void compare();
  void compare_kept();

  const bool overflows_;
  RankRun* executor_ = nullptr;
  std::int64_t step_ = 0;
  std::string overflowed_;  // with `overflows`: this step's first gradient that is not finite
  std::map<RankSet, std::vector<BitsSeen>> seen_;  // since the last comparison
  std::map<std::string, bool> used_;  // by parameter: it had a gradient in any step, on any rank
  CheckReport report_;
};

// The check of a run: a Check for each rank that is here.
class RunCheck : public RunObserver {
 public:
  explicit RunCheck(bool overflows) : overflows_(overflows) {}
  void begin(RankRun& rank) override;
  void finish(RankRun& rank) override;
  std::string name() const override { return "check"; }
  // The report of the rank whose check took longest; one of no steps if none ran. Call it when no
  // rank runs any more.
  CheckReport report() const;

 private:
  const bool overflows_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Check>> checks_;
};

}  // namespace mw
