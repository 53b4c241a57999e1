// A source of data that another one takes its samples from.
#pragma once

#include <memory>
#include <string>

#include "meshwright/data.h"

namespace mw {

// Makes the source that a script gives at `key` of a source's options. Throws Error (options).
std::shared_ptr<const TokenSource> inner_source(const Values& values, const Json& given,
                                                const std::string& key, const DataContext& context);

}  // namespace mw
