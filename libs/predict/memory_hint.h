// What to write where a plan needs more memory than there is.
#pragma once

#include <cstdint>
#include <string>

#include "script/experiment.h"

namespace mw {

// Bytes of memory, of each rank or of all ranks together, which are threads of one machine then.
struct MemoryNeed {
  std::int64_t bytes = 0;
  bool together = false;
};

// The first change of the experiment whose predicted need is within the limit and below the
// experiment's own, as a script has it ("plan = { zero { 4, stage = 1 } }, microbatch = 2"), with
// that need; each was planned as it is written. In this order: lighter variants of strategies
// (predict/lighter.h); smaller microbatches; recompute "selective", "full"; two and three of these
// together; where nothing splits the data, an axis that does, of 2, 4, 8, … ways, with microbatches
// of 1 and with recompute; drastic variants, likewise. Says so, and the lowest, if none is. `runs`:
// of no more ranks than can be threads here. Of experiments whose steps differ, `needs_most` is the
// plan that does.
std::string memory_hint(const Experiment& experiment, const Plan& needs_most, MemoryNeed limit,
                        bool runs);

// The highest predicted peak of a rank, or what all of them hold together, in bytes: together, with
// what they keep in host memory, which is the same.
std::int64_t predicted_need(const Plan& plan, bool together);

}  // namespace mw
