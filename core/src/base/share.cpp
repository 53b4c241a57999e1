// Finds the folder of what belongs to the program by where the program lies.
#include "base/share.h"

#include <system_error>

namespace mw {

std::filesystem::path share_folder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return program.parent_path().parent_path() / "share/meshwright";
}

}  // namespace mw
