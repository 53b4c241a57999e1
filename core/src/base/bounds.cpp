// Judges paths by where they lead: links and ".." are followed before a path is compared.
#include "meshwright/engine/bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/error.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

std::optional<FileBounds>& bounds() {
  static std::optional<FileBounds> bounds;
  return bounds;
}

constexpr int most_links_in_place = 40;  // the kernel's limit of symbolic links in a path

// The place to which a path leads, through all links. Empty if the path leads nowhere (links in a
// circle), or has ".." behind a folder that does not exist, because that folder could be made later
// as a link. (fs::weakly_canonical removes such a ".." together with the folder, and then does not
// follow the links behind it.)
fs::path place_of(const fs::path& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  if (error) return {};
  std::vector<fs::path> left;  // the parts that are left, the next one last
  const auto go_through = [&](const fs::path& relative) {
    const std::vector<fs::path> parts(relative.begin(), relative.end());
    left.insert(left.end(), parts.rbegin(), parts.rend());
  };
  go_through(whole.relative_path());
  fs::path place = whole.root_path();
  bool there = true;
  for (int links = 0; !left.empty();) {
    const fs::path part = std::move(left.back());
    left.pop_back();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (!there) return {};
      place = place.parent_path();
      continue;
    }
    fs::path next = place / part;
    const fs::file_type type = fs::symlink_status(next, error).type();
    if (type == fs::file_type::symlink) {
      const fs::path target = fs::read_symlink(next, error);
      if (error || ++links > most_links_in_place) return {};
      if (target.is_absolute()) place = target.root_path();
      go_through(target.relative_path());
      continue;
    }
    there = there && fs::status_known(fs::file_status(type)) && type != fs::file_type::not_found;
    place = std::move(next);
  }
  return place;
}

bool is_below(const fs::path& place, const std::vector<fs::path>& folders) {
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    const auto [end, at] = std::mismatch(folder.begin(), folder.end(), place.begin(), place.end());
    return end == folder.end();
  });
}

void resolve(std::vector<fs::path>& folders) {
  for (fs::path& folder : folders) folder = place_of(folder);
  std::erase_if(folders, [](const fs::path& folder) { return folder.empty(); });
}

std::string list_of(const std::vector<fs::path>& folders) {
  std::string text;
  for (const fs::path& folder : folders) text += (text.empty() ? "" : ", ") + folder.string();
  return text;
}

}  // namespace

void bound_files(FileBounds given) {
  resolve(given.read);
  resolve(given.write);
  bounds() = std::move(given);
}

bool files_are_bounded() {
  return bounds().has_value();
}

bool may_write(const fs::path& path) {
  if (!bounds()) return true;
  const fs::path place = place_of(path);
  return !place.empty() && is_below(place, bounds()->write);
}

bool may_read(const fs::path& path) {
  if (!bounds()) return true;
  const fs::path place = place_of(path);
  return !place.empty() && (is_below(place, bounds()->read) || is_below(place, bounds()->write));
}

void check_may_read(const fs::path& path, const std::string& key) {
  if (may_read(path)) return;
  throw Error(Stage::options, "sandbox.read", key,
              fmt::format("{}: the sandbox does not let the script read there", path.string()),
              "put the file beside the script, or name its folder: --sandbox-read FOLDER");
}

void check_may_write(const fs::path& path, const std::string& key) {
  if (may_write(path)) return;
  const std::vector<fs::path>& folders = bounds()->write;
  throw Error(Stage::options, "sandbox.write", key,
              fmt::format("{}: the sandbox does not let the script write there", path.string()),
              folders.empty()
                  ? "name a folder for what it writes: --sandbox-write FOLDER"
                  : fmt::format("it may write below {}; or name its folder: --sandbox-write FOLDER",
                                list_of(folders)));
}

}  // namespace mw
