// Reads and prints byte sizes as people write them ("8MiB"), and finds the nearest of several
// words for a misspelt one.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

#include "meshwright/engine/synonyms.h"
#include "meshwright/options.h"

namespace mw {
namespace {

// A name without its case and its kind of separators, which do not matter for a misspelt name.
std::string folded(const std::string& word) {
  std::string out;
  for (const char c : word) {
    out +=
        c == '-' || c == ' ' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

// Edit distance in which a swap of neighbours is one edit (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::optional<std::int64_t> parse_bytes(const std::string& text) {
  static const std::map<std::string, double> units = {
      {"", 1},         {"B", 1},        {"KB", 1e3},     {"MB", 1e6},
      {"GB", 1e9},     {"TB", 1e12},    {"KiB", 1024.0}, {"MiB", 1024.0 * 1024},
      {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PB", 1e15},    {"EB", 1e18},
      {"PiB", 0x1p50}, {"EiB", 0x1p60}, {"bytes", 1}};
  // strtod would take "inf", "nan", "0x10" and leading signs too.
  const std::size_t digits = text.find_first_not_of("0123456789.");
  if (digits == 0 || text.empty()) return std::nullopt;
  const std::string number = text.substr(0, digits);
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (end != number.c_str() + number.size()) return std::nullopt;
  std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  unit.erase(0, unit.find_first_not_of(' '));
  if (const auto last = unit.find_last_not_of(' '); last != std::string::npos) unit.erase(last + 1);
  const auto found = std::find_if(units.begin(), units.end(), [&](const auto& entry) {
    return folded(entry.first) == folded(unit);
  });
  if (found == units.end()) return std::nullopt;
  const double bytes = std::round(value * found->second);
  if (!(bytes < 0x1p63)) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::string format_bytes(double bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  // 1023.96 KiB would print as "1024 KiB": such a value goes to the next unit.
  while (std::abs(bytes) >= 1023.5 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  const double size = std::abs(bytes);
  std::string number = fmt::format("{:.{}f}", bytes, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
  if (number.find('.') != std::string::npos) {
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return number + " " + units[unit];
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string given = folded(word);
  if (given.empty()) return "";
  if (const Synonym* other = synonym_of(word, candidates)) return other->name;
  std::string best;
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : candidates) {
    const std::string known = folded(candidate);
    const std::size_t longer = std::max(given.size(), known.size());
    const std::size_t allowed = longer <= 3 ? 1 : longer <= 6 ? 2 : longer / 3;
    std::size_t edits = distance(given, known);
    // A word cut short or drawn out ("optim", "layers_count") is near however much is missing.
    const std::size_t common = std::min(given.size(), known.size());
    if (common >= 3 && given.compare(0, common, known, 0, common) == 0) {
      edits = std::min(edits, allowed);
    }
    // Nothing in common is no likeness: "ab" is not near "c".
    if (edits > allowed || edits >= longer) continue;
    // If two candidates are equally near, the one with the same first letter wins: people seldom
    // misspell the first letter.
    const bool begins =
        !best.empty() && known.front() == given.front() && folded(best).front() != given.front();
    if (edits < least || (edits == least && begins)) {
      least = edits;
      best = candidate;
    }
  }
  if (!best.empty()) return best;
  const auto misspelt = [](const std::string& one, const std::string& known) {
    return known.size() > 4 && distance(one, known) <= std::min<std::size_t>(2, known.size() / 4);
  };
  const Synonym* other = synonym_of(word, candidates, misspelt);
  return other != nullptr ? other->name : "";
}

}  // namespace mw
