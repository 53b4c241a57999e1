// Writes files under unguessable names and renames them into place; finds the cache folder, and the
// files that scripts name.
#include "meshwright/engine/files.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <system_error>

#include "meshwright/engine/bounds.h"
#include "meshwright/error.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr int most_links = 40;  // the kernel's limit of symbolic links in a path
constexpr decltype(statfs::f_type) unnamed_pipes = 0x50495045;  // PIPEFS_MAGIC of the kernel

std::uint64_t random_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number)) return number;
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device();
}

}  // namespace

int create_unguessable(const fs::path& folder, const std::string& name, fs::path& path) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    path = folder / fmt::format("{}.{:016x}", name, random_number());
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

bool write_whole(int file, const char* text, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file, text, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // another user of the file has made it non-blocking
      pollfd room{file, POLLOUT, 0};
      ::poll(&room, 1, -1);
      continue;
    }
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    text += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

std::string irregular(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return "";
  if (S_ISFIFO(info.st_mode)) {
    // Opening an unnamed pipe again never blocks.
    struct statfs system {};
    const bool unnamed = ::statfs(path.c_str(), &system) == 0 && system.f_type == unnamed_pipes;
    return unnamed ? "" : "a named pipe";
  }
  if (S_ISSOCK(info.st_mode)) return "a socket";
  return S_ISDIR(info.st_mode) ? "a folder" : "a device";
}

void check_regular(const fs::path& path, const std::string& key) {
  const std::string kind = irregular(path);
  if (kind.empty()) return;
  throw Error(
      Stage::options, "file.read", key,
      fmt::format("{} is {}, and no file that could be read to its end", path.string(), kind),
      "name a regular file");
}

int replace_whole(const fs::path& path, std::string_view text) {
  check_may_write(path);
  const fs::path target = behind_links(path);
  // Opens `path`, not `target`, because the link of an unnamed pipe such as /dev/fd/63 has no valid
  // target.
  if (struct stat info{}; ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const int special = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (special < 0) return errno;
    ::fcntl(special, F_SETFL, 0);
    const int failed = write_whole(special, text.data(), text.size()) ? 0 : errno;
    return ::close(special) != 0 && failed == 0 ? errno : failed;
  }
  fs::path aside;
  const int file =
      create_unguessable(target.has_parent_path() ? target.parent_path() : fs::path("."),
                         "." + target.filename().string(), aside);
  if (file < 0) return errno;
  int reason = write_whole(file, text.data(), text.size()) && ::fsync(file) == 0 ? 0 : errno;
  if (::close(file) != 0 && reason == 0) reason = errno;
  if (reason == 0 && ::rename(aside.c_str(), target.c_str()) != 0) reason = errno;
  if (reason != 0) ::unlink(aside.c_str());
  return reason;
}

fs::path behind_links(const fs::path& path) {
  fs::path at = path;
  std::error_code error;
  for (int links = 0; links < most_links && fs::is_symlink(at, error); ++links) {
    const fs::path target = fs::read_symlink(at, error);
    if (error) return path;
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
  return at;
}

std::filesystem::path cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  // Relative paths are ignored, as the XDG Base Directory Specification says.
  if (xdg != nullptr && *xdg == '/') return std::filesystem::path(xdg) / "meshwright";
  if (home == nullptr || *home != '/') {
    const struct passwd* user = ::getpwuid(::geteuid());
    home = user != nullptr ? user->pw_dir : nullptr;
  }
  if (home != nullptr && *home == '/') return std::filesystem::path(home) / ".cache/meshwright";
  std::filesystem::path own = fs::temp_directory_path() / fmt::format("meshwright-{}", ::geteuid());
  struct stat info {};
  const bool taken =
      ::lstat(own.c_str(), &info) == 0 && (info.st_uid != ::geteuid() || !S_ISDIR(info.st_mode));
  // If the folder belongs to another user, this user has no cache: nothing can be read or written
  // below a device.
  return taken ? fs::path("/dev/null/meshwright") : own;
}

Cache read_cache(const std::filesystem::path& file) {
  std::ifstream stream;
  if (irregular(file).empty()) stream.open(file);
  if (!stream.is_open()) return Cache::object();
  Cache cache = Cache::parse(stream, nullptr, /*allow_exceptions=*/false);
  return cache.is_object() ? cache : Cache::object();
}

// Writes a file beside the cache and renames it, so that a reader never sees half a file.
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

std::filesystem::path find_file(const std::filesystem::path& path,
                                const std::vector<std::filesystem::path>& folders) {
  if (path.is_absolute()) {
    check_may_read(path);
    return path;
  }
  std::error_code ignored;  // a file that cannot be examined counts as missing
  for (const std::filesystem::path& folder : folders)
    if (may_read(folder / path) && std::filesystem::exists(folder / path, ignored))
      return folder / path;
  if (may_read(path)) return path;
  // A path that leads out of all readable folders is refused, whether it exists or not. A missing
  // file that could be in one of the folders is expected there, not in the working directory.
  const auto readable =
      std::find_if(folders.begin(), folders.end(),
                   [&](const std::filesystem::path& folder) { return may_read(folder / path); });
  if (readable == folders.end()) check_may_read(path);
  return readable == folders.end() ? path : *readable / path;
}

std::filesystem::path program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path share_folder() {
  const auto beside = [](const std::filesystem::path& file) {
    return file.parent_path().parent_path() / "share/meshwright";
  };
  const std::filesystem::path own = beside(program_path());
  std::error_code error;
  Dl_info library;
  // A program that only links the library stands elsewhere.
  if (std::filesystem::exists(own, error) || dladdr(&__func__, &library) == 0) return own;
  return beside(library.dli_fname);
}

}  // namespace mw
