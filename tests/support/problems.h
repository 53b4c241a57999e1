// What went wrong, as tests ask for it: by code and key, never by its words.
#pragma once

#include <string>

#include "meshwright/error.h"

namespace mw::test {

// "option.range plan[2].ways; axis.idle plan[1]": of each its code, and its key if it has one;
// "none" of none.
inline std::string codes(const std::vector<Problem>& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    text += (text.empty() ? "" : "; ") + problem.code;
    if (!problem.key.empty()) text += " " + problem.key;
  }
  return text.empty() ? "none" : text;
}
inline std::string codes(const Problems& problems) {
  return codes(problems.list());
}

// Those that `body` throws.
template <class Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return codes(error.problems());
  }
  return "none";
}

}  // namespace mw::test
