// What an experiment needs of memory against what it may have, before any rank starts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/run_request.h"
#include "meshwright/engine/run.h"

namespace mw {

// Bytes of memory, of each rank or of all ranks together, which are threads of one machine then.
struct MemoryNeed {
  std::int64_t bytes = 0;
  bool together = false;
};

// What a plan could do to hold less. `text` says it to people; `change`, `need` and `request` are
// of the change that fits, as a script has it, and are empty where none does.
struct MemoryHint {
  std::string text, change = {};
  std::int64_t need = 0;
  std::optional<PlanRequest> request = {};
};

// Finds the first change of the plan whose predicted need is within the limit and below the plan's
// own. The hint has the change as a script writes it ("plan = { zero { 4, stage = 1 } }, microbatch
// = 2") and its need; every change was planned. Changes are tried in this order: lighter variants
// of strategies (predict/lighter.h); smaller microbatches; recompute "selective", "full"; two and
// three of these together; where nothing splits the data, an axis that does, of 2, 4, 8, … ways,
// with microbatches of 1 and with recompute; drastic variants, also with these. If no change fits,
// the hint names the lowest need. Of runs whose steps differ, `needs_most` is the plan that does.
MemoryHint what_fits(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                     MemoryNeed limit, int most_ranks);
// Its text; `runs`: of no more ranks than can be threads here.
std::string memory_hint(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                        MemoryNeed limit, bool runs);

// Makes the request's plan, as make_plan does, where no machine is named. Where a pipeline balances
// its stages itself and the request asks for no layers, layouts near the strategy's own are planned
// too: of those that keep to `memory` (bytes a rank; 0: there is no limit) the one whose busiest
// stage has least to do by declared costs, and of equal ones that with the lowest peak; where none
// keeps to it, the one with the lowest peak. A note says what was chosen.
std::shared_ptr<const Plan> make_plan_within(const PlanRequest& request, std::int64_t memory,
                                             Problems& problems);

// The highest predicted peak of a rank, or what all of them hold together, in bytes: together, with
// what they keep in host memory, which is the same.
std::int64_t predicted_need(const Plan& plan, bool together);

// The highest predicted peak of a rank, in bytes.
std::int64_t predicted_peak(const Plan& plan);

// What to do where the experiment's own limit does not suffice.
std::string memory_hint(const RunRequest& asked, const RunSetup& setup, bool runs);

// Throws Error (plan) with that hint if a rank is predicted above the experiment's limit; else
// returns a hint for an allocation that goes over it all the same.
Ledger::LimitHint check_memory_limit(const RunRequest& asked, const RunSetup& setup);

// Ranks that are threads share this machine's memory (predict/device.h), and ranks on accelerators
// share the memory of these. Each check throws Error (plan) where the ranks are predicted to need
// more than there is; where the experiment is forced it returns a note instead, which is empty if
// they fit.
std::string check_machine_memory(const RunRequest& asked, const RunSetup& setup,
                                 std::int64_t available);
// The same in float64, with the one rank that it is compared with, and what is kept of that.
std::string check_verify_memory(const RunRequest& asked, const RunSetup& setup,
                                std::int64_t available);

}  // namespace mw
