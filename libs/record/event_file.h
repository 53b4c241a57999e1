// Writes what a run measures as event files of TensorBoard, while the run goes on.
//
// An event file is a sequence of records, each a protobuf message `Event` between its length and
// two checksums (TFRecord). It only grows, and whoever reads it passes over a last record that is
// not whole. Files of one folder are one run to TensorBoard, in the order of their names: a run
// that goes on from a checkpoint adds one, which begins by telling readers to forget the steps from
// its first one on. A file's name ends in the hash of the experiment that wrote it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mw {

// The run whose events a folder gets.
struct EventOwner {
  std::string hash;  // hash of the experiment
  // hash of the run that it goes on from (record/log_claim.h), or empty
  std::string continues = {};
  std::int64_t first_step = 0;  // first step that this run computes
  bool overwrite = false;       // events of other experiments may be removed
};

class EventFile {
 public:
  // Makes the folder and a new file in it. Throws Error (options, log.taken) where events of
  // another experiment lie there, Error (options, sandbox.write) where a sandbox does not let it
  // write, and Error (run, file.write) where nothing can be written; the key is "tensorboard".
  EventFile(const std::filesystem::path& folder, const EventOwner& owner);
  ~EventFile();  // writes what is still buffered, if it can
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Buffers the numbers of one step by their tags; TensorBoard keeps them as 32-bit floats.
  // add_text() only buffers, too.
  void add(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  void add_text(std::int64_t step, const std::string& tag, const std::string& markdown);
  // Writes what is buffered, if a second has passed since the last time.
  void flush_if_due();
  void flush();
  // Removes the event files of earlier runs: for a run that is done and has begun anew.
  void remove_earlier();

  const std::filesystem::path& path() const { return path_; }

 private:
  void look_around(const std::filesystem::path& folder, const EventOwner& owner);
  void open(const std::filesystem::path& folder, const std::string& hash);
  void add_record(std::string_view event);

  std::filesystem::path path_;
  std::vector<std::filesystem::path> earlier_;
  std::int64_t latest_ = 0;  // latest time in the names of the folder's event files
  int file_ = -1;
  std::string buffer_;
  std::chrono::steady_clock::time_point last_flush_;
};

}  // namespace mw
