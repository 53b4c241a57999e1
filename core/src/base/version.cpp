// The version line: Meshwright's own version, the compiler, and the torch that was built with.
#include "meshwright/engine/version.h"

#include <fmt/format.h>
#include <torch/version.h>

namespace mw {

std::string version_line() {
  return fmt::format("meshwright {} (torch {})", MESHWRIGHT_VERSION, TORCH_VERSION);
}

}  // namespace mw
