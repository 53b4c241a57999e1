// Checks that a run file can be written where a script wants it, and clears away hidden files
// that killed runs left beside it.
#include "record/run_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>
#include <vector>

#include "common/process.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/error.h"
#include "record/hdf5_file.h"

namespace mw {

namespace fs = std::filesystem;

std::string hidden_name(const fs::path& path) {
  return fmt::format(".{}.{}", path.filename().string(), ::getpid());
}

std::uint64_t inode_of(const fs::path& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

namespace {

bool process_is_there(int pid) {
  return ::kill(pid, 0) == 0 || errno != ESRCH;
}

// Calls `found` with each hidden copy of a run file at `path`, and with the number of the process
// that wrote it.
template <typename Found>
void each_hidden(const fs::path& path, const Found& found) {
  const std::string prefix = "." + path.filename().string() + ".";
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::directory_entry& entry = *at;
    const std::string name = entry.path().filename().string();
    if (name.size() <= prefix.size() || name.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string rest = name.substr(prefix.size());
    const std::string number = rest.substr(0, rest.find('.'));
    if (number.empty() || number.size() > 9 ||
        number.find_first_not_of("0123456789") != std::string::npos ||
        rest.find_first_not_of("0123456789abcdef", number.size() + 1) != std::string::npos)
      continue;
    found(entry.path(), std::stoi(number));
  }
}

}  // namespace

void remove_orphans(const fs::path& path) {
  std::vector<fs::path> orphans;
  each_hidden(path, [&](const fs::path& copy, int pid) {
    if (!process_is_there(pid)) orphans.push_back(copy);
  });
  for (const fs::path& orphan : orphans) remove_quietly(orphan);
}

std::string process_mark(int pid) {
  const auto start = process_start(pid);
  return start ? fmt::format("{} {}", pid, *start) : "";
}

bool writer_lives(const fs::path& path, const std::string& mark) {
  if (!mark.empty()) return process_mark(std::atoi(mark.c_str())) == mark;
  bool lives = false;
  each_hidden(path, [&](const fs::path&, int pid) { lives = lives || process_is_there(pid); });
  return lives;
}

void check_writable(const fs::path& given) {
  check_may_write(given, "log");
  const auto refuse = [&](const char* code, const std::string& why, const std::string& hint) {
    throw Error(Stage::options, code, "log",
                fmt::format("log: cannot write {}: {}", given.string(), why), hint);
  };
  std::error_code error;
  const fs::path path = behind_links(given);
  if (fs::is_symlink(path, error))
    refuse("log.link", "it is a link that leads to itself", "name a file");
  if (!path.has_filename() || fs::is_directory(path, error))
    refuse("log.folder", "it is a folder", "name a file in it, for example \"runs/run.h5\"");
  if (fs::exists(path, error)) {
    if (!fs::is_regular_file(path, error))
      refuse("log.special", "it is not a regular file", "name another file");
    if (fs::file_size(path, error) > 0 && !is_hdf5(path))
      refuse("log.foreign", "a file is there that is no run file",
             "remove it, or name another file");
  }
  fs::path folder = fs::absolute(path, error).lexically_normal().parent_path();
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error))
    refuse("log.folder", fmt::format("{} is no folder", folder.string()),
           "name a file in another folder");
  // Permission bits do not tell all (a read-only or virtual file system, a quota), so this makes a
  // file.
  std::string probe = (folder / ".meshwright-XXXXXX").string();
  const int file = ::mkostemp(probe.data(), O_CLOEXEC);
  if (file < 0) {
    refuse("file.write",
           fmt::format("folder {}: {}", folder.string(), std::generic_category().message(errno)),
           "name a file in a folder that you may write to");
  }
  ::close(file);
  ::unlink(probe.c_str());
}

int copy_into(int to, const fs::path& from) {
  const int source = ::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  int reason = source < 0 ? errno : 0;
  std::vector<char> block(1 << 20);
  while (reason == 0) {
    const ssize_t got = ::read(source, block.data(), block.size());
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 || !write_whole(to, block.data(), static_cast<std::size_t>(got))) reason = errno;
  }
  if (source >= 0) ::close(source);
  if (::close(to) != 0 && reason == 0) reason = errno;
  return reason;
}

}  // namespace mw
