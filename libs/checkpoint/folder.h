// The folder of a run's checkpoints: one folder each, of which each is whole or has another name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/file_lock.h"

namespace mw {

struct CheckpointEntry {
  std::int64_t step = 0;
  std::filesystem::path folder;
};

// "step-00000100".
std::string checkpoint_name(std::int64_t step);
// Those of a folder, by step. None where there is no such folder. A path that is a checkpoint
// itself is the only one.
std::vector<CheckpointEntry> checkpoints_in(const std::filesystem::path& path);

// The folder in which a checkpoint is written before it has its name. `mark`: of the run that holds
// the folder (CheckpointFolder::mark()), so that a process which an earlier start has left behind
// writes elsewhere.
std::filesystem::path staging_folder(const std::filesystem::path& path, std::int64_t step,
                                     const std::string& mark);

// Writes a file's bytes to the disk. Throws Error (run, checkpoint.write).
void write_to_disk(const std::filesystem::path& file, const std::string& text);
// Brings the names in a folder to the disk.
void sync_folder(const std::filesystem::path& folder);

// The folder as one run holds it, which alone writes there.
class CheckpointFolder {
 public:
  // Makes it, locks it and clears away what runs that were killed have left. Throws Error (options)
  // with the key checkpoint.path: it cannot be made or written to, or is a checkpoint itself
  // (checkpoint.folder); a run that goes on writes there (checkpoint.in-use).
  explicit CheckpointFolder(const std::filesystem::path& path);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Another one for each that holds the folder; all processes of a run stage files under it.
  const std::string& mark() const { return mark_; }
  // Gives the staged checkpoint, all of whose files are on the disk, its name. What has that name
  // goes only then. Throws Error (run, checkpoint.write), and as hold() does.
  void commit(std::int64_t step);
  // Makes sure that this run still holds the folder, and locks it again where somebody has removed
  // the lock's file or made the folder anew. Throws Error (options, checkpoint.in-use) if another
  // run holds it by now.
  void hold();
  // Removes checkpoints that are older than the newest `keep` up to `step`; 0: none.
  // Why one of those that go is still there; empty: none is.
  std::string keep_newest(std::int64_t keep, std::int64_t step) const;
  std::error_code remove(std::int64_t step) const;
  // Where this run no longer holds the folder, nothing is removed.
  void remove_staged(std::int64_t step) const;
  // What is left of earlier ones that were given up while the folder could not be reached, or that
  // processes of an earlier start have written.
  void remove_staged_before(std::int64_t step) const;

 private:
  void lock();
  void clear_leftovers() const;

  std::filesystem::path path_;
  const std::string mark_;
  FileLock lock_;
};

}  // namespace mw
