// Limits a process to its files by the kernel's Landlock. Uses system calls directly: the C library
// has no functions for it, and its headers may be older than the kernel.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "launch/sandbox/sandbox.h"

namespace mw {
namespace {

namespace fs = std::filesystem;

// The numbers of linux/landlock.h.
constexpr long create_ruleset = 444, add_rule = 445, restrict_self = 446;
constexpr unsigned ask_version = 1;
constexpr int rule_path_beneath = 1;
constexpr std::uint64_t may_run = 1 << 0, may_write_file = 1 << 1, may_read_file = 1 << 2,
                        may_list = 1 << 3, may_change_folder = 0x1ff0,  // bits 4 to 12
    may_move = 1 << 13, may_truncate = 1 << 14, may_ioctl = 1 << 15;
constexpr std::uint64_t rights_of_files =
    may_run | may_write_file | may_read_file | may_truncate | may_ioctl;
constexpr std::uint64_t tcp = 3;     // bits for bind and connect
constexpr std::uint64_t scopes = 3;  // bits for abstract sockets and signals

struct RulesetAttributes {
  std::uint64_t files, network, scoped;
};
struct PathRule {
  std::uint64_t allowed;
  std::int32_t parent;
} __attribute__((packed));

[[noreturn]] void refuse(const char* what) {
  const int reason = errno;
  throw Error(
      Stage::environment, "sandbox.kernel", "",
      fmt::format("the kernel does not {}: {}", what, std::generic_category().message(reason)),
      "run the script without --sandbox only if you trust it");
}

class Ruleset {
 public:
  explicit Ruleset(int version) {
    handled_ = may_run | may_write_file | may_read_file | may_list | may_change_folder;
    if (version >= 2) handled_ |= may_move;
    if (version >= 3) handled_ |= may_truncate;
    if (version >= 5) handled_ |= may_ioctl;
    const RulesetAttributes attributes{handled_, version >= 4 ? tcp : 0, version >= 6 ? scopes : 0};
    // Older kernels know only the first fields.
    const std::size_t fields = version >= 6 ? 3 : version >= 4 ? 2 : 1;
    file_ =
        static_cast<int>(::syscall(create_ruleset, &attributes, fields * sizeof(std::uint64_t), 0));
    if (file_ < 0) refuse("make rules of Landlock");
  }
  ~Ruleset() { ::close(file_); }
  Ruleset(const Ruleset&) = delete;
  Ruleset& operator=(const Ruleset&) = delete;

  // Adds a rule for a path, unless there is no such file.
  void allow(const fs::path& path, std::uint64_t rights) {
    const int opened = ::open(path.c_str(), O_PATH | O_CLOEXEC);
    if (opened < 0) return;
    struct stat info {};
    if (::fstat(opened, &info) == 0 && !S_ISDIR(info.st_mode)) rights &= rights_of_files;
    const PathRule rule{rights & handled_, opened};
    const long failed =
        rule.allowed == 0 ? 0 : ::syscall(add_rule, file_, rule_path_beneath, &rule, 0);
    const int reason = errno;
    ::close(opened);
    errno = reason;
    if (failed != 0) refuse("take a rule of Landlock");
  }
  void enforce() const {
    if (::syscall(restrict_self, file_, 0) != 0) refuse("enforce Landlock");
  }

 private:
  std::uint64_t handled_ = 0;
  int file_ = -1;
};

}  // namespace

int landlock_version() {
  const long version = ::syscall(create_ruleset, nullptr, 0, ask_version);
  return version < 0 ? 0 : static_cast<int>(version);
}

void restrict_files(const FileAccess& reach) {
  Ruleset rules(landlock_version());
  for (const fs::path& path : reach.read) rules.allow(path, may_read_file | may_list);
  for (const fs::path& path : reach.run) rules.allow(path, may_read_file | may_run);
  // A device that is named for writing may be controlled by ioctl(); devices in a folder may not.
  for (const fs::path& path : reach.write)
    rules.allow(path, may_read_file | may_list | may_write_file | may_truncate | may_move |
                          may_change_folder | (fs::is_directory(path) ? 0 : may_ioctl));
  rules.enforce();
}

}  // namespace mw
