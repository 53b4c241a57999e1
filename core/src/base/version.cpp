#include "base/version.h"

#include <fmt/format.h>
#include <torch/version.h>

namespace mw {

std::string version_line() {
  return fmt::format("meshwright {} (torch {})", MESHWRIGHT_VERSION, TORCH_VERSION);
}

}  // namespace mw
