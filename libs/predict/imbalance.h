// How evenly a prediction supposes that experts are chosen, and the entry of a plan that says
// otherwise.
#pragma once

#include <string>

#include "meshwright/engine/plan.h"

namespace mw {

// The rows that a rank's experts work on are known only in a run. A plan's programs suppose even
// shares, or the share of the fullest rank that a strategy's option `imbalance` gives
// (Draft::expect_imbalance). `rows_share` is a rank's rows in a run over the supposed rows
// (Ledger::rows_share).

// The plan's entry with the value of `imbalance` that would predict this many rows, rounded up to
// two decimals: "ep { 8, imbalance = 1.46 }". Empty where the plan already supposes as many rows
// (to half a per cent) or more, or where no strategy of the plan splits experts.
std::string entry_for_rows(const Plan& plan, double rows_share);

// What the plan supposes: "that experts are chosen evenly", or "an imbalance of 1.3 between
// experts' ranks".
std::string supposed_choices(const Plan& plan);

// supposed_choices() with the option that changes it. Empty where no strategy of the plan splits
// experts.
std::string supposed_rows(const Plan& plan);

// A note for a run whose fullest rank had more or fewer rows in some step than the predictions
// suppose; empty where it had as many.
std::string rows_note(const Plan& plan, double most_rows_share);

}  // namespace mw
