// Writes checkpoints beside the steps: ranks hand over copies of what they keep, a thread of the
// process writes them.
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

// What lies in a rank's file: a slice of a tensor, or what is the rank's own.
struct StoredPiece {
  std::string name;
  at::Tensor data;                  // on the CPU, contiguous; stays as it is until it is written
  std::vector<std::int64_t> shape;  // of the whole tensor
  Slice slice;
  bool own = false;  // not a slice: `data` as it is
};

struct CheckpointNews {
  std::int64_t step = 0;
  std::int64_t bytes = 0;  // of all files
  double seconds = 0;      // that the writing took, beside the steps
  std::string failed;      // why it is not there; empty: it is
  std::string stays;       // why one that should go is still there; empty: none is
};

// One for each process of a run; all write to a folder that all see. The process of rank 0 waits
// for the files of all ranks and completes the checkpoint.
class CheckpointWriter {
 public:
  struct Setup {
    std::filesystem::path path;
    std::string mark;                             // that of the folder, where that is null
    std::vector<int> here;                        // ranks of this process
    int ranks = 1;                                // of all
    std::shared_ptr<CheckpointFolder> folder;     // of the process of rank 0; else null
    std::int64_t keep = 0;                        // 0: all
    std::vector<std::int64_t> stale;              // checkpoints that go once one is complete
    std::chrono::duration<double> patience{300};  // for other processes' files
  };
  explicit CheckpointWriter(Setup setup);
  // Ends what is under way if all ranks have handed over; else it is dropped.
  ~CheckpointWriter() { stop(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits until no checkpoint of another step is under way.
  void wait_for_room(std::int64_t step);
  // From each rank's thread, once for each checkpoint, after wait_for_room(). `facts`: of rank 0
  // all of the index but files and tensors.
  void hand_over(std::int64_t step, int rank, std::vector<StoredPiece> pieces,
                 std::optional<CheckpointIndex> facts);
  // Waits for what is under way.
  void finish();
  // As the destructor does; nothing is handed over afterwards.
  void stop();
  // What has come of checkpoints since the last call.
  std::vector<CheckpointNews> news();

 private:
  // A file of a rank that is written, and what the index says of it.
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
  std::int64_t step_ = -1;  // under way; -1: none
  std::vector<Job> jobs_;   // not written yet
  std::vector<Written> written_;
  std::size_t handed_over_ = 0;
  std::optional<CheckpointIndex> facts_;
  std::chrono::steady_clock::time_point began_;
  std::vector<CheckpointNews> news_;
  bool ending_ = false;
  std::jthread thread_;
};

}  // namespace mw
