// Makes files under names that nobody can guess or have made before, for writing beside a file
// and renaming.
#include "meshwright/engine/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <random>

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr int most_links = 40;  // as the kernel has it

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
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    text += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

int replace_whole(const fs::path& path, std::string_view text) {
  const fs::path target = behind_links(path);
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

}  // namespace mw
