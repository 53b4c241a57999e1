// Locks files by the system's locks, and where there are none by a folder that only one process can
// put in its place.
#include "common/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "common/process.h"
#include "meshwright/engine/files.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds between_tries{50};

// A process as a file's name has it: PID.START.SPACE.NUMBER.HOST, where NUMBER counts the locks
// that it has made. SPACE tells the machine's boot and the namespace of process numbers; only where
// both are this process' own does a number say anything.
struct Owner {
  int process = 0;
  unsigned long long start = 0;
  std::string space, host;
};

std::string own_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  const std::string numbers = fs::read_symlink("/proc/self/ns/pid", error).string();
  std::string space;
  for (const char c : boot + numbers)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) space += c;
  return space.empty() ? "unknown" : space;
}

std::string own_name() {
  static std::atomic<int> number = 0;
  return fmt::format("{}.{}.{}.{}.{}", ::getpid(), process_start(::getpid()).value_or(0),
                     own_space(), ++number, host_name());
}

Owner owner_of(const std::string& name) {
  Owner owner;
  char dot = 0;
  std::istringstream text(name);
  text >> owner.process >> dot >> owner.start >> dot;
  std::string number;
  std::getline(text, owner.space, '.');
  std::getline(text, number, '.');
  std::getline(text, owner.host);
  return owner;
}

bool is_known(const Owner& owner) {
  return owner.process > 0 && owner.start > 0 && owner.space == own_space();
}

bool has_ended(const Owner& owner) {
  if (!is_known(owner)) return false;
  if (const auto start = process_start(owner.process)) return *start != owner.start;
  // A process of another user may not be shown. One that is shown without a start is over.
  std::error_code error;
  return fs::exists(fmt::format("/proc/{}/stat", owner.process), error) ||
         (::kill(owner.process, 0) != 0 && errno == ESRCH);
}

[[noreturn]] void throw_errno(int reason) {
  throw std::system_error(reason, std::generic_category());
}

// Removes those that have ended, and returns one that has not; empty: the folder is free.
std::string other_owner(const fs::path& folder) {
  std::error_code error;
  std::string other;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!has_ended(owner_of(name)) || ::unlink(at->path().c_str()) != 0) other = name;
  }
  if (other.empty())
    ::rmdir(folder.c_str());  // some file systems replace no folder, even an empty one
  return other;
}

}  // namespace

FileLock::FileLock(fs::path file, bool wait) : path_(std::move(file)) {
  if (!lock(wait)) make_owner(wait);
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  path_ = std::move(other.path_);
  unsure_ = std::move(other.unsure_);
  holder_ = std::move(other.holder_);
  file_ = std::exchange(other.file_, -1);
  owner_ = std::exchange(other.owner_, fs::path());
  process_ = other.process_;
  return *this;
}

// Until the file that was locked is the one that has the name: its holder may remove it.
bool FileLock::lock(bool wait) {
  while (true) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    // Another user's file can be locked as well.
    if (file_ < 0 && errno == EACCES)
      file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file_ < 0) throw_errno(errno);
    int reason = 0;
    do reason = ::flock(file_, LOCK_EX | (wait ? 0 : LOCK_NB)) == 0 ? 0 : errno;
    while (reason == EINTR);
    if (reason == 0 && still_held()) break;
    char text[32] = "";
    if (reason == EWOULDBLOCK && ::pread(file_, text, sizeof text - 1, 0) > 0)
      holder_ = fmt::format("process {}", text);
    ::close(std::exchange(file_, -1));
    if (reason == EWOULDBLOCK) return true;
    if (reason != 0) return false;
  }
  const std::string own = std::to_string(::getpid());
  if (::ftruncate(file_, 0) == 0) write_whole(file_, own.data(), own.size());
  return true;
}

// A folder that is prepared beside takes the name, which the system allows where there is none or
// an empty one: so of several that try, one has it, and its name is in it from the first moment.
void FileLock::make_owner(bool wait) {
  const fs::path folder = path_.string() + ".held";
  std::string prepared = folder.string() + ".XXXXXX";
  if (::mkdtemp(prepared.data()) == nullptr) throw_errno(errno);
  ::chmod(prepared.c_str(), 0755);
  const std::string name = own_name();
  const int made =
      ::open((fs::path(prepared) / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  int reason = made < 0 ? errno : 0;
  if (made >= 0) ::close(made);
  while (reason == 0) {
    if (::rename(prepared.c_str(), folder.c_str()) == 0) {
      owner_ = folder / name;
      process_ = ::getpid();
      return;
    }
    if (errno != ENOTEMPTY && errno != EEXIST) {
      reason = errno;
      break;
    }
    const std::string other = other_owner(folder);
    if (other.empty()) continue;
    if (!wait) {
      const Owner owner = owner_of(other);
      holder_ = fmt::format("process {} on {}", owner.process, owner.host);
      if (!is_known(owner)) unsure_ = folder;
      break;
    }
    std::this_thread::sleep_for(between_tries);
  }
  ::unlink((fs::path(prepared) / name).c_str());
  ::rmdir(prepared.c_str());
  if (reason != 0) throw_errno(reason);
}

bool FileLock::still_held() const {
  if (!owner_.empty()) return ::access(owner_.c_str(), F_OK) == 0;
  struct stat held {
  }, named{};
  return file_ >= 0 && ::fstat(file_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

void FileLock::let_go() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  if (!owner_.empty() && process_ == ::getpid()) {
    ::unlink(owner_.c_str());
    ::rmdir(owner_.parent_path().c_str());
  }
  owner_.clear();
}

void FileLock::remove() noexcept {
  if (held() && still_held()) ::unlink(path_.c_str());
  let_go();
}

}  // namespace mw
