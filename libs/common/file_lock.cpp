// Locks files by the system's locks, and where there are none by a symbolic link, which only one
// process can make, and whose target names that process.
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

#include "common/files.h"
#include "common/process.h"
#include "meshwright/engine/files.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds between_tries{50};

// The process that a link's target names, as PID.START.SPACE.NUMBER.HOST. NUMBER tells the links of
// one process apart. SPACE names the boot of the machine and the namespace of process numbers: PID
// and START say something only to processes of the same SPACE.
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
  // Another user's process may be hidden. One that is shown without a start has ended.
  std::error_code error;
  return fs::exists(fmt::format("/proc/{}/stat", owner.process), error) ||
         (::kill(owner.process, 0) != 0 && errno == ESRCH);
}

[[noreturn]] void throw_errno(int reason) {
  throw std::system_error(reason, std::generic_category());
}

// The target of a symbolic link; empty if `link` is none.
std::string target_of(const fs::path& link) {
  std::error_code error;
  return fs::read_symlink(link, error).string();
}

// A living process' symbolic link that bars this one from the lock; empty: none.
struct Obstacle {
  fs::path link;
  std::string target;
};

// Makes the link, or returns the link of a living process that stands in the way. Links of
// processes that have ended are removed by one process at a time, which holds a second link
// meanwhile: otherwise a late process could remove the link that a faster one has just made.
Obstacle take(const fs::path& link, const std::string& own) {
  while (::symlink(own.c_str(), link.c_str()) != 0) {
    if (errno != EEXIST) throw_errno(errno);
    std::error_code error;
    const std::string other = target_of(link);
    if (other.empty() && fs::symlink_status(link, error).type() == fs::file_type::not_found)
      continue;
    const fs::path removing = link.string() + ".removing";
    if (!has_ended(owner_of(other))) return {link, other};
    if (const Obstacle found = take(removing, own); !found.link.empty()) return found;
    if (target_of(link) == other) ::unlink(link.c_str());
    ::unlink(removing.c_str());
  }
  return {};
}

}  // namespace

FileLock::FileLock(fs::path file, bool wait) : path_(std::move(file)) {
  if (!lock(wait)) make_link(wait);
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this == &other) return *this;
  let_go();
  path_ = std::move(other.path_);
  unsure_ = std::move(other.unsure_);
  holder_ = std::move(other.holder_);
  file_ = std::exchange(other.file_, -1);
  owner_ = std::exchange(other.owner_, std::string());
  return *this;
}

// Repeats until the locked file is the one at the path: its holder may remove it meanwhile.
bool FileLock::lock(bool wait) {
  while (true) {
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    // Another user's file that may only be read can be locked as well.
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

void FileLock::make_link(bool wait) {
  const std::string own = own_name();
  Obstacle found = take(link(), own);
  for (; wait && !found.link.empty(); found = take(link(), own))
    std::this_thread::sleep_for(between_tries);
  if (found.link.empty()) {
    owner_ = own;
    return;
  }
  const Owner owner = owner_of(found.target);
  if (owner.process > 0) holder_ = fmt::format("process {} on {}", owner.process, owner.host);
  if (!is_known(owner)) unsure_ = found.link;
}

bool FileLock::still_held() const {
  if (!owner_.empty()) return target_of(link()) == owner_;
  return file_ >= 0 && is_named(file_, path_);
}

void FileLock::let_go() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
  // false in a forked copy of the owner
  const bool own = !owner_.empty() && owner_of(owner_).process == ::getpid();
  if (own && still_held()) ::unlink(link().c_str());
  owner_.clear();
}

void FileLock::remove() noexcept {
  if (held() && still_held()) ::unlink(path_.c_str());
  let_go();
}

}  // namespace mw
