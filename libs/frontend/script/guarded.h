// Wraps optimizers, data sources and observers for a run: what they throw in a rank names the
// plugin, and what it was doing.
#pragma once

#include <memory>

#include "meshwright/data.h"
#include "meshwright/engine/plugin_call.h"
#include "meshwright/optimizer.h"

namespace mw {

// Each returns what it is given, wrapped so that errors of its calls name the plugin (`speaker`).
// Null stays null.
std::shared_ptr<const Optimizer> guarded(std::shared_ptr<const Optimizer> optimizer,
                                         const PluginPlace& speaker);
// A wrapped observer fails the run if it sets StepEnd::last though it does not decide(), or changes
// numbers of other observers. It cannot take back that the run ends. Each of its calls on a rank is
// to return within `timeout` seconds.
std::shared_ptr<RunObserver> guarded(std::shared_ptr<RunObserver> observer,
                                     const PluginPlace& speaker, double timeout);
// A wrapped source is an InputSource, which lacks everything if `data` is none.
std::shared_ptr<const TokenSource> guarded(std::shared_ptr<const TokenSource> data,
                                           const PluginPlace& speaker);

}  // namespace mw
