// Reads masks of labels.
#include "token_mask.h"

#include <fmt/format.h>

#include <algorithm>

#include "meshwright/engine/text.h"
#include "number_table.h"

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
  const NumberTable table(files_.front().path(), {"begin", "end"}, 0, "data.mask", "mask");
  begins_ = table.columns[0];
  ends_ = table.columns[1];
  for (std::size_t row = 0; row < begins_.size(); ++row) {
    const auto refuse = [&](const std::string& why) {
      add(problems, fmt::format("{}:{}: {}", files_.front().path().string(), table.lines[row], why),
          "the line begin,end, then a range of tokens that do not count in each line, sorted");
    };
    if (begins_[row] >= ends_[row] || ends_[row] > tokens)
      return refuse(fmt::format("tokens {} to {} of {}", begins_[row], ends_[row], tokens));
    if (row > 0 && begins_[row] < ends_[row - 1])
      return refuse(fmt::format("it begins at {}, and the range before ends at {}", begins_[row],
                                ends_[row - 1]));
  }
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
