// Draws documents' lengths from a distribution.
#include "length_distribution.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"
#include "number_table.h"

namespace mw {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& message, const std::string& hint) {
  throw Error(Stage::options, "data.documents", key, message, hint);
}

// The two numbers of `given`, a list of them or a table with these names; else NaN.
std::pair<double, double> pair_of(const Json& given, const char* first, const char* second) {
  const bool list = given.is_array() && given.size() == 2;
  const bool table =
      given.is_object() && given.size() == 2 && given.contains(first) && given.contains(second);
  const auto number = [&](const char* name, std::size_t at) {
    if (!list && !table) return std::nan("");
    const Json& one = list ? given[at] : given.at(name);
    return one.is_number() ? one.get<double>() : std::nan("");
  };
  return {number(first, 0), number(second, 1)};
}

}  // namespace

LengthDistribution::LengthDistribution(const Json& given, const char* key, const Values& values) {
  if (given.is_string()) {
    const NumberTable table(values.find_file(given.get<std::string>()), {"length", "count"}, 1,
                            "data.documents", key);
    kind_ = Kind::table;
    digest_ = table.digest;
    lengths_ = table.columns[0];
    for (const std::int64_t count : table.columns[1]) {
      const std::int64_t before = counts_so_far_.empty() ? 0 : counts_so_far_.back();
      constexpr std::int64_t most = std::int64_t{1}
                                    << 53;  // a double holds every whole number so far
      if (count > most - before)
        refuse(key, given.get<std::string>() + ": the counts sum to more than 2^53",
               "give counts in a larger unit");
      counts_so_far_.push_back(before + count);
    }
    return;
  }
  if (const auto length = whole_number(given)) {
    first_ = second_ = static_cast<double>(*length);
  } else if (given.is_object() && given.size() == 1 && given.contains("uniform")) {
    std::tie(first_, second_) = pair_of(given.at("uniform"), "least", "most");
  } else if (given.is_object() && given.size() == 1 && given.contains("lognormal")) {
    kind_ = Kind::lognormal;
    std::tie(first_, second_) = pair_of(given.at("lognormal"), "median", "sigma");
  } else {
    first_ = second_ = std::nan("");
  }
  constexpr double most = 1e15;
  const bool fits = kind_ == Kind::lognormal ? second_ >= 0 && second_ <= 10
                                             : second_ >= first_ && first_ == std::floor(first_) &&
                                                   second_ == std::floor(second_);
  if (fits && first_ >= 1 && first_ <= most && second_ <= most) return;
  refuse(key, fmt::format("{} is no distribution of lengths of 1 token or more", lua_text(given)),
         "a number of tokens, mw.uniform { least = 16, most = 512 }, mw.lognormal { median = 600, "
         "sigma = 1.2 }, or a .csv of length,count");
}

std::int64_t LengthDistribution::draw(std::uint64_t bits) const {
  const double uniform = static_cast<double>(bits >> 11) / 0x1p53;
  if (kind_ == Kind::table) {
    const auto at = static_cast<std::int64_t>(uniform * static_cast<double>(counts_so_far_.back()));
    return lengths_[std::upper_bound(counts_so_far_.begin(), counts_so_far_.end(), at) -
                    counts_so_far_.begin()];
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
