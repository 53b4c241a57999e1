// Reads tables of whole numbers.
#include "number_table.h"

#include <fmt/ranges.h>

#include <charconv>
#include <string_view>

#include "common/mapped_file.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

// Reads `count` numbers of at least `least` with commas between; an empty list where the line has
// anything else.
std::vector<std::int64_t> numbers_of(std::string_view line, std::size_t count, std::int64_t least) {
  std::vector<std::int64_t> numbers;
  const char *at = line.data(), *const end = at + line.size();
  while (numbers.size() < count) {
    const auto read = std::from_chars(at, end, numbers.emplace_back());
    const bool last = numbers.size() == count;
    if (read.ec != std::errc() || numbers.back() < least || (read.ptr == end) != last) return {};
    if (!last && *read.ptr != ',') return {};
    at = read.ptr + 1;
  }
  return numbers;
}

}  // namespace

NumberTable::NumberTable(const std::filesystem::path& path, const std::vector<std::string>& names,
                         std::int64_t least, const char* code, const char* key)
    : columns(names.size()) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    throw Error(Stage::options, "file.missing", key,
                fmt::format("there is no such file as {}", path.string()),
                "paths are looked for here, beside the script and in the folder above it");
  const MappedFile file(path);
  std::string_view rest(reinterpret_cast<const char*>(file.data()),
                        static_cast<std::size_t>(file.size()));
  const std::string header = fmt::format("{}", fmt::join(names, ","));
  const auto refuse = [&](std::int64_t line, const std::string& why) {
    throw Error(
        Stage::options, code, key, fmt::format("{}:{}: {}", path.string(), line, why),
        fmt::format("the line {}, then whole numbers of {} or more in each line", header, least));
  };
  std::int64_t number = 0;
  while (!rest.empty()) {
    ++number;
    const std::size_t size = rest.find('\n');
    std::string_view line = rest.substr(0, size);
    rest.remove_prefix(size == std::string_view::npos ? rest.size() : size + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line != header)
      refuse(1, fmt::format("the first line is {}", quote(readable_line(line))));
    if (number == 1 || line.empty()) continue;
    const std::vector<std::int64_t> row = numbers_of(line, names.size(), least);
    if (row.empty()) refuse(number, fmt::format("{} is no {}", quote(readable_line(line)), header));
    for (std::size_t c = 0; c < row.size(); ++c) columns[c].push_back(row[c]);
    lines.push_back(number);
  }
  digest = fmt::format("{:016x}", file.digest(most_digested));
  file.check();
  if (lines.empty()) refuse(number, "there is no line of numbers");
}

}  // namespace mw
