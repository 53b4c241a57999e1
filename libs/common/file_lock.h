// A lock file that one process at a time holds: it keeps two runs from sharing a log, a folder of
// checkpoints or a cell of a sweep.
#pragma once

#include <filesystem>
#include <string>

namespace mw {

// The lock is the system's (flock): it ends with this process and with those that inherited the
// descriptor, however they end. Where the file system has no locks (Lustre mounted with noflock,
// NFS without lockd), a symbolic link FILE.held stands for the lock, and its target names the
// process that holds it. The link of a process of this machine that has ended holds nothing.
class FileLock {
 public:
  FileLock() = default;  // holds nothing
  // Creates and locks the file, and writes this process' number in it. Where another process holds
  // the lock, the new object holds nothing, or with `wait` it waits. Throws std::system_error if
  // the file cannot be opened, or if the file system has no way to lock it.
  explicit FileLock(std::filesystem::path file, bool wait = false);
  ~FileLock() { let_go(); }
  FileLock(FileLock&& other) noexcept { *this = std::move(other); }
  FileLock& operator=(FileLock&& other) noexcept;

  bool held() const { return file_ >= 0 || !owner_.empty(); }
  // False where somebody has removed or replaced the file or its link since it was locked.
  bool still_held() const;
  // The other process that holds the lock: "process 71", or "process 71 on node-3"; "" if that is
  // not known.
  const std::string& holder() const { return holder_; }
  // The link to remove by hand if its process has ended, where this machine cannot tell whether
  // that process still runs. Else empty.
  const std::filesystem::path& unsure() const { return unsure_; }
  // the locked file, for a child that is to hold the lock too; -1: none
  int descriptor() const { return file_; }
  void let_go() noexcept;
  void remove() noexcept;  // lets go, and removes the file

 private:
  bool lock(bool wait);  // false: the file system has no locks
  void make_link(bool wait);
  std::filesystem::path link() const { return path_.string() + ".held"; }

  std::filesystem::path path_, unsure_;
  std::string holder_;
  int file_ = -1;
  std::string owner_;  // target of the link that this object has made; empty: none
};

}  // namespace mw
