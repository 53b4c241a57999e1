// Writes checkpoints while steps go on: ranks hand over copies of what they keep, and a thread of
// the process writes them.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/index.h"

namespace mw {

// A tensor in a rank's file: a slice of a global tensor, or a tensor that is the rank's own.
struct StoredPiece {
  std::string name;
  at::Tensor data;                  // on the CPU, contiguous; must not change until it is written
  std::vector<std::int64_t> shape;  // shape of the whole tensor
  Slice slice;
  bool own = false;  // the rank's own tensor, no slice
};

// The outcome of writing one checkpoint.
struct CheckpointNews {
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // total size of all files
  double seconds = 0;      // time that the writing took, while steps went on
  std::string failed;      // why the checkpoint was not written; empty: it was
  std::string stays;       // why an old checkpoint could not be removed; empty: all were
};

// Each process of a run has one. All write to a folder that all processes see. The process of rank
// 0 waits for the files of all ranks and completes the checkpoint.
class CheckpointWriter {
 public:
  struct Setup {
    std::filesystem::path path;
    std::string mark;       // CheckpointFolder::mark, needed where folder is null
    std::vector<int> here;  // ranks of this process
    int ranks = 1;          // number of ranks in all processes
    std::shared_ptr<CheckpointFolder> folder;  // null but in the process of rank 0
    std::int64_t keep = 0;                     // number of newest checkpoints kept; 0: all
    std::vector<std::int64_t> stale;           // steps of checkpoints that go once one is complete
    std::chrono::duration<double> patience{300};  // longest wait for other processes' files
  };
  explicit CheckpointWriter(Setup setup);
  // Completes a checkpoint that all ranks have handed over, and drops any other.
  ~CheckpointWriter() { stop(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits until no checkpoint of another step is under way.
  void wait_for_room(std::int64_t step);
  // Each rank's thread calls it once for each checkpoint, after wait_for_room(). `facts`: from rank
  // 0, all of the index but files and tensors.
  void hand_over(std::int64_t step, int rank, std::vector<StoredPiece> pieces,
                 std::optional<CheckpointIndex> facts);
  // Waits for the checkpoint that is being written.
  void finish();
  // Ends as the destructor does. Nothing may be handed over afterwards.
  void stop();
  // What has come of checkpoints since the last call.
  std::vector<CheckpointNews> news();

 private:
  // A rank's file that is written, and what the index has to say about it.
  struct Written {
    int rank = 0;
    StoredFile file;
    std::vector<StoredPiece> pieces;  // without data
    std::vector<std::string> dtypes;
    std::string failed;
  };
  struct Job {
    int rank = 0;
    std::vector<StoredPiece> pieces;
  };

  void run();
  void write_one(const Job& job);
  void complete();
  bool await_others(std::vector<Written>& all);
  CheckpointIndex index_of(const std::vector<Written>& all) const;
  static std::string part_text(const Written& written);
  static Written read_part(int rank, const std::string& text);

  Setup setup_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t step_ = -1;  // step of the checkpoint that is being written; -1: none
  std::vector<Job> jobs_;   // handed over and not written yet
  std::vector<Written> written_;
  std::size_t handed_over_ = 0;
  std::optional<CheckpointIndex> facts_;
  double began_ = 0;  // seconds_now()
  std::vector<CheckpointNews> news_;
  bool ending_ = false;
  std::jthread thread_;
};

}  // namespace mw
