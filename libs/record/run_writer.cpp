// Writes a run's rows at intervals into a hidden copy that then changes places with the run
// file, so that a killed run leaves a whole file.
#include "record/run_writer.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <hdf5.h>
#include <sys/file.h>
#include <unistd.h>
#include <cctype>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "common/process.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"
#include "record/hdf5_file.h"
#include "record/run_path.h"

namespace mw {

namespace {

std::string coded(char c) {
  return fmt::format("%{:02X}", static_cast<unsigned char>(c));
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// A "%" that would be read as a code is coded itself, so that each place has one name.
std::string escaped(const std::string& part) {
  if (part.empty()) return "%";
  if (part == "%") return coded('%');
  if (part == ".") return coded('.');
  if (part == "..") return coded('.') + coded('.');
  std::string text;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool code = part[i] == '%' && i + 2 < part.size() &&
                      std::isxdigit(static_cast<unsigned char>(part[i + 1])) &&
                      std::isxdigit(static_cast<unsigned char>(part[i + 2]));
    text += code || part[i] == '\0' ? coded(part[i]) : std::string(1, part[i]);
  }
  return text;
}

std::string all_coded(const std::string& name) {
  std::string text;
  for (const char c : name) text += coded(c);
  return text;
}

}  // namespace

const std::string& SeriesNames::place_of(const std::string& name) {
  const auto known = places_.find(name);
  if (known != places_.end()) return known->second;
  std::string place;
  std::vector<std::string> groups;
  for (const std::string& part : parts_of(name)) {
    if (!place.empty()) {
      groups.push_back(place);
      place += "/";
    }
    place += escaped(part);
  }
  bool free = name != "step" && name.rfind("step/", 0) != 0 && taken_.count(place) == 0;
  for (const std::string& group : groups) {
    const auto there = taken_.find(group);
    free = free && (there == taken_.end() || !there->second);
  }
  if (free) {
    for (const std::string& group : groups) taken_.emplace(group, false);
  } else {
    place = all_coded(name);
  }
  taken_[place] = true;
  return places_[name] = place;
}

namespace fs = std::filesystem;
namespace {

constexpr std::size_t status_room = 16, reason_room = 480;
// room that a table's buffer keeps for rows to come
constexpr std::size_t spare_bytes = std::size_t{1} << 20;

[[noreturn]] void fail(const fs::path& path, const std::string& what, int reason) {
  throw Error(Stage::run, "run-file.access", "",
              fmt::format("run file {}: {}: {}", path.string(), what,
                          std::generic_category().message(reason)));
}

// Locks a file for writing. The lock is refused while a reader has the file open: this project's
// readers and h5py lock each file that they read. On a file system without locks it locks nothing.
class WriteLock {
 public:
  explicit WriteLock(const fs::path& path)
      : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)),
        refused_(file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {}
  ~WriteLock() { let_go(); }
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(WriteLock&& other) noexcept {
    std::swap(file_, other.file_);
    refused_ = other.refused_;
    return *this;
  }
  bool is_refused() const { return refused_; }
  void let_go() {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }

 private:
  int file_;
  bool refused_;
};

// The text cut to `size` bytes, between characters of UTF-8.
std::string cut(const std::string& text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return text.substr(0, size);
}

}  // namespace

const char* name_of(RunStatus status) {
  static constexpr std::array names{"running", "done", "failed", "interrupted"};
  return names.at(static_cast<std::size_t>(status));
}

RunWriter::RunWriter(const fs::path& path, const RunInfo& info, Interval interval,
                     const EarlierRows* earlier)
    : path_(behind_links(path)),
      interval_(interval),
      began_(std::chrono::steady_clock::now()),
      last_flush_(began_) {
  steps_.layout = &step_table();
  communication_.layout = &communication_table();
  work_.layout = &work_table();
  experts_.layout = &expert_table();
  actions_.layout = &action_table();
  events_.layout = &event_table();
  trace_.layout = &trace_table();
  trace_memory_.layout = &trace_memory_table();
  account_.layout = &account_table();
  bandwidth_.layout = &bandwidth_table();
  std::error_code error;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  if (error) fail(path_, "cannot create its folder", error.value());
  try {
    remove_orphans(path_);
    ::close(open_hidden());
    create(info);
    if (earlier != nullptr) take_over(*earlier);
    publish_first();
    copy_to_hidden();
    drop_written();
  } catch (const std::exception& thrown) {
    remove_quietly(hidden_path_);
    end_unbegun(thrown.what());
    throw;
  }
}

// Where the file was published and its hidden copy cannot be made, no run begins: the file must not
// say "running".
void RunWriter::end_unbegun(const std::string& why) noexcept try {
  if (inode_[0] == 0 || inode_of(path_) != inode_[0]) return;
  status_ = RunStatus::failed;
  reason_ = cut(why, reason_room);
  Hdf5File out(path_, Hdf5File::Mode::append);
  set_end(out);
  out.close();
} catch (const std::exception&) {  // not even the status can be written
  remove_quietly(path_);
}

RunWriter::~RunWriter() {
  // finish() was not called, so the run has failed: its own error is the one to show.
  if (!finished_) end_badly(RunStatus::failed, reason_);
}

void RunWriter::create(const RunInfo& info) const {
  Hdf5File out(hidden_path_, Hdf5File::Mode::create);
  out.set_attribute("/", "schema", std::string(run_schema));
  out.set_attribute("/", "status", name_of(status_), status_room);
  out.set_attribute("/", "reason", "", reason_room);
  out.set_attribute("/", "created", now_text());
  out.set_attribute("/", "host", host_name());
  Json versions = Json::object();
  for (const auto& [name, version] : info.versions) versions[name] = version;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  versions["hdf5"] = fmt::format("{}.{}.{}", major, minor, release);
  out.set_attribute("/", "versions", json_text(versions));
  out.set_attribute("/", "seed", info.seed);
  out.set_attribute("/", "process", process_mark(::getpid()));
  out.set_attribute("/", "name", info.name);
  out.set_attribute("/", "hash", info.hash);
  if (!info.hash_without_seed.empty())
    out.set_attribute("/", "hash_without_seed", info.hash_without_seed);
  if (!info.continues.empty()) out.set_attribute("/", "continues", info.continues);
  if (!info.started_by.empty()) out.set_attribute("/", "started_by", info.started_by);
  if (!info.plan_hash.empty()) out.set_attribute("/", "plan_hash", info.plan_hash);
  out.write_text("script", info.script);
  out.write_text("plan", info.plan);
  if (!info.predicted.empty()) out.write_text("predicted", info.predicted);
  if (!info.experiment.empty()) out.write_text("experiment", info.experiment);
  if (!info.machine.empty()) out.write_text("machine", info.machine);
  for (const TableLayout* layout : all_tables()) out.create_table(*layout);
  const auto write = [&out](const TableLayout& layout, const auto& rows, const auto& packed) {
    std::vector<char> bytes;
    for (const auto& row : rows) packed(row, bytes);
    out.write_rows(layout, 0, bytes.data(), rows.size());
  };
  const auto as_is = [](const auto& row, std::vector<char>& bytes) { pack(row, bytes); };
  write(predicted_action_table(), info.predicted_actions, pack_predicted);
  write(predicted_trace_table(), info.predicted_trace, as_is);
  write(predicted_trace_memory_table(), info.predicted_trace_memory, as_is);
  out.create_group("series");
  out.create_scale("series/step", "step");
  out.close();
}

template <typename Row>
void RunWriter::append(Rows& rows, const Row& row) {
  pack(row, rows.packed);
  ++rows.count;
  dirty_ = true;
}

void RunWriter::add(const StepRow& row) {
  append(steps_, row);
  ++steps_since_flush_;
}
void RunWriter::add(const CommunicationRow& row) {
  append(communication_, row);
}
void RunWriter::add(const WorkRow& row) {
  append(work_, row);
}
void RunWriter::add(const ExpertRow& row) {
  append(experts_, row);
}
void RunWriter::add(const ActionRow& row) {
  append(actions_, row);
}
void RunWriter::add(const SpanRow& row) {
  append(trace_, row);
}
void RunWriter::add(const SpanMemoryRow& row) {
  append(trace_memory_, row);
}
void RunWriter::add(const AccountRow& row) {
  append(account_, row);
}
void RunWriter::add(const BandwidthRow& row) {
  append(bandwidth_, row);
}
void RunWriter::add(const EventRow& row) {
  EventRow timed = row;
  timed.time = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  append(events_, timed);
}

void RunWriter::add_series(std::int64_t step,
                           const std::vector<std::pair<std::string, double>>& metrics) {
  const std::size_t before = series_steps_.size();
  series_steps_.push_back(step);
  ++series_count_;
  for (const auto& [name, value] : metrics) {
    Series& series = series_[name];
    series.place = names_.place_of(name);
    series.values.resize(before, not_known);
    series.values.push_back(value);
  }
  for (auto& [name, series] : series_) series.values.resize(before + 1, not_known);
  dirty_ = true;
}

void RunWriter::set_memory(const std::vector<MemoryRow>& rows) {
  memory_.clear();
  for (const MemoryRow& row : rows) pack(row, memory_);
  memory_rows_ = rows.size();
  memory_stale_[0] = memory_stale_[1] = dirty_ = true;
}

void RunWriter::set_rank_memory(const std::vector<RankMemoryRow>& rows) {
  rank_memory_.clear();
  for (const RankMemoryRow& row : rows) pack(row, rank_memory_);
  rank_memory_rows_ = rows.size();
  memory_stale_[0] = memory_stale_[1] = dirty_ = true;
}

void RunWriter::set_result(const std::string& json) {
  result_ = json;
  dirty_ = true;
}

bool RunWriter::flush_if_due() {
  if (!dirty_) return false;
  const bool due = (interval_.steps > 0 && steps_since_flush_ >= interval_.steps) ||
                   std::chrono::steady_clock::now() - last_flush_ >= interval_.time;
  if (due) flush();
  return due;
}

void RunWriter::flush() {
  if (swaps_) {
    WriteLock lock(hidden_path_);
    if (hidden_is_broken_ || lock.is_refused()) {
      copy_to_hidden();
      lock = WriteLock(hidden_path_);
    }
    hidden_is_broken_ = true;
    write(hidden_);
    hidden_is_broken_ = false;
    lock.let_go();
    publish();
  }
  if (!swaps_) write(1 - hidden_);  // publish may just have found that names cannot be swapped
  drop_written();
  dirty_ = false;
  steps_since_flush_ = 0;
  last_flush_ = std::chrono::steady_clock::now();
}

void RunWriter::finish(RunStatus status, const std::string& reason) {
  status_ = status;
  reason_ = cut(reason, reason_room);
  flush();
  finished_ = true;
  remove_quietly(hidden_path_);
}

void RunWriter::set_end(Hdf5File& out) const {
  out.set_attribute("/", "status", name_of(status_));
  out.set_attribute("/", "reason", reason_);
}

void RunWriter::write(int file) {
  Hdf5File out(file == hidden_ ? hidden_path_ : path_, Hdf5File::Mode::append);
  for (Rows* rows : all_rows()) write_rows(out, *rows, file);
  if (memory_stale_[file]) {
    out.write_rows(memory_table(), 0, memory_.data(), memory_rows_);
    out.write_rows(rank_memory_table(), 0, rank_memory_.data(), rank_memory_rows_);
  }
  write_series(out, file);
  if (!result_.empty()) out.set_text("result", result_);
  if (status_ != RunStatus::running) set_end(out);
  out.close();
  // Only now: if anything above threw, the next flush writes the same rows to the same places.
  for (Rows* rows : all_rows()) rows->written[file] = rows->count;
  memory_stale_[file] = false;
  series_written_[file] = series_count_;
}

std::array<RunWriter::Rows*, 10> RunWriter::all_rows() {
  return {&steps_,  &communication_, &work_,         &experts_, &actions_,
          &events_, &trace_,         &trace_memory_, &account_, &bandwidth_};
}

void RunWriter::write_rows(Hdf5File& out, Rows& rows, int file) {
  const std::uint64_t at = rows.written[file];
  if (at == rows.count) return;
  const char* packed = rows.packed.data() + (at - rows.first) * rows.layout->row_bytes();
  out.write_rows(*rows.layout, at, packed, rows.count - at);
}

void RunWriter::write_series(Hdf5File& out, int file) {
  const std::uint64_t at = series_written_[file];
  if (at == series_count_) return;
  const auto skip = static_cast<std::ptrdiff_t>(at - series_first_);
  out.write_scale("series/step", at, {series_steps_.begin() + skip, series_steps_.end()});
  for (auto& [name, series] : series_) {
    const std::string path = "series/" + series.place;
    std::vector<double> values(series.values.begin() + skip, series.values.end());
    if (series.created[file]) {
      out.write_series(path, at, values);
    } else {
      // A metric that comes late: the rows before are NaN.
      out.create_series(path, "series/step", "");
      if (series.place != name) out.set_attribute(path.c_str(), "name", name);
      values.insert(values.begin(), at, not_known);
      out.write_series(path, 0, values);
      series.created[file] = true;
    }
  }
}

// Rows that both files have (or the only one that is written) are no longer needed.
void RunWriter::drop_written() {
  const auto common = [&](const std::uint64_t(&written)[2]) {
    return swaps_ ? std::min(written[0], written[1]) : written[1 - hidden_];
  };
  for (Rows* rows : all_rows()) {
    const std::uint64_t keep_from = common(rows->written);
    const auto bytes = (keep_from - rows->first) * rows->layout->row_bytes();
    rows->packed.erase(rows->packed.begin(),
                       rows->packed.begin() + static_cast<std::ptrdiff_t>(bytes));
    rows->first = keep_from;
    // A run that stood still or could not write for a while has had many rows to keep.
    if (rows->packed.capacity() > 2 * rows->packed.size() + spare_bytes)
      rows->packed.shrink_to_fit();
  }
  const std::uint64_t keep_from = common(series_written_);
  const auto dropped = static_cast<std::ptrdiff_t>(keep_from - series_first_);
  series_steps_.erase(series_steps_.begin(), series_steps_.begin() + dropped);
  for (auto& [name, series] : series_)
    series.values.erase(series.values.begin(), series.values.begin() + dropped);
  series_first_ = keep_from;
}

int RunWriter::open_hidden() {
  remove_quietly(hidden_path_);
  const int file = create_unguessable(path_.parent_path(), hidden_name(path_), hidden_path_);
  if (file < 0) fail(path_, "cannot create its hidden copy", errno);
  return file;
}

// Makes the hidden file anew from the published one.
void RunWriter::copy_to_hidden() {
  const int to = open_hidden();
  const int reason = copy_into(to, path_);
  if (reason != 0) fail(path_, "cannot create its hidden copy", reason);
  const int published = 1 - hidden_;
  inode_[hidden_] = inode_of(hidden_path_);
  for (Rows* rows : all_rows()) rows->written[hidden_] = rows->written[published];
  series_written_[hidden_] = series_written_[published];
  for (auto& [name, series] : series_) series.created[hidden_] = series.created[published];
  memory_stale_[hidden_] = memory_stale_[published];
  hidden_is_broken_ = false;
}

void RunWriter::publish_first() {
  inode_[hidden_] = inode_of(hidden_path_);
  if (::rename(hidden_path_.c_str(), path_.c_str()) != 0) fail(path_, "cannot create it", errno);
  hidden_ = 1 - hidden_;
}

void RunWriter::publish() {
  const std::uint64_t found = inode_of(path_);
  if (found != 0 && found != inode_[1 - hidden_]) {
    throw Error(Stage::run, "run-file.replaced", "",
                fmt::format("run file {}: another program has replaced it", path_.string()),
                "give each run a log of its own");
  }
  if (found == 0) {  // somebody removed the file: the copy takes its name, and a new copy is made
    if (::rename(hidden_path_.c_str(), path_.c_str()) != 0) fail(path_, "cannot write it", errno);
    hidden_ = 1 - hidden_;
    copy_to_hidden();
    return;
  }
  if (::renameat2(AT_FDCWD, hidden_path_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    hidden_ = 1 - hidden_;
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail(path_, "cannot write it", errno);
  swaps_ = false;
  remove_quietly(hidden_path_);
}

}  // namespace mw
