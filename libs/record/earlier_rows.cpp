// Reads what a run file has of the steps before one, and gives it to the writer of another.
#include <algorithm>
#include <cstring>
#include <system_error>

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

std::vector<char> rows_before(Hdf5File& file, const TableLayout& layout, std::int64_t step) {
  std::vector<char> kept;
  if (!file.has(layout.name)) return kept;
  const std::vector<char> all = file.read_rows(layout, 0, file.count_rows(layout));
  const std::size_t size = layout.row_bytes(), at = offset_of(layout, "step");
  for (std::size_t r = 0; r + size <= all.size(); r += size) {
    if (number_at<std::int64_t>(all.data() + r, at) >= step) continue;
    kept.insert(kept.end(), all.begin() + static_cast<std::ptrdiff_t>(r),
                all.begin() + static_cast<std::ptrdiff_t>(r + size));
  }
  return kept;
}

}  // namespace

EarlierRows read_earlier(const fs::path& path, std::int64_t step,
                         const std::vector<std::string>& hashes) try {
  EarlierRows earlier;
  std::error_code error;
  if (step == 0 || !fs::exists(path, error)) return earlier;
  probe_run_file(path);
  {
    Hdf5File file(path, Hdf5File::Mode::read);
    const std::string hash = file.attribute("/", "hash");
    if (std::find(hashes.begin(), hashes.end(), hash) == hashes.end()) return earlier;
    for (const TableLayout* layout :
         {&communication_table(), &work_table(), &expert_table(), &action_table(), &event_table(),
          &trace_table(), &trace_memory_table(), &account_table()})
      earlier.tables.emplace_back(layout, rows_before(file, *layout, step));
  }
  const std::vector<char>& events = earlier.tables[4].second;
  const std::size_t size = event_table().row_bytes(), time = offset_of(event_table(), "time");
  for (std::size_t r = 0; r < events.size(); r += size)
    earlier.seconds = std::max(earlier.seconds, number_at<double>(events.data() + r, time));
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
  return earlier;
} catch (const Error&) {  // a run that was killed may leave a file that cannot be read
  return {};
}

void RunWriter::take_over(const EarlierRows& earlier) {
  for (const auto& [layout, packed] : earlier.tables) {
    for (Rows* rows : all_rows()) {
      if (rows->layout != layout || packed.empty()) continue;
      rows->packed.insert(rows->packed.end(), packed.begin(), packed.end());
      rows->count += packed.size() / layout->row_bytes();
    }
  }
  for (const StepRow& row : earlier.steps) add(row);
  for (std::size_t r = 0; r < earlier.series_steps.size(); ++r) {
    std::vector<std::pair<std::string, double>> metrics;
    for (const mw::Series& series : earlier.series)
      metrics.emplace_back(series.name, series.values[r]);
    add_series(earlier.series_steps[r], metrics);
  }
  began_ -= std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(earlier.seconds));
  dirty_ = true;
}

}  // namespace mw
