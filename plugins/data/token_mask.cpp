// Reads masks of labels.
#include "token_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "meshwright/engine/text.h"

namespace mw {
namespace {

constexpr std::int64_t bytes_looked_at = 1 << 16;

void add(Problems& problems, const std::string& message, const char* hint) {
  problems.add(Stage::options, "data.mask", "mask", message, hint);
}

std::string wrong_byte(const MappedFile& file, std::int64_t at) {
  return fmt::format("{}: byte {} is {}", file.path().string(), at,
                     static_cast<int>(file.data()[at]));
}
constexpr const char* bytes_are =
    "a byte for each token: 0 if its label counts nothing, 1 if it counts";

// Reads two numbers with a comma between.
bool read_range(std::string_view line, std::int64_t& begin, std::int64_t& end) {
  const char* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, begin);
  if (first.ec != std::errc() || first.ptr == last || *first.ptr != ',') return false;
  const auto second = std::from_chars(first.ptr + 1, last, end);
  return second.ec == std::errc() && second.ptr == last;
}

}  // namespace

TokenMask::TokenMask(const std::vector<std::filesystem::path>& files, std::int64_t tokens,
                     Problems& problems) {
  for (const std::filesystem::path& path : files) {
    files_.emplace_back(path);
    const std::string ending = path.extension().string();
    is_table_ = is_table_ || ending == ".csv" || ending == ".CSV";
  }
  if (is_table_ && files.size() > 1) {
    add(problems, fmt::format("{} and {} more files", files.front().string(), files.size() - 1),
        "one .csv with the ranges of all tokens, or files of bytes");
  } else {
    is_table_ ? read_table(problems, tokens) : check_bytes(problems, tokens);
  }
}

void TokenMask::check_bytes(Problems& problems, std::int64_t tokens) {
  for (const MappedFile& file : files_) {
    starts_.push_back(starts_.back() + file.size());
    for (std::int64_t at = 0; at < std::min(file.size(), bytes_looked_at); ++at) {
      if (file.data()[at] <= 1) continue;
      return add(problems, wrong_byte(file, at), bytes_are);
    }
  }
  if (starts_.back() == tokens) return;
  add(problems,
      fmt::format("{} {} {}, and the data have {}", files_.front().path().string(),
                  files_.size() == 1 ? "has" : "and the other files have",
                  plural(starts_.back(), "byte"), plural(tokens, "token")),
      bytes_are);
}

void TokenMask::read_table(Problems& problems, std::int64_t tokens) {
  const MappedFile& file = files_.front();
  std::string_view rest(reinterpret_cast<const char*>(file.data()),
                        static_cast<std::size_t>(file.size()));
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t size = rest.find('\n');
    std::string_view line = rest.substr(0, size);
    rest.remove_prefix(size == std::string_view::npos ? rest.size() : size + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto refuse = [&](const std::string& why) {
      add(problems, fmt::format("{}:{}: {}", file.path().string(), number, why),
          "the line begin,end, then a range of tokens that do not count in each line, sorted");
    };
    if (number == 1 && line != "begin,end")
      return refuse(fmt::format("the first line is {}", quote(readable_line(line))));
    if (number == 1 || line.empty()) continue;
    std::int64_t begin = 0, end = 0;
    if (!read_range(line, begin, end))
      return refuse(fmt::format("{} is no range", quote(readable_line(line))));
    if (begin < 0 || begin >= end || end > tokens)
      return refuse(fmt::format("tokens {} to {} of {}", begin, end, tokens));
    if (!ends_.empty() && begin < ends_.back())
      return refuse(
          fmt::format("it begins at {}, and the range before ends at {}", begin, ends_.back()));
    begins_.push_back(begin);
    ends_.push_back(end);
  }
  if (!begins_.empty()) return;
  add(problems, fmt::format("{} has no range", file.path().string()),
      "leave mask out where all tokens count");
}

bool TokenMask::counts(std::int64_t token) const {
  if (!any()) return true;
  if (is_table_) {
    const auto range =
        std::upper_bound(begins_.begin(), begins_.end(), token) - begins_.begin() - 1;
    return range < 0 || token >= ends_[static_cast<std::size_t>(range)];
  }
  const auto number = std::upper_bound(starts_.begin(), starts_.end(), token) - starts_.begin() - 1;
  const MappedFile& file = files_[static_cast<std::size_t>(number)];
  const std::int64_t at = token - starts_[static_cast<std::size_t>(number)];
  const std::uint8_t byte = file.data()[at];
  if (byte <= 1) return byte == 1;
  file.check();
  throw Error(Stage::run, "data.mask", "data", wrong_byte(file, at), bytes_are);
}

}  // namespace mw
