// Reads and writes small JSON files in the user's cache folder, so that a machine is measured
// once and not in each process.
#include "meshwright/engine/cache.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "meshwright/engine/new_file.h"

namespace mw {

std::filesystem::path cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = xdg != nullptr && *xdg != '\0' ? std::filesystem::path(xdg)
                                       : home != nullptr ? std::filesystem::path(home) / ".cache"
                                                         : std::filesystem::temp_directory_path();
  return folder / "meshwright";
}

Cache read_cache(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) return Cache::object();
  Cache cache = Cache::parse(stream, nullptr, /*allow_exceptions=*/false);
  return cache.is_object() ? cache : Cache::object();
}

// Written beside and renamed, so that a reader never sees half a file.
void write_cache(const std::filesystem::path& file, const Cache& cache) {
  std::error_code ignored;
  std::filesystem::create_directories(file.parent_path(), ignored);
  std::filesystem::path beside;
  const int out = create_unguessable(file.parent_path(), file.filename().string(), beside);
  if (out < 0) return;
  const std::string text = cache.dump(2, ' ', false, Cache::error_handler_t::replace) + "\n";
  const bool whole = write_whole(out, text.data(), text.size());
  const bool good = ::close(out) == 0 && whole;
  if (good) std::filesystem::rename(beside, file, ignored);
  if (!good || ignored) std::filesystem::remove(beside, ignored);
}

}  // namespace mw
