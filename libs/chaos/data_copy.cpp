// Copies the files from which a training takes its tokens, so that bits may flip in them: nobody's
// own files are changed.
#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "chaos/disturbed_run.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw::chaos {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t most_bytes = std::uintmax_t{256} << 20;

std::vector<fs::path> matches(const fs::path& pattern) {
  std::vector<fs::path> found;
  glob_t list{};
  if (::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &list) == 0)
    found.assign(list.gl_pathv, list.gl_pathv + list.gl_pathc);
  ::globfree(&list);
  return found;
}

// The files that a path of a script names. The data sources look in the same places: the working
// folder, the script's folder, the folder above it, and the texts that come with the program.
std::vector<fs::path> files_of(const std::string& given, const fs::path& script) {
  const fs::path beside = script.parent_path().empty() ? "." : script.parent_path();
  std::vector<fs::path> found;
  for (const fs::path& root : {fs::path("."), beside, beside / ".."}) {
    if (found.empty()) found = matches(given.starts_with('~') ? fs::path(given) : root / given);
  }
  if (found.empty()) found = matches(share_folder() / "text" / (given + ".txt"));
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::path& each : found) {
    if (fs::is_regular_file(each, error)) files.push_back(each);
    if (!fs::is_directory(each, error)) continue;
    const auto first = static_cast<std::ptrdiff_t>(files.size());
    for (fs::directory_iterator at(each, error), end; !error && at != end; at.increment(error)) {
      if (at->is_regular_file(error) && !at->path().filename().string().starts_with('.'))
        files.push_back(at->path());
    }
    std::sort(files.begin() + first, files.end());
  }
  return files;
}

// The other one of a file of tokens and its index.
fs::path partner_of(const fs::path& file) {
  fs::path other = file;
  return other.replace_extension(file.extension() == ".idx" ? ".bin" : ".idx");
}

}  // namespace

std::string copy_data(const Json& experiment, const std::string& script, const fs::path& folder) {
  const Json data = experiment.value("data", Json::object());
  if (!data.is_object() || !data.contains("path")) return "";
  const Json& path = data["path"];
  std::vector<fs::path> files;
  for (const Json& one : path.is_array() ? path : Json::array({path})) {
    if (!one.is_string()) return "";
    const std::vector<fs::path> more = files_of(one.get<std::string>(), script);
    if (more.empty()) return "";
    for (const fs::path& file : more) {
      const bool indexed = file.extension() == ".bin" &&
                           std::find(more.begin(), more.end(), partner_of(file)) != more.end();
      if (!indexed) files.push_back(file);
    }
  }
  std::uintmax_t bytes = 0;
  std::string names;
  std::error_code error;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const fs::path into = folder / fmt::format("{:04}", f + 1);
    fs::create_directories(into, error);
    for (const fs::path& each : {files[f], partner_of(files[f])}) {
      if (each != files[f] && !fs::exists(each, error)) continue;
      bytes += error ? 0 : fs::file_size(each, error);
      if (!error && bytes <= most_bytes) fs::copy_file(each, into / each.filename(), error);
      if (error || bytes > most_bytes) return "";
    }
    names += fmt::format("{}{}", f == 0 ? "" : ", ", quote((into / files[f].filename()).string()));
  }
  return fmt::format("data.path={{{}}}", names);
}

}  // namespace mw::chaos
