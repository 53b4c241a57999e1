// A file that one process at a time holds: what keeps two runs from one log, one folder of
// checkpoints or one cell of a sweep.
#pragma once

#include <filesystem>
#include <string>

namespace mw {

// The lock is the system's: it ends with the process, and with the processes that were given it,
// however they end. Where the file system has no locks (Lustre mounted with noflock, NFS without
// lockd), a symbolic link FILE.held stands for it, whose target names the process that holds it. A
// process of this machine that has ended without removing its link holds nothing.
class FileLock {
 public:
  FileLock() = default;  // holds nothing
  // Makes the file, and the name of the process is written in it. Where another process holds it
  // this does not, unless `wait`: then it waits. Throws std::system_error if the file cannot be
  // opened, or if the file system has no way to hold it.
  explicit FileLock(std::filesystem::path file, bool wait = false);
  ~FileLock() { let_go(); }
  FileLock(FileLock&& other) noexcept { *this = std::move(other); }
  FileLock& operator=(FileLock&& other) noexcept;

  bool held() const { return file_ >= 0 || !owner_.empty(); }
  // False where somebody has removed the file or its link since, or made it anew.
  bool still_held() const;
  // Where another process holds it: "process 71", or "process 71 on node-3", or "" if it has not
  // said yet.
  const std::string& holder() const { return holder_; }
  // Where another process holds it of which this machine cannot say whether it still runs: what has
  // to be removed if that process has ended. Else empty.
  const std::filesystem::path& unsure() const { return unsure_; }
  int descriptor() const { return file_; }  // for a process that is to hold it too; -1: none
  void let_go() noexcept;
  void remove() noexcept;  // lets go, and removes the file

 private:
  bool lock(bool wait);  // false: the file system has no locks
  void make_link(bool wait);
  std::filesystem::path link() const { return path_.string() + ".held"; }

  std::filesystem::path path_, unsure_;
  std::string holder_;
  int file_ = -1;
  std::string owner_;  // the target of the link that this has made; empty: none
};

}  // namespace mw
