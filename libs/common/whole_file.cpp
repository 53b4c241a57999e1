// Reads a file into a string.
#include "common/whole_file.h"

#include <fstream>
#include <iterator>

namespace mw {

std::optional<std::string> whole_file(const std::filesystem::path& path) try {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), {}};
} catch (const std::ios_base::failure&) {  // a folder can be opened, and not be read
  return std::nullopt;
}

}  // namespace mw
