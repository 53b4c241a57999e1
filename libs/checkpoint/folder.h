// The folder of a run's checkpoints. Each checkpoint is a folder in it, and gets its name only when
// it is complete.
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
// The checkpoints in a folder, ordered by step; none where there is no such folder. For a path that
// is a checkpoint itself, just that one.
std::vector<CheckpointEntry> checkpoints_in(const std::filesystem::path& path);

// The folder in which a checkpoint is written before it gets its name. `mark`:
// CheckpointFolder::mark of the run that holds the folder, so that a process left over from an
// earlier start writes elsewhere.
std::filesystem::path staging_folder(const std::filesystem::path& path, std::int64_t step,
                                     const std::string& mark);

// Writes a whole file, and waits until its bytes are on the disk. Throws Error (run,
// checkpoint.write).
void write_to_disk(const std::filesystem::path& file, const std::string& text);
// Waits until the names in a folder are on the disk.
void sync_folder(const std::filesystem::path& folder);

// A folder of checkpoints that one run holds locked, so that no other run writes there.
class CheckpointFolder {
 public:
  // Creates the folder, locks it and removes what killed runs have left in it. Throws Error
  // (options) with the key checkpoint.path: the folder cannot be created or written to, or is a
  // checkpoint itself (checkpoint.folder), or another run holds it (checkpoint.in-use).
  explicit CheckpointFolder(const std::filesystem::path& path);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // A random text, new each time a run holds the folder. All processes of the run stage files under
  // it.
  const std::string& mark() const { return mark_; }
  // Gives the staged checkpoint its name. All its files must be on the disk. Removes an earlier
  // checkpoint of that name only afterwards. Throws Error (run, checkpoint.write), and as hold()
  // does.
  void commit(std::int64_t step);
  // Makes sure that this run still holds the folder, and locks it again where somebody has removed
  // the lock's file or made the folder anew. Throws Error (options, checkpoint.in-use) if another
  // run holds it by now.
  void hold();
  // Removes the checkpoints up to `step` but for the newest `keep`; 0: removes none. Returns why
  // one of them could not be removed; empty: all were.
  std::string keep_newest(std::int64_t keep, std::int64_t step) const;
  std::error_code remove(std::int64_t step) const;
  // Removes the staged checkpoint of a step, unless this run no longer holds the folder.
  void remove_staged(std::int64_t step) const;
  // Removes staged checkpoints of earlier steps: given up while the folder could not be reached, or
  // written by processes of an earlier start.
  void remove_staged_before(std::int64_t step) const;

 private:
  void lock();
  void clear_leftovers() const;

  std::filesystem::path path_;
  const std::string mark_;
  FileLock lock_;
};

}  // namespace mw
