// Measures times within a step of a rank: on the CPU by the host's clock, on an accelerator by
// events in the rank's own stream, which are read once the device has passed them. The host's clock
// would only measure how fast work is queued on the device.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>

#include <vector>

#include "meshwright/ledger.h"

namespace mw {

// The counter to which this thread adds the seconds in which it carries out rounds of ranks that
// are threads; null: the time is not measured.
extern thread_local double* copy_seconds;

class StepClock {
 public:
  explicit StepClock(at::Device device) : device_(device) {}
  ~StepClock();
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  void begin();  // begins a step on this thread
  int mark();    // marks the present time, and returns the mark's number
  // Seconds from the begin of the step to a mark. On an accelerator, only after end().
  double seconds(int mark) const;
  // Called once all work of the step is queued. On an accelerator, waits for the device, so that
  // seconds() can be called, and books in the ledgers how long the rank's stream waited for
  // transfers.
  void end();

  // The clock of the step under way on this thread, if that is on an accelerator; else null.
  static StepClock* on_device();
  // Notes that the rank waited for a collective between two marks.
  void waited(Ledger& ledger, Ledger::Entry entry, int from, int to);

 private:
  struct Wait {
    Ledger* ledger;
    Ledger::Entry entry;
    int from, to;
  };

  const at::Device device_;
  double began_ = 0;
  std::vector<double> times_;       // the marks on the CPU, in seconds
  std::vector<c10::Event> events_;  // the marks on an accelerator; reused from step to step
  std::size_t marks_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace mw
