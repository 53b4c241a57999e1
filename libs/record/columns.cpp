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

}  // namespace mw
