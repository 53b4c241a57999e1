// Copies the files from which a training takes its tokens, so that bits may flip in them: nobody's
// own files are changed.
#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "chaos/disturbed_run.h"
#include "meshwright/engine/text.h"

namespace mw::chaos {

bool copy_data(const std::vector<SourceFile>& files, const std::filesystem::path& folder,
               Start& start) {
  namespace fs = std::filesystem;
  constexpr std::uintmax_t most_bytes = std::uintmax_t{256} << 20;
  std::uintmax_t bytes = 0;
  std::vector<fs::path> named;
  std::error_code error;
  int folders = 0;
  fs::path into;  // of its own for each file, as their names may be equal
  for (const SourceFile& file : files) {
    if (!file.implied) into = folder / fmt::format("{:04}", ++folders);
    fs::create_directories(into, error);
    bytes += error ? 0 : fs::file_size(file.path, error);
    if (error || bytes > most_bytes) return false;
    const fs::path copy = into / file.path.filename();
    fs::copy_file(file.path, copy, error);
    if (error) return false;
    if (!file.implied) named.push_back(copy);
  }
  if (named.empty()) return false;
  std::string names;
  for (const fs::path& copy : named) names += (names.empty() ? "" : ", ") + quote(copy.string());
  start.settings.push_back(fmt::format("data.path={{{}}}", names));
  start.data = std::move(named);
  return true;
}

}  // namespace mw::chaos
