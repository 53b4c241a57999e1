// Looks up synonyms in the list that ships with the program.
#include "meshwright/engine/synonyms.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>

#include "meshwright/engine/files.h"
#include "meshwright/json.h"

namespace mw {
namespace {

// The shipped list of synonyms; empty if its file is missing.
const std::vector<Synonym>& synonyms() {
  static const std::vector<Synonym> list = [] {
    std::ifstream file(share_folder() / "lua/meshwright/synonyms.json");
    const Json rows = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    std::vector<Synonym> read;
    for (const Json& row : rows.is_array() ? rows : Json::array())
      read.push_back({row.at(0), row.at(1), row.size() > 2 ? row.at(2) : ""});
    return read;
  }();
  return list;
}

template <class Alike>
bool has_word(const std::string& words, const Alike& alike) {
  std::istringstream list(words);
  for (std::string one; list >> one;)
    if (alike(one)) return true;
  return false;
}

}  // namespace

const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names,
                          bool (*alike)(const std::string& word, const std::string& known)) {
  std::string joined;
  for (const char c : word) {
    if (c != '-' && c != '_' && c != ' ')
      joined += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Synonym& one : synonyms()) {
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
