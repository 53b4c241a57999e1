// Finds the folder of what belongs to the program by where the program lies.
#include "meshwright/engine/share.h"

#include <system_error>

namespace mw {

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path share_folder() {
  return program_path().parent_path().parent_path() / "share/meshwright";
}

}  // namespace mw
