// Finishes the file of a run that broke off: with all rows, or with as much as there is room for.
#include <exception>

#include "record/hdf5_file.h"
#include "record/run_path.h"
#include "record/run_writer.h"

namespace mw {

std::string RunWriter::end_badly(RunStatus status, const std::string& reason) noexcept try {
  std::string left_out;
  const auto tried = [&](auto&& write) {
    try {
      write();
      return true;
    } catch (const std::exception& error) {
      if (left_out.empty()) left_out = error.what();
      return false;
    }
  };
  const auto all = [&] { finish(status, reason); };
  const auto events = [&] {
    drop_rows();
    finish(status, reason);
  };
  const auto status_alone = [&] {
    remove_quietly(hidden_path_);
    if (inode_of(path_) != inode_[1 - hidden_]) return;  // the file was replaced or removed
    Hdf5File out(path_, Hdf5File::Mode::append);
    set_end(out);
    out.close();
  };
  if (!tried(all) && !tried(events)) tried(status_alone);
  finished_ = true;
  remove_quietly(hidden_path_);
  return left_out;
} catch (const std::exception&) {  // no memory for the error's text
  return "";
}

void RunWriter::drop_rows() {
  const auto drop = [](std::uint64_t count, std::uint64_t(&written)[2]) {
    written[0] = written[1] = count;
  };
  for (Rows* rows : {&steps_, &communication_, &work_, &experts_, &actions_, &trace_,
                     &trace_memory_, &account_, &bandwidth_}) {
    rows->packed.clear();
    rows->first = rows->count;
    drop(rows->count, rows->written);
  }
  series_steps_.clear();
  for (auto& [name, series] : series_) series.values.clear();
  series_first_ = series_count_;
  drop(series_count_, series_written_);
  memory_stale_[0] = memory_stale_[1] = false;
  result_.clear();
}

}  // namespace mw
