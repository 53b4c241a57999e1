// Notes where the seconds of a rank's step go, instruction by instruction, in a step of which an
// account is taken: in calls of communicators, in copies, in the run's Watcher, and without a core.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "meshwright/engine/run.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"

namespace mw {

// It stands in the place of the executor's watcher while such a step runs, and times that.
class AccountClock final : public Watcher {
 public:
  AccountClock(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}
  ~AccountClock() override;
  AccountClock(const AccountClock&) = delete;
  AccountClock& operator=(const AccountClock&) = delete;

  // A step begins. Returns the watcher that it is to have in the place of `watcher`.
  Watcher* begin(Watcher* watcher);
  // It has ended. Returns the watcher that it would have had.
  Watcher* end(StepOutcome& outcome);
  bool runs() const { return runs_; }

  void before(const Instruction& i);
  void after(const Instruction& i);
  // The parts of the instructions so far, in their order. What ran in a kernel is not known here;
  // nor, on an accelerator, for how long a wait blocked the rank's stream: that is `sent` < 0.
  const std::vector<InstructionParts>& parts() const { return parts_; }

  void computed(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override;
  void reads(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override;
  void moved(const Instruction& i, int slot, int microbatch, const at::Tensor& tensor) override;
  void gradients(RankRun& rank) override;
  void begin(RankRun& rank, std::int64_t step) override;
  void ran(int microbatch) override;
  void ended() override;

 private:
  // A stretch of the step begins in which the rank's thread waits for nobody. It ends, and another
  // one begins: for how long the thread had no core.
  void open();
  double turn();
  template <class Call>
  void timed(const Call& call);

  const at::Device device_;
  Ledger& ledger_;
  Watcher* watcher_ = nullptr;
  bool runs_ = false;
  bool asks_ = false;  // whether its kernels have no other threads than this one, on a CPU
  std::vector<InstructionParts> parts_;
  double sent_before_ = 0, copied_before_ = 0, watched_before_ = 0;
  double copied_ = 0, watched_ = 0, tracing_ = 0;
  double opened_ = 0, opened_cpu_ = 0;
  double question_ = 0;  // what such a look at the thread's own clock takes; 0: not measured yet
};

}  // namespace mw
