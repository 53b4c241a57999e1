// Reads tables of documents' lengths, and draws lengths.
#include "documents.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string_view>

#include "common/mapped_file.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& message, const std::string& hint) {
  throw Error(Stage::options, "data.documents", key, message, hint);
}

// Reads `count` numbers with commas between; an empty list where the line has anything else.
std::vector<std::int64_t> numbers_of(std::string_view line, std::size_t count) {
  std::vector<std::int64_t> numbers;
  const char *at = line.data(), *const end = at + line.size();
  while (numbers.size() < count) {
    const auto read = std::from_chars(at, end, numbers.emplace_back());
    const bool last = numbers.size() == count;
    if (read.ec != std::errc() || numbers.back() < 1 || (read.ptr == end) != last) return {};
    if (!last && *read.ptr != ',') return {};
    at = read.ptr + 1;
  }
  return numbers;
}

// The two numbers of `given`, a list of them or a table with these names.
std::pair<double, double> pair_of(const Json& given, const char* first, const char* second) {
  const auto number = [&](const char* name, std::size_t at) {
    if (given.is_object() && given.contains(name) && given.at(name).is_number())
      return given.at(name).get<double>();
    if (given.is_array() && given.size() == 2 && given[at].is_number())
      return given[at].get<double>();
    return std::nan("");
  };
  return {number(first, 0), number(second, 1)};
}

}  // namespace

CountTable::CountTable(const std::filesystem::path& path, const std::vector<std::string>& names,
                       const char* key)
    : columns(names.size()) {
  const MappedFile file(path);
  std::string_view rest(reinterpret_cast<const char*>(file.data()),
                        static_cast<std::size_t>(file.size()));
  const std::string header = fmt::format("{}", fmt::join(names, ","));
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t size = rest.find('\n');
    std::string_view line = rest.substr(0, size);
    rest.remove_prefix(size == std::string_view::npos ? rest.size() : size + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto wrong = [&](const std::string& why) {
      refuse(key, fmt::format("{}:{}: {}", path.string(), number, why),
             fmt::format("the line {}, then whole numbers of 1 or more in each line", header));
    };
    if (number == 1 && line != header)
      wrong(fmt::format("the first line is {}", quote(readable_line(line))));
    if (number == 1 || line.empty()) continue;
    const std::vector<std::int64_t> numbers = numbers_of(line, names.size());
    if (numbers.empty()) wrong(fmt::format("{} is no {}", quote(readable_line(line)), header));
    for (std::size_t c = 0; c < numbers.size(); ++c) columns[c].push_back(numbers[c]);
  }
  file.check();
  if (columns.front().empty())
    refuse(key, path.string() + " has no line of numbers",
           fmt::format("the line {}, then whole numbers of 1 or more in each line", header));
}

LengthDistribution::LengthDistribution(const Json& given, const char* key, const Values& values) {
  if (given.is_string()) {
    const CountTable table(values.find_file(given.get<std::string>()), {"length", "count"}, key);
    kind_ = Kind::table;
    lengths_ = table.columns[0];
    for (const std::int64_t count : table.columns[1])
      counts_.push_back(count + (counts_.empty() ? 0 : counts_.back()));
    return;
  }
  if (const auto length = whole_number(given)) {
    first_ = second_ = static_cast<double>(*length);
  } else if (given.is_object() && given.contains("uniform")) {
    std::tie(first_, second_) = pair_of(given.at("uniform"), "least", "most");
  } else if (given.is_object() && given.contains("lognormal")) {
    kind_ = Kind::lognormal;
    std::tie(first_, second_) = pair_of(given.at("lognormal"), "median", "sigma");
  } else {
    first_ = second_ = std::nan("");
  }
  constexpr double most = 1e15;
  const bool fits = kind_ == Kind::lognormal ? second_ >= 0 && second_ <= 10 : second_ >= first_;
  if (fits && first_ >= 1 && first_ <= most && second_ <= most) return;
  refuse(key, fmt::format("{} is no distribution of lengths of 1 token or more", lua_text(given)),
         "a number of tokens, mw.uniform { least = 16, most = 512 }, mw.lognormal { median = 600, "
         "sigma = 1.2 }, or a .csv of length,count");
}

std::int64_t LengthDistribution::draw(std::uint64_t bits) const {
  const double uniform = static_cast<double>(bits >> 11) / 0x1p53;
  if (kind_ == Kind::table) {
    const auto at = static_cast<std::int64_t>(uniform * static_cast<double>(counts_.back()));
    return lengths_[std::upper_bound(counts_.begin(), counts_.end(), at) - counts_.begin()];
  }
  if (kind_ == Kind::uniform)
    return static_cast<std::int64_t>(first_ + std::floor(uniform * (second_ - first_ + 1)));
  // A normal number from two uniform ones [Box and Muller 1958].
  const double angle = 2 * std::numbers::pi * static_cast<double>(mix64(bits) >> 11) / 0x1p53;
  const double normal = std::sqrt(-2 * std::log(1 - uniform)) * std::cos(angle);
  const double length = std::round(first_ * std::exp(second_ * normal));
  return static_cast<std::int64_t>(std::clamp(length, 1.0, 1e15));
}

}  // namespace mw
