// A table of a run file as columns, whatever columns it has: files of other versions have more, or
// fewer.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "record/rows.h"

namespace mw {

struct TableColumn {
  std::string name, unit;  // unit: empty if it has none
  // A value for each row.
  std::variant<std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>> values;
};

struct Table {
  std::vector<TableColumn> columns;
  std::uint64_t rows = 0;

  // Null if there is no such column.
  const TableColumn* find(const std::string& name) const;
  // A value for each row; of a column that is not there, or holds something else: NaN, 0, "".
  std::vector<double> numbers(const std::string& name) const;
  std::vector<std::int64_t> integers(const std::string& name) const;
  std::vector<std::string> texts(const std::string& name) const;
};

// The rows of /steps. Where a file of an earlier version lacks columns, their numbers are NaN.
std::vector<StepRow> steps_of(const Table& table);

}  // namespace mw
