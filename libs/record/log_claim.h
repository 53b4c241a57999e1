// Who may write a log: one run at a time, and over another's file only where the script says so.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/file_lock.h"

namespace mw {

// What tells a run's file from another's; `log` is as the script names it: a file, or a folder with
// "/" at its end.
struct LogOwner {
  std::string name, hash, log;
  // Where a run goes on from a checkpoint: the hash of the run that wrote it, whose log this run
  // may take over, and what the note says of it. Else empty.
  std::string continues = {}, continued = {};
  // What this start has in common with earlier ones by the same command, whose log it may replace.
  std::string started_by = {};
  // Where the checkpoint is after the run's last step: that many. Else 0.
  std::int64_t all_steps = 0;
};

// Holds a log from before a run's first step to its end, by a lock on a hidden file beside the log.
class LogClaim {
 public:
  LogClaim() = default;
  // Makes missing folders. Throws Error (options) with the key `log`, and leaves what is there as
  // it was: if a run that goes on holds the log (log.in-use); if a file is there that another
  // experiment wrote, and not `overwrite` (log.taken); if this process has written the log before
  // (log.twice), unless `overwrite`.
  LogClaim(const std::filesystem::path& file, const LogOwner& owner, bool overwrite);
  ~LogClaim() { let_go(); }
  LogClaim(LogClaim&& other) noexcept = default;
  LogClaim& operator=(LogClaim&&) = delete;
  LogClaim(const LogClaim&) = delete;
  LogClaim& operator=(const LogClaim&) = delete;

  // What people should know of the file that is replaced; empty: there is none.
  const std::string& note() const { return note_; }
  // There is nothing to write: the run has no step left to do, and the log is that of a run which
  // is done and has all steps. It stays as it is, with what was measured.
  bool stays() const { return stays_; }
  // The run is done. Until then the file that it replaces lies beside the log, as NAME.earlier.h5,
  // and stays there if the run does not come so far.
  void done();
  // Gives the log free now, in a process that ends without destroying this.
  void let_go() noexcept { lock_.remove(); }

 private:
  void lock();
  void put_aside(bool whole);

  std::filesystem::path path_, earlier_;
  std::string named_, note_;
  bool stays_ = false;
  FileLock lock_;
};

}  // namespace mw
