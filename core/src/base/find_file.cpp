// Looks for what a script names in the folders that it may mean.
#include "meshwright/engine/find_file.h"

#include <system_error>

namespace mw {

std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::vector<std::filesystem::path>& folders) {
  if (path.is_absolute()) return path;
  std::error_code ignored;  // what cannot be looked at is not there
  for (const std::filesystem::path& folder : folders)
    if (std::filesystem::exists(folder / path, ignored)) return folder / path;
  return path;
}

}  // namespace mw
