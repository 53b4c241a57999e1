// Optimizers and data sources as a run calls them: what they throw in a rank names the plugin, and
// what it was doing.
#pragma once

#include <memory>

#include "meshwright/data.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/optimizer.h"

namespace mw {

// The same, each call with the speaker's name on what it throws; null stays null.
std::shared_ptr<const Optimizer> guarded(std::shared_ptr<const Optimizer> optimizer,
                                         const Speaker& speaker);
// An observer that sets StepEnd::last though it does not decide(), or gives a number a name that is
// there already, fails the run; none takes back that the run ends.
std::shared_ptr<RunObserver> guarded(std::shared_ptr<RunObserver> observer, const Speaker& speaker);
std::shared_ptr<const TokenSource> guarded(std::shared_ptr<const TokenSource> data,
                                           const Speaker& speaker);

}  // namespace mw
