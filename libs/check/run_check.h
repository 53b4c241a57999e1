// The run-time check: what a plan says of its tensors, asserted while they are there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "check/replicas.h"
#include "meshwright/engine/run.h"

namespace mw {

// Watches one rank's executor. Every output of an op, every gradient that reaches one, and what
// every collective brings has the shape and type of its slot's placement, is finite, and, where it
// is called Replicate, has the same bits on all ranks of the axis; so have parameters and optimizer
// state after each step. Throws Error (run) naming the step, the op and the axis, and the rank by
// being thrown there. Replicas are compared by 63-bit sums of their bits, those of a segment in one
// all-reduce for each set of axes, booked under the phase "check";
// the memory that this takes is not booked.
class Check : public Watcher {
 public:
  // `overflows`: gradients may be infinite, as a loss scale finds its size by that;
  // not in a step that counts.
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
  std::string overflowed_;  // of this step's backward: the first that is not finite, if it may be
  std::map<RankSet, std::vector<BitsSeen>> seen_;  // since the last comparison
  std::map<std::string, bool> used_;               // by parameter, of all steps and ranks
  CheckReport report_;
};

// The check of a run: a Check for each rank that is here.
class RunCheck : public RunObserver {
 public:
  explicit RunCheck(bool overflows) : overflows_(overflows) {}
  void begin(RankRun& rank) override;
  void finish(RankRun& rank) override;
  std::string name() const override { return "check"; }
  // The report of the rank whose check took longest; of no steps if none ran. It is called when no
  // rank runs any more.
  CheckReport report() const;

 private:
  const bool overflows_;
  std::mutex mutex_;
  std::map<int, std::unique_ptr<Check>> checks_;
};

}  // namespace mw
