// Decides who may write a log: one run at a time, and over another's file only where the script
// says so.
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
  // For a run that goes on: the hash of the run that wrote the checkpoint, whose log it may take
  // over, and what the note says of that log. Else empty.
  std::string continues = {}, continued = {};
  // A mark that all starts of a run by one command share. A log with the same mark may be replaced.
  std::string started_by = {};
  // The number of the run's steps, if the checkpoint is after the last of them. Else 0.
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

  // A note for the user on the file that is there; empty: there is none.
  const std::string& note() const { return note_; }
  // Whether there is nothing to write: the run has no step left to do, and the log is that of a
  // finished run with all steps. The log then stays as it is, with its measurements.
  bool stays() const { return stays_; }
  // Says that the run is done. Until then the file that it replaces lies beside the log, as
  // NAME.earlier.h5, and stays there if the run does not get so far.
  void done();
  // Releases the log now, in a process that ends without calling the destructor.
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
