// Checks the predicted memory of an experiment against its limits before any rank starts, and
// searches for changes with which a plan fits.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/run_request.h"
#include "meshwright/engine/run.h"

namespace mw {

// Bytes of memory: of each rank, or of all ranks together where they are threads of one machine.
struct MemoryNeed {
  std::int64_t bytes = 0;
  bool together = false;
};

// Advice for a plan that does not fit. `text` is for people. `change` (as a script writes it),
// `need` and `request` describe the change that fits, and are empty where no change does.
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
// the hint names the lowest need. Where the steps of a run differ, `needs_most` is the plan of the
// step that needs most.
MemoryHint what_fits(const RunRequest& asked, const Plan& plan, const Plan& needs_most,
                     MemoryNeed limit, int most_ranks);
// The highest predicted peak of a rank, or what all of them hold together, in bytes: together, with
// what they keep in host memory, which is the same.
std::int64_t predicted_need(const Plan& plan, bool together);

// The highest predicted peak of a rank, in bytes.
std::int64_t predicted_peak(const Plan& plan);

// The text of what_fits() where the experiment's own memory limit does not suffice. `runs`: only
// plans are offered whose ranks can be threads of this machine.
std::string memory_hint(const RunRequest& asked, const RunSetup& setup, bool runs);

// Throws Error (plan) with the hint above if a rank is predicted to exceed the experiment's limit.
// Else returns the hint for an allocation that exceeds the limit in the run all the same.
Ledger::LimitHint check_memory_limit(const RunRequest& asked, const RunSetup& setup);

// Ranks that are threads share this machine's memory (predict/device.h), and ranks on accelerators
// share the memory of these. Each check throws Error (plan) where the ranks are predicted to need
// more than there is; where the experiment is forced it returns a note instead, which is empty if
// they fit.
std::string check_machine_memory(const RunRequest& asked, const RunSetup& setup,
                                 std::int64_t available);
// check_machine_memory() for `verify`: the ranks in float64, the one rank that they are compared
// with, and the tensors that are kept for the comparison.
std::string check_verify_memory(const RunRequest& asked, const RunSetup& setup,
                                std::int64_t available);

}  // namespace mw
