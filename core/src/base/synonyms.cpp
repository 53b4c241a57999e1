// Finds what the field calls by another name in the list that was given.
#include "meshwright/engine/synonyms.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace mw {
namespace {

std::span<const Synonym> synonyms;

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const std::string_view one = words.substr(0, words.find(' '));
    if (one == word) return true;
    words.remove_prefix(std::min(words.size(), one.size() + 1));
  }
  return false;
}

}  // namespace

void set_synonyms(std::span<const Synonym> list) {
  synonyms = list;
}

const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names) {
  std::string joined;
  for (const char c : word) {
    if (c != '-' && c != '_' && c != ' ')
      joined += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Synonym& one : synonyms) {
    if (has_word(one.words, joined) &&
        std::find(names.begin(), names.end(), one.name) != names.end())
      return &one;
  }
  return nullptr;
}

}  // namespace mw
