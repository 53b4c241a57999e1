// Reads a run file's rows of the steps before a given one, for the writer of the run that goes on.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "record/probe.h"
#include "record/run_reader.h"
#include "record/run_writer.h"

namespace mw {

namespace fs = std::filesystem;

namespace {

template <typename Number>
Number number_at(const char* row, std::size_t offset) {
  Number number{};
  std::memcpy(&number, row + offset, sizeof number);
  return number;
}

std::size_t offset_of(const TableLayout& layout, std::string_view column) {
  std::size_t offset = 0;
  for (const Column& c : layout.columns) {
    if (c.name == column) break;
    offset += c.bytes;
  }
  return offset;
}

// Tables with many rows for each step.
std::array<const TableLayout*, 8> large_tables() {
  return {&communication_table(), &work_table(),  &expert_table(),       &action_table(),
          &event_table(),         &trace_table(), &trace_memory_table(), &account_table()};
}

// Calls `take` with the packed rows of the steps before `step`, some MiB at a time.
template <typename Take>
void each_part(Hdf5File& file, const TableLayout& layout, std::int64_t step, const Take& take) {
  constexpr std::size_t bytes_at_once = std::size_t{4} << 20;
  if (!file.has(layout.name)) return;
  const std::size_t size = layout.row_bytes(), at = offset_of(layout, "step");
  const std::uint64_t all = file.count_rows(layout), rows = bytes_at_once / size;
  for (std::uint64_t from = 0; from < all; from += rows) {
    std::vector<char> part = file.read_rows(layout, from, std::min(rows, all - from));
    std::size_t kept = 0;
    for (std::size_t r = 0; r + size <= part.size(); r += size) {
      if (number_at<std::int64_t>(part.data() + r, at) >= step) continue;
      if (kept != r) std::memcpy(part.data() + kept, part.data() + r, size);
      kept += size;
    }
    part.resize(kept);
    take(part);
  }
}

}  // namespace

EarlierRows read_earlier(const fs::path& path, std::int64_t step,
                         const std::vector<std::string>& hashes) try {
  EarlierRows earlier;
  std::error_code error;
  if (step == 0 || !fs::exists(path, error)) return earlier;
  probe_run_file(path);
  auto file = std::make_unique<Hdf5File>(path, Hdf5File::Mode::read);
  const std::string hash = file->attribute("/", "hash"), from = file->attribute("/", "continues");
  if (std::none_of(hashes.begin(), hashes.end(), [&](const std::string& one) {
        return one == hash || (one == from && !from.empty());
      }))
    return earlier;
  // Reads each part once here, because a file that cannot be read must not end the run later on.
  const std::size_t size = event_table().row_bytes(), time = offset_of(event_table(), "time");
  for (const TableLayout* layout : large_tables()) {
    each_part(*file, *layout, step, [&](const std::vector<char>& part) {
      if (layout != &event_table()) return;
      for (std::size_t r = 0; r < part.size(); r += size)
        earlier.seconds = std::max(earlier.seconds, number_at<double>(part.data() + r, time));
    });
  }
  if (const TableLayout& layout = bandwidth_table(); file->has(layout.name))
    earlier.bandwidths = file->read_rows(layout, 0, file->count_rows(layout));
  RunReader reader(path);
  earlier.steps = reader.steps();
  std::erase_if(earlier.steps, [&](const StepRow& row) { return row.step >= step; });
  earlier.series_steps = reader.series_steps();
  earlier.series = reader.series();
  const auto end = std::find_if(earlier.series_steps.begin(), earlier.series_steps.end(),
                                [&](std::int64_t at) { return at >= step; });
  const auto rows = static_cast<std::size_t>(end - earlier.series_steps.begin());
  earlier.series_steps.resize(rows);
  for (Series& series : earlier.series) series.values.resize(rows, not_known);
  earlier.file = std::move(file);
  earlier.before = step;
  return earlier;
} catch (const Error& error) {  // a run that was killed may leave a file that cannot be read
  EarlierRows none;
  none.unread = error.problems().front().message;
  return none;
}

// The rows go straight from file to file, as a long run's would not fit into memory.
void RunWriter::copy_tables(Hdf5File& from, std::int64_t before) {
  Hdf5File out(hidden_path_, Hdf5File::Mode::append);
  const auto large = large_tables();
  for (Rows* rows : all_rows()) {
    if (std::find(large.begin(), large.end(), rows->layout) == large.end()) continue;
    std::uint64_t count = 0;
    each_part(from, *rows->layout, before, [&](const std::vector<char>& part) {
      const std::uint64_t added = part.size() / rows->layout->row_bytes();
      out.write_rows(*rows->layout, count, part.data(), added);
      count += added;
    });
    rows->first = rows->count = rows->written[hidden_] = count;
  }
  out.close();
}

void RunWriter::take_over(const EarlierRows& earlier) {
  if (earlier.file) copy_tables(*earlier.file, earlier.before);
  bandwidth_.packed = earlier.bandwidths;
  bandwidth_.count = earlier.bandwidths.size() / bandwidth_table().row_bytes();
  for (const StepRow& row : earlier.steps) add(row);
  for (std::size_t r = 0; r < earlier.series_steps.size(); ++r) {
    std::vector<std::pair<std::string, double>> metrics;
    for (const mw::Series& series : earlier.series)
      metrics.emplace_back(series.name, series.values[r]);
    add_series(earlier.series_steps[r], metrics);
  }
  began_ -= std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(earlier.seconds));
  write(hidden_);
  dirty_ = false;
  steps_since_flush_ = 0;
}

}  // namespace mw
