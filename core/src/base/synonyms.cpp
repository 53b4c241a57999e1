// Finds what the field calls by another name in the list that was given.
#include "meshwright/engine/synonyms.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace mw {
namespace {

std::span<const Synonym> synonyms;

template <class Alike>
bool has_word(const char* words, const Alike& alike) {
  std::istringstream list(words);
  for (std::string one; list >> one;)
    if (alike(one)) return true;
  return false;
}

}  // namespace

void set_synonyms(std::span<const Synonym> list) {
  synonyms = list;
}

const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names,
                          bool (*alike)(const std::string& word, const std::string& known)) {
  std::string joined;
  for (const char c : word) {
    if (c != '-' && c != '_' && c != ' ')
      joined += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Synonym& one : synonyms) {
    const auto is_word = [&](const std::string& known) {
      return alike == nullptr ? known == joined : alike(joined, known);
    };
    if (std::find(names.begin(), names.end(), one.name) != names.end() &&
        has_word(one.words, is_word))
      return &one;
  }
  return nullptr;
}

}  // namespace mw
