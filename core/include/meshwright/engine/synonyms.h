// Looks up names of PyTorch, DeepSpeed, Megatron and papers for things that have another name in
// Meshwright, as lua/meshwright/synonyms.json lists them. Messages about unknown names suggest
// Meshwright's name.
#pragma once

#include <string>
#include <vector>

namespace mw {

struct Synonym {
  std::string words;  // names elsewhere, separated by spaces: in lower case, without "-" and "_"
  std::string name;   // Meshwright's name
  std::string text;   // how to write it in a script; empty: by its name alone
};

// Finds the synonym that has `word` and whose name is one of `names`; null: there is none. `alike`:
// whether `word` matches a known word; null: if they are equal.
const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names,
                          bool (*alike)(const std::string& word,
                                        const std::string& known) = nullptr);

}  // namespace mw
