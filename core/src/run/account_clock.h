// Notes where the seconds of a rank's step go, instruction by instruction, in a step of which an
// account is taken: in calls of communicators, in copies, in the run's Watcher, and without a core.
#pragma once

#include <ATen/ATen.h>

#include "meshwright/engine/host.h"
#include "meshwright/engine/run.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"

namespace mw {

class AccountClock {
 public:
  AccountClock(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}
  ~AccountClock();
  AccountClock(const AccountClock&) = delete;
  AccountClock& operator=(const AccountClock&) = delete;

  // A step begins. `outcome` is its own and lasts until it has ended: whoever runs the instructions
  // puts into its list the parts that after() returns.
  void begin(StepOutcome& outcome);
  void end();
  bool runs() const { return outcome_ != nullptr; }

  void before(const Instruction& i);
  // The instruction's parts. What ran in a kernel is not known here; nor, on an accelerator, for
  // how long a wait blocked the rank's stream: that is `sent` < 0.
  InstructionParts after(const Instruction& i);

  // Makes a call of the run's Watcher, and times it.
  template <class Call>
  void watched(const Call& call) {
    const double began = seconds_now();
    call();
    watched_ += seconds_now() - began;
  }

 private:
  // A stretch of the step begins in which the rank's thread waits for nobody. It ends, and another
  // one begins: for how long the thread had no core; 0 where nobody knows.
  void open();
  double turn();
  // Such a stretch ends with the last instruction.
  void end_stretch();

  const at::Device device_;
  Ledger& ledger_;
  StepOutcome* outcome_ = nullptr;  // null: no account is taken
  bool asks_ = false;  // whether its kernels have no other threads than this one, on a CPU
  double sent_before_ = 0, copied_before_ = 0, watched_before_ = 0;
  double copied_ = 0, watched_ = 0, tracing_ = 0;
  double opened_ = 0, opened_cpu_ = 0, opened_watched_ = 0;
  double question_ = 0;  // what such a look at the thread's own clock takes; 0: not measured yet
};

}  // namespace mw
