// The checks of `meshwright plugins test` that call one thing by itself, beside any experiment.
#pragma once

#include "app/kit_report.h"
#include "meshwright/optimizer.h"
#include "script/experiment.h"

namespace mw {

// The optimizer's update, on tensors of its own: it allocates nothing of their size (but what a
// matrix op declares), the same call gives the same bits again, whatever was called in between, and
// an elementwise op does not look across elements.
void check_updates(const Optimizer& optimizer, KitReport& report);

// The experiment's tokens and rates are functions of their number alone: asked for twice, and in
// another order, they are the same.
void check_data(const TokenSource& data, std::int64_t sequence, KitReport& report);
void check_rate(const LrSchedule& schedule, std::int64_t steps, KitReport& report);

}  // namespace mw
