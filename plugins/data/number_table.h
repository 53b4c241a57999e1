// Tables of whole numbers in files of CSV.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mw {

// A table in a file. The first line has the columns' names with commas between; each further line
// has a number of each column.
struct NumberTable {
  std::vector<std::vector<std::int64_t>> columns;
  std::vector<std::int64_t> lines;  // the line of the file, from 1, that each row stands in
  std::string digest;               // a digest of the file, in hexadecimal

  // Throws Error (options) with `code`, the key `key`, the file and the line for what is no such
  // table, for a number below `least`, and where there is no row.
  NumberTable(const std::filesystem::path& path, const std::vector<std::string>& names,
              std::int64_t least, const char* code, const char* key);
};

}  // namespace mw
