// Looks up the columns of a table that was read from a run file.
#include "record/columns.h"

#include <limits>

namespace mw {

const TableColumn* Table::find(const std::string& name) const {
  for (const TableColumn& column : columns) {
    if (column.name == name) return &column;
  }
  return nullptr;
}

std::vector<double> Table::numbers(const std::string& name) const {
  const TableColumn* column = find(name);
  if (column != nullptr) {
    if (const auto* values = std::get_if<std::vector<double>>(&column->values)) return *values;
    if (const auto* values = std::get_if<std::vector<std::int64_t>>(&column->values))
      return {values->begin(), values->end()};
  }
  return std::vector<double>(rows, std::numeric_limits<double>::quiet_NaN());
}

std::vector<std::int64_t> Table::integers(const std::string& name) const {
  const TableColumn* column = find(name);
  if (column != nullptr) {
    if (const auto* values = std::get_if<std::vector<std::int64_t>>(&column->values))
      return *values;
  }
  return std::vector<std::int64_t>(rows, 0);
}

std::vector<std::string> Table::texts(const std::string& name) const {
  const TableColumn* column = find(name);
  if (column != nullptr) {
    if (const auto* values = std::get_if<std::vector<std::string>>(&column->values)) return *values;
  }
  return std::vector<std::string>(rows);
}

std::vector<StepRow> steps_of(const Table& table) {
  const auto step = table.integers("step"), tokens = table.integers("tokens");
  const auto number = [&](const char* name) { return table.numbers(name); };
  const auto seconds = number("seconds"), loss = number("loss"), norm = number("grad_norm"),
             lr = number("lr"), rate = number("tokens_per_second"), mfu = number("mfu"),
             bubble = number("bubble"), cpu = number("cpu_seconds"),
             others = number("others_cores"), throttled = number("throttled_cores"),
             clock = number("clock");
  std::vector<StepRow> rows;
  for (std::uint64_t r = 0; r < table.rows; ++r) {
    rows.push_back({step[r], seconds[r], loss[r], norm[r], lr[r], tokens[r], rate[r], mfu[r],
                    bubble[r], cpu[r], others[r], throttled[r], clock[r]});
  }
  return rows;
}

}  // namespace mw
