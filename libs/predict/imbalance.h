// How evenly a prediction supposes that experts are chosen, and the entry of a plan that says
// otherwise.
#pragma once

#include <string>

#include "meshwright/engine/plan.h"

namespace mw {

// The rows that a rank's experts work on are known only in a run. A plan's programs suppose them:
// even shares, or the fullest rank's share that a strategy's option `imbalance` says
// (Draft::expect_imbalance). `rows_share`: of a rank in a run, its rows over those supposed
// (Ledger::rows_share).

// That entry with the option's value for it, rounded up to two decimals: "ep { 8, imbalance = 1.46
// }". Empty where the plan supposes as many rows, to half a per cent, or more, or no strategy of
// it splits experts.
std::string entry_for_rows(const Plan& plan, double rows_share);

// "that experts are chosen evenly", or "an imbalance of 1.3 between experts' ranks".
std::string supposed_choices(const Plan& plan);

// The same of a plan, with what would say otherwise; empty: no strategy of it splits experts.
std::string supposed_rows(const Plan& plan);

// What is said beside figures of a run and predicted ones; empty: the fullest rank's rows in any
// step are as many as supposed.
std::string rows_note(const Plan& plan, double most_rows_share);

}  // namespace mw
