// Gives each metric of a script a place of its own under /series, whatever characters its name
// has.
#include "record/series_names.h"

#include <fmt/format.h>

#include <cctype>
#include <vector>

namespace mw {
namespace {

std::string coded(char c) {
  return fmt::format("%{:02X}", static_cast<unsigned char>(c));
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// What would be read as a code is coded itself, so that each place has one name.
std::string escaped(const std::string& part) {
  if (part.empty()) return "%";
  if (part == "%") return coded('%');
  if (part == ".") return coded('.');
  if (part == "..") return coded('.') + coded('.');
  std::string text;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const bool code = part[i] == '%' && i + 2 < part.size() &&
                      std::isxdigit(static_cast<unsigned char>(part[i + 1])) &&
                      std::isxdigit(static_cast<unsigned char>(part[i + 2]));
    text += code || part[i] == '\0' ? coded(part[i]) : std::string(1, part[i]);
  }
  return text;
}

std::string all_coded(const std::string& name) {
  std::string text;
  for (const char c : name) text += coded(c);
  return text;
}

}  // namespace

const std::string& SeriesNames::place_of(const std::string& name) {
  const auto known = places_.find(name);
  if (known != places_.end()) return known->second;
  std::string place;
  std::vector<std::string> groups;
  for (const std::string& part : parts_of(name)) {
    if (!place.empty()) {
      groups.push_back(place);
      place += "/";
    }
    place += escaped(part);
  }
  bool free = name != "step" && name.rfind("step/", 0) != 0 && taken_.count(place) == 0;
  for (const std::string& group : groups) {
    const auto there = taken_.find(group);
    free = free && (there == taken_.end() || !there->second);
  }
  if (free) {
    for (const std::string& group : groups) taken_.emplace(group, false);
  } else {
    place = all_coded(name);
  }
  taken_[place] = true;
  return places_[name] = place;
}

}  // namespace mw
