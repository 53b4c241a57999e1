// Writes the files of ranks one by one in a thread of its own, and completes a checkpoint once the
// files of all ranks are there.
#include "checkpoint/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <cerrno>

#include <unistd.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "checkpoint/checksum.h"
#include "common/files.h"
#include "meshwright/engine/away.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/host.h"
#include "meshwright/error.h"
#include "meshwright/threads.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t written_at_a_time = 1 << 20;  // bytes; checksummed while in the cache

class SummedFile {
 public:
  explicit SummedFile(const fs::path& path) : path_(path) {
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file_ < 0) fail(errno);
  }
  ~SummedFile() {
    if (file_ >= 0) ::close(file_);
  }
  SummedFile(const SummedFile&) = delete;
  SummedFile& operator=(const SummedFile&) = delete;

  void write(const void* data, std::size_t size) {
    const char* from = static_cast<const char*>(data);
    for (std::size_t at = 0; at < size; at += written_at_a_time) {
      const std::size_t part = std::min(written_at_a_time, size - at);
      sum_.add(from + at, part);
      if (!write_whole(file_, from + at, part)) fail(errno);
    }
    bytes_ += static_cast<std::int64_t>(size);
  }
  StoredFile finish() {
    if (::fsync(file_) != 0) fail(errno);
    const int file = std::exchange(file_, -1);
    if (::close(file) != 0) fail(errno);
    return {bytes_, sum_.text()};
  }

 private:
  [[noreturn]] void fail(int reason) const {
    throw Error(Stage::run, "checkpoint.write", "checkpoint.path",
                fmt::format("{}: {}", path_.string(), std::generic_category().message(reason)));
  }
  const fs::path path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;
  Checksum sum_;
};

std::string dtype_name(at::ScalarType type) {
  std::string name = safetensors_dtype(type);
  if (!name.empty()) return name;
  throw Error(Stage::run, "checkpoint.write", "",
              fmt::format("a checkpoint cannot hold a tensor of type {}", c10::toString(type)));
}

StoredFile write_rank_file(const fs::path& path, const std::vector<StoredPiece>& pieces,
                           const std::map<std::string, std::string>& metadata) {
  // Largest elements first, so that each tensor is aligned behind the padded header.
  std::vector<const StoredPiece*> order;
  for (const StoredPiece& piece : pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->data.element_size() > b->data.element_size();
  });
  nlohmann::json header = nlohmann::json::object();
  header["__metadata__"] = metadata;
  std::int64_t at = 0;
  for (const StoredPiece* piece : order) {
    const std::int64_t end = at + static_cast<std::int64_t>(piece->data.nbytes());
    const std::vector<std::int64_t> shape =
        !piece->own && piece->slice.is_box() ? piece->slice.box.sizes : piece->data.sizes().vec();
    header[piece->name] = {{"dtype", dtype_name(piece->data.scalar_type())},
                           {"shape", shape},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  SummedFile out(path);
  const std::uint64_t length = text.size();
  out.write(&length, sizeof length);
  out.write(text.data(), text.size());
  for (const StoredPiece* piece : order)
    out.write(piece->data.const_data_ptr(), piece->data.nbytes());
  return out.finish();
}

constexpr std::chrono::milliseconds between_looks{20};

// The name of the file by which a process tells the process of rank 0 about a rank's file, through
// the folder that both see.
std::string part_file(int rank) {
  return fmt::format("part-{:05}.json", rank);
}

}  // namespace

CheckpointWriter::CheckpointWriter(Setup setup) : setup_(std::move(setup)) {
  if (setup_.folder) setup_.mark = setup_.folder->mark();
}

void CheckpointWriter::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::wait_for_room(std::int64_t step) {
  std::unique_lock lock(mutex_);
  wait_away(changed_, lock, [&] { return step_ < 0 || step_ == step; });
}

void CheckpointWriter::hand_over(std::int64_t step, int rank, std::vector<StoredPiece> pieces,
                                 std::optional<CheckpointIndex> facts) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
  if (step_ < 0) {
    step_ = step;
    began_ = seconds_now();
    handed_over_ = 0;
    written_.clear();
    facts_.reset();
  }
  if (facts) facts_ = std::move(facts);
  jobs_.push_back({rank, std::move(pieces)});
  ++handed_over_;
  changed_.notify_all();
}

void CheckpointWriter::finish() {
  std::unique_lock lock(mutex_);
  wait_away(changed_, lock, [&] { return step_ < 0; });
}

std::vector<CheckpointNews> CheckpointWriter::news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void CheckpointWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      return ending_ || !jobs_.empty() || (step_ >= 0 && written_.size() == setup_.here.size());
    });
    if (!jobs_.empty()) {
      const Job job = std::move(jobs_.back());
      jobs_.pop_back();
      lock.unlock();
      write_one(job);
      lock.lock();
      continue;
    }
    if (step_ >= 0 && written_.size() == setup_.here.size()) {
      lock.unlock();
      complete();
      lock.lock();
      step_ = -1;
      changed_.notify_all();
      continue;
    }
    if (step_ >= 0 && setup_.folder) setup_.folder->remove_staged(step_);
    return;  // ending
  }
}

void CheckpointWriter::write_one(const Job& job) {
  Written written;
  written.rank = job.rank;
  const fs::path staged = staging_folder(setup_.path, step_, setup_.mark);
  try {
    if (setup_.folder) setup_.folder->hold();
    std::error_code error;
    fs::create_directory(staged, error);  // another process may have created it
    if (!job.pieces.empty()) {
      written.file = write_rank_file(staged / file_of_rank(job.rank), job.pieces,
                                     {{"format", checkpoint_format},
                                      {"rank", std::to_string(job.rank)},
                                      {"step", std::to_string(step_)}});
    }
    for (const StoredPiece& piece : job.pieces) {
      written.dtypes.push_back(dtype_name(piece.data.scalar_type()));
      written.pieces.push_back({piece.name, {}, piece.shape, piece.slice, piece.own});
    }
  } catch (const std::exception& error) {
    written.failed = problem_of(error).message;
  }
  if (!setup_.folder) {
    try {
      write_to_disk(staged / part_file(job.rank), part_text(written));
    } catch (const std::exception&) {  // the process of rank 0 will report a timeout
    }
  }
  const std::lock_guard lock(mutex_);
  written_.push_back(std::move(written));
}

void CheckpointWriter::complete() {
  if (!setup_.folder) return;
  CheckpointNews news;
  news.step = step_;
  try {
    std::vector<Written> all = written_;
    if (!await_others(all)) return setup_.folder->remove_staged(step_);
    for (const Written& written : all)
      if (!written.failed.empty())
        throw Error(Stage::run, "checkpoint.write", "checkpoint.path", written.failed);
    const CheckpointIndex index = index_of(all);
    news.bytes = index.bytes();
    const fs::path staged = staging_folder(setup_.path, step_, setup_.mark);
    std::error_code ignored;
    for (const Written& written : all) fs::remove(staged / part_file(written.rank), ignored);
    write_to_disk(staged / index_file, index.text());
    setup_.folder->commit(step_);
    for (const std::int64_t stale : setup_.stale)
      if (stale != step_) setup_.folder->remove(stale);
    setup_.stale.clear();
    news.stays = setup_.folder->keep_newest(setup_.keep, step_);
    setup_.folder->remove_staged_before(step_);
  } catch (const std::exception& error) {
    news.failed = problem_of(error).message;
    setup_.folder->remove_staged(step_);
  }
  news.seconds = seconds_now() - began_;
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(news));
}

// Waits for the files of ranks in other processes. False: the run ends before they are there.
bool CheckpointWriter::await_others(std::vector<Written>& all) {
  const fs::path staged = staging_folder(setup_.path, step_, setup_.mark);
  const double began = seconds_now();
  std::vector<bool> there(static_cast<std::size_t>(setup_.ranks), false);
  for (const int rank : setup_.here) there[static_cast<std::size_t>(rank)] = true;
  while (true) {
    int missing = -1;
    for (int rank = 0; rank < setup_.ranks; ++rank) {
      if (there[static_cast<std::size_t>(rank)]) continue;
      const std::optional<std::string> text = whole_file(staged / part_file(rank));
      if (!text) {
        if (missing < 0) missing = rank;
        continue;
      }
      all.push_back(read_part(rank, *text));
      there[static_cast<std::size_t>(rank)] = true;
    }
    if (missing < 0) return true;
    if (seconds_now() - began > setup_.patience.count()) {
      throw Error(
          Stage::run, "checkpoint.write", "checkpoint.path",
          fmt::format("the file of rank {} has not come within {:g} s: do all processes see "
                      "the folder {}?",
                      missing, setup_.patience.count(), setup_.path.string()));
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, between_looks, [&] { return ending_; })) return false;
  }
}

CheckpointIndex CheckpointWriter::index_of(const std::vector<Written>& all) const {
  CheckpointIndex index = facts_.value();
  for (const Written& written : all) {
    if (written.pieces.empty()) continue;
    index.files[written.rank] = written.file;
    for (std::size_t p = 0; p < written.pieces.size(); ++p) {
      const StoredPiece& piece = written.pieces[p];
      if (piece.own) {
        index.own[written.rank].push_back(piece.name);
        continue;
      }
      StoredTensor& tensor = index.tensors[piece.name];
      tensor.dtype = written.dtypes[p];
      tensor.shape = piece.shape;
      tensor.slices.push_back({written.rank, piece.slice});
    }
  }
  for (auto& [name, tensor] : index.tensors)
    std::sort(tensor.slices.begin(), tensor.slices.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return index;
}

std::string CheckpointWriter::part_text(const Written& written) {
  nlohmann::json json{{"bytes", written.file.bytes},
                      {"checksum", written.file.checksum},
                      {"failed", written.failed},
                      {"pieces", nlohmann::json::array()}};
  for (std::size_t p = 0; p < written.pieces.size(); ++p) {
    const StoredPiece& piece = written.pieces[p];
    json["pieces"].push_back({piece.name, written.dtypes[p], piece.own, piece.shape,
                              piece.slice.box.offsets, piece.slice.box.sizes, piece.slice.begin,
                              piece.slice.count});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

CheckpointWriter::Written CheckpointWriter::read_part(int rank, const std::string& text) {
  Written written;
  written.rank = rank;
  const nlohmann::json json = nlohmann::json::parse(text);
  written.file = {json.at("bytes").get<std::int64_t>(), json.at("checksum").get<std::string>()};
  written.failed = json.at("failed").get<std::string>();
  for (const nlohmann::json& one : json.at("pieces")) {
    StoredPiece piece;
    piece.name = one.at(0).get<std::string>();
    written.dtypes.push_back(one.at(1).get<std::string>());
    piece.own = one.at(2).get<bool>();
    piece.shape = one.at(3).get<std::vector<std::int64_t>>();
    piece.slice.box.offsets = one.at(4).get<std::vector<std::int64_t>>();
    piece.slice.box.sizes = one.at(5).get<std::vector<std::int64_t>>();
    piece.slice.begin = one.at(6).get<std::int64_t>();
    piece.slice.count = one.at(7).get<std::int64_t>();
    written.pieces.push_back(std::move(piece));
  }
  return written;
}

}  // namespace mw
