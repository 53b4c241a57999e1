// Prices a step: seconds of each instruction by a roofline, and a timeline of one rank in which
// transfers are begun and awaited.
#pragma once

#include <map>

#include "simulate/machine.h"
#include "simulate/rank_view.h"
#include "simulate/traffic.h"

namespace mw {

struct TransferTime {
  double seconds = 0;  // that the transfers take
  double exposed = 0;  // ... in which the rank did nothing else
};

struct StepTime {
  double step = 0;
  double compute = 0;  // in ops, copies and the optimizer
  double exposed = 0;  // waiting for transfers
  double idle = 0;     // neither: waiting for another stage
  std::map<CommunicationKey, TransferTime> transfers;
  double executed = 0;  // floating-point operations that the rank really does
};

// `optimizer_states`: tensors that the optimizer keeps for each parameter. Work is priced once for
// each instruction of a segment and once for each run of a segment whose start finds no transfer
// under way, so it does not grow with microbatches. `threads` of each rank; 0: see Device::threads_of.
StepTime price_step(const RankView& rank, const Device& device, int optimizer_states,
                    int threads = 0);

}  // namespace mw
