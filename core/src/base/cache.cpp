#include "base/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace mw {

std::filesystem::path cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = xdg != nullptr && *xdg != '\0' ? std::filesystem::path(xdg)
                                       : home != nullptr
                                           ? std::filesystem::path(home) / ".cache"
                                           : std::filesystem::temp_directory_path();
  return folder / "meshwright";
}

Json read_cache(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return Json::object();
  Json json = Json::parse(stream, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

// Written beside and renamed.
void write_cache(const std::filesystem::path& file, const Json& json) {
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  std::filesystem::path beside = file;
  beside += fmt::format(".{}", getpid());
  std::ofstream stream(beside);
  stream << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
  stream.close();
  if (stream) {
    std::filesystem::rename(beside, file, ignored);
  }
  if (!stream || ignored) std::filesystem::remove(beside, ignored);
}

}  // namespace mw
