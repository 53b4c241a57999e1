// The version of this build, as one line for people.
#pragma once

#include <string>

namespace mw {

/// "meshwright 0.1.0 (torch 2.11.0)".
std::string version_line();

}  // namespace mw
