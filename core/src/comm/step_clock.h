// Takes the times of a step on a rank: on the CPU by its clock, on an accelerator by events in the
// rank's own stream, which are read when the device has come past them. A clock of the host around
// what is only queued would tell how fast it was queued.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <vector>

#include "meshwright/ledger.h"

namespace mw {

// Where this thread adds the seconds in which it carries out rounds of thread ranks, whoever's they
// are; null: nobody asks.
extern thread_local double* copy_seconds;

class StepClock {
 public:
  explicit StepClock(at::Device device) : device_(device) {}
  ~StepClock();
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  void begin();  // of a step, on this thread
  int mark();    // now
  // Seconds from the step's begin to the mark. On an accelerator it is called after end().
  double seconds(int mark) const;
  // The step's work is queued. On an accelerator this waits for the device, so that times are
  // there, and books in the ledgers what the rank's stream waited for transfers.
  void end();

  // The clock of the step under way on this thread, if that is on an accelerator; else null.
  static StepClock* on_device();
  // From one mark to the other the rank waited for a collective.
  void waited(Ledger& ledger, Ledger::Entry entry, int from, int to);

 private:
  struct Wait {
    Ledger* ledger;
    Ledger::Entry entry;
    int from, to;
  };

  const at::Device device_;
  double began_ = 0;
  std::vector<double> times_;       // on the CPU
  std::vector<c10::Event> events_;  // kept from step to step
  std::size_t marks_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace mw
