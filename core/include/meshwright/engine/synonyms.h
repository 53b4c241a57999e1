// What the field calls things that have another name here.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mw {

struct Synonym {
  const char* words;  // what others call it: in lower case, without separators
  const char* name;   // what it is called here
  const char* text;   // how it is written; "": by its name alone
};

// Gives the list that is searched, which lasts as long as the process: before anything is read.
void set_synonyms(std::span<const Synonym> list);

// The synonym that a word is of, whose name is one of these; null: there is none. `alike` says
// whether a word is one of a synonym's.
const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names,
                          bool (*alike)(const std::string& word,
                                        const std::string& known) = nullptr);

}  // namespace mw
