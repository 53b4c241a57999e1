#include "record/run_writer.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <system_error>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "record/hdf5_file.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t status_room = 16;

[[noreturn]] void fail(const fs::path& path, const std::string& what, int reason) {
  throw Error(Stage::run, fmt::format("run file {}: {}: {}", path.string(), what,
                                      std::generic_category().message(reason)));
}

// Hidden, in the same folder (renames must not cross file systems), its own for each process.
fs::path twin_of(const fs::path& path) {
  return path.parent_path() / fmt::format(".{}.{}", path.filename().string(), ::getpid());
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::uint64_t inode_of(const fs::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

void remove_quietly(const fs::path& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
}

// The hidden files of runs to the same path that were killed.
void remove_orphaned_twins(const fs::path& path) {
  const std::string prefix = "." + path.filename().string() + ".";
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::vector<fs::path> orphans;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() <= prefix.size() || name.compare(0, prefix.size(), prefix) != 0) continue;
    const std::string number = name.substr(prefix.size());
    if (number.size() > 9 || number.find_first_not_of("0123456789") != std::string::npos) continue;
    if (::kill(std::stoi(number), 0) != 0 && errno == ESRCH) orphans.push_back(entry.path());
  }
  for (const fs::path& orphan : orphans) remove_quietly(orphan);
}

std::string safe_name(std::string name) {
  std::replace(name.begin(), name.end(), '/', '_');
  if (name.empty() || name == "step" || name == "." || name == "..") name += "_";
  return name;
}

}  // namespace

const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "running";
    case RunStatus::done:
      return "done";
    case RunStatus::failed:
      return "failed";
    case RunStatus::interrupted:
      return "interrupted";
  }
  return "";
}

void check_writable(const fs::path& path) {
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(Stage::options, fmt::format("log: cannot write {}: {}", path.string(), why), hint);
  };
  std::error_code error;
  if (!path.has_filename() || fs::is_directory(path, error))
    refuse("it is a folder", "name a file in it, for example \"runs/run.h5\"");
  if (fs::exists(path, error)) {
    if (!fs::is_regular_file(path, error)) refuse("it is no ordinary file", "name another file");
    if (fs::file_size(path, error) > 0 && H5Fis_hdf5(path.c_str()) <= 0)
      refuse("a file is there that is no run file", "remove it, or name another file");
  }
  fs::path folder = fs::absolute(path, error).lexically_normal().parent_path();
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error))
    refuse(fmt::format("{} is no folder", folder.string()), "name a file in another folder");
  // Permission bits do not tell all (a read-only or virtual file system, a quota): try.
  std::string probe = (folder / ".meshwright-XXXXXX").string();
  const int file = ::mkostemp(probe.data(), O_CLOEXEC);
  if (file < 0) {
    refuse(fmt::format("folder {}: {}", folder.string(), std::generic_category().message(errno)),
           "name a file in a folder that you may write to");
  }
  ::close(file);
  ::unlink(probe.c_str());
}

RunWriter::RunWriter(fs::path path, const RunInfo& info, Interval interval)
    : path_(std::move(path)),
      twin_(twin_of(path_)),
      interval_(interval),
      began_(std::chrono::steady_clock::now()),
      last_flush_(began_) {
  steps_.layout = &step_table();
  communication_.layout = &communication_table();
  work_.layout = &work_table(), &expert_table();
  experts_.layout = &expert_table();
  actions_.layout = &action_table();
  events_.layout = &event_table();
  std::error_code error;
  if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), error);
  if (error) fail(path_, "cannot create its folder", error.value());
  try {
    remove_orphaned_twins(path_);
    create(twin_, info);
    if (::rename(twin_.c_str(), path_.c_str()) != 0) fail(path_, "cannot create it", errno);
    inode_[0] = inode_of(path_);
    copy_twin();
  } catch (...) {
    remove_quietly(twin_);
    throw;
  }
}

RunWriter::~RunWriter() {
  if (finished_) return;
  try {
    finish(RunStatus::failed);
  } catch (const std::exception&) {
    remove_quietly(twin_);  // the run has failed already: its own error is the one to show
  }
}

void RunWriter::create(const fs::path& path, const RunInfo& info) const {
  Hdf5File out(path, Hdf5File::Mode::create);
  out.set_attribute("/", "schema", std::string(run_schema));
  out.set_attribute("/", "status", name_of(status_), status_room);
  out.set_attribute("/", "created",
                    fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
  out.set_attribute("/", "host", host_name());
  Json versions = Json::object();
  for (const auto& [name, version] : info.versions) versions[name] = version;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  versions["hdf5"] = fmt::format("{}.{}.{}", major, minor, release);
  out.set_attribute("/", "versions", versions.dump());
  out.set_attribute("/", "seed", info.seed);
  out.write_text("script", info.script);
  out.write_text("plan", info.plan);
  for (const TableLayout* layout :
       {&step_table(), &memory_table(), &communication_table(), &work_table(), &expert_table(),
        &action_table(), &predicted_action_table(), &event_table()})
    out.create_table(*layout);
  std::vector<char> predicted;
  for (const ActionRow& row : info.predicted_actions) pack_predicted(row, predicted);
  out.write_rows(predicted_action_table(), 0, predicted.data(), info.predicted_actions.size());
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
    Series& series = series_[safe_name(name)];
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

bool RunWriter::flush_if_due() {
  if (!dirty_) return false;
  const bool due = (interval_.steps > 0 && steps_since_flush_ >= interval_.steps) ||
                   std::chrono::steady_clock::now() - last_flush_ >= interval_.time;
  if (due) flush();
  return due;
}

void RunWriter::flush() {
  if (swaps_) {
    if (twin_is_broken_) copy_twin();
    twin_is_broken_ = true;
    write(hidden_);
    twin_is_broken_ = false;
    publish();
  }
  if (!swaps_) write(1 - hidden_);  // publish may just have found that names cannot be swapped
  drop_written();
  dirty_ = false;
  steps_since_flush_ = 0;
  last_flush_ = std::chrono::steady_clock::now();
}

void RunWriter::finish(RunStatus status) {
  status_ = status;
  flush();
  finished_ = true;
  remove_quietly(twin_);
}

void RunWriter::write(int file) {
  Hdf5File out(file == hidden_ ? twin_ : path_, Hdf5File::Mode::append);
  for (Rows* rows : {&steps_, &communication_, &work_, &experts_, &actions_, &events_})
    write_rows(out, *rows, file);
  if (memory_stale_[file]) out.write_rows(memory_table(), 0, memory_.data(), memory_rows_);
  write_series(out, file);
  if (status_ != RunStatus::running) out.set_attribute("/", "status", name_of(status_));
  out.close();
  // Only now: if anything above threw, the next flush writes the same rows to the same places.
  for (Rows* rows : {&steps_, &communication_, &work_, &experts_, &actions_, &events_})
    rows->written[file] = rows->count;
  memory_stale_[file] = false;
  series_written_[file] = series_count_;
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
    const std::string path = "series/" + name;
    std::vector<double> values(series.values.begin() + skip, series.values.end());
    if (series.created[file]) {
      out.write_series(path, at, values);
    } else {
      // A metric that comes late: the rows before are NaN.
      out.create_series(path, "series/step", "");
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
  for (Rows* rows : {&steps_, &communication_, &work_, &experts_, &actions_, &events_}) {
    const std::uint64_t keep_from = common(rows->written);
    const auto bytes = (keep_from - rows->first) * rows->layout->row_bytes();
    rows->packed.erase(rows->packed.begin(),
                       rows->packed.begin() + static_cast<std::ptrdiff_t>(bytes));
    rows->first = keep_from;
  }
  const std::uint64_t keep_from = common(series_written_);
  const auto dropped = static_cast<std::ptrdiff_t>(keep_from - series_first_);
  series_steps_.erase(series_steps_.begin(), series_steps_.begin() + dropped);
  for (auto& [name, series] : series_)
    series.values.erase(series.values.begin(), series.values.begin() + dropped);
  series_first_ = keep_from;
}

// Makes the hidden file anew from the published one.
void RunWriter::copy_twin() {
  std::error_code error;
  fs::copy_file(path_, twin_, fs::copy_options::overwrite_existing, error);
  if (error) fail(path_, "cannot create its twin", error.value());
  const int published = 1 - hidden_;
  inode_[hidden_] = inode_of(twin_);
  for (Rows* rows : {&steps_, &communication_, &work_, &experts_, &actions_, &events_})
    rows->written[hidden_] = rows->written[published];
  series_written_[hidden_] = series_written_[published];
  for (auto& [name, series] : series_) series.created[hidden_] = series.created[published];
  memory_stale_[hidden_] = memory_stale_[published];
  twin_is_broken_ = false;
}

void RunWriter::publish() {
  const std::uint64_t found = inode_of(path_);
  if (found != 0 && found != inode_[1 - hidden_]) {
    throw Error(Stage::run,
                fmt::format("run file {}: another program has replaced it", path_.string()),
                "give each run a log of its own");
  }
  if (found == 0) {  // removed by somebody: it comes back, and gets a new twin
    if (::rename(twin_.c_str(), path_.c_str()) != 0) fail(path_, "cannot write it", errno);
    hidden_ = 1 - hidden_;
    copy_twin();
    return;
  }
  if (::renameat2(AT_FDCWD, twin_.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0) {
    hidden_ = 1 - hidden_;
    return;
  }
  if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP) fail(path_, "cannot write it", errno);
  swaps_ = false;
  remove_quietly(twin_);
}

}  // namespace mw
