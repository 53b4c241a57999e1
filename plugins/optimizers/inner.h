// The optimizers that an optimizer is made of.
#pragma once

#include <memory>
#include <string>

#include "meshwright/optimizer.h"

namespace mw {

// Makes the optimizer that a script gives at `key` of an optimizer's options: mw.adamw { … }.
// Throws Error (options); its problems have keys that begin with `key`.
std::shared_ptr<const Optimizer> inner_optimizer(const Values& values, const Json& given,
                                                 const std::string& key);

}  // namespace mw
