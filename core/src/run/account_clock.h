// Notes where the seconds of a rank's step go, instruction by instruction, in a step of which an
// account is taken: in calls of communicators, in copies, in the run's Watcher, and without a core.
// Counts the kernels that each instruction starts.
#pragma once

#include <ATen/ATen.h>

#include "meshwright/engine/host.h"
#include "meshwright/engine/run.h"
#include "meshwright/ledger.h"
#include "meshwright/program.h"
#include "run/kernel_meter.h"

namespace mw {

class AccountClock {
 public:
  AccountClock(at::Device device, Ledger& ledger) : device_(device), ledger_(ledger) {}
  ~AccountClock();
  AccountClock(const AccountClock&) = delete;
  AccountClock& operator=(const AccountClock&) = delete;

  // Begins the account of a step. `outcome` is the step's and lasts until end(). Whoever runs the
  // instructions puts the parts that after() returns into its list.
  void begin(StepOutcome& outcome);
  void end();
  bool runs() const { return outcome_ != nullptr; }

  void before(const Instruction& i);
  // The parts of the instruction's time. What ran in a kernel is not known here; nor, on an
  // accelerator, for how long a wait blocked the rank's stream: then `sent` is below 0.
  InstructionParts after(const Instruction& i);

  // Makes a call of the run's Watcher, and times it.
  template <class Call>
  void watched(const Call& call) {
    const double began = seconds_now();
    kernels_.uncounted(call);
    watched_ += seconds_now() - began;
  }

 private:
  // Begins a stretch of the step in which the rank's thread waits for nobody.
  void open();
  // Ends the stretch and begins another. Returns for how long the thread had no core; 0 where
  // nobody knows.
  double turn();
  // Ends the stretch; what turn() returns goes to the last instruction.
  void end_stretch();

  const at::Device device_;
  Ledger& ledger_;
  StepOutcome* outcome_ = nullptr;  // null: no account is taken
  KernelMeter kernels_;
  bool asks_ = false;  // whether core time is asked for: on a CPU whose kernels have one thread
  double sent_before_ = 0, copied_before_ = 0, watched_before_ = 0;
  double copied_ = 0, watched_ = 0, tracing_ = 0;
  double opened_ = 0, opened_cpu_ = 0, opened_watched_ = 0;
  double question_ = 0;  // seconds of a question for the thread's core time; 0: not measured yet
};

}  // namespace mw
