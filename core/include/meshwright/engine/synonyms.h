// What the field calls things that have another name here: words of PyTorch, DeepSpeed, Megatron
// and papers, as lua/meshwright/synonyms.json lists them. Messages about unknown names lead from
// them to ours.
#pragma once

#include <string>
#include <vector>

namespace mw {

struct Synonym {
  std::string words;  // what others call it: in lower case, without separators
  std::string name;   // what it is called here
  std::string text;   // how it is written; empty: by its name alone
};

// The synonym that a word is of, whose name is one of these; null: there is none. `alike` says
// whether a word is one of a synonym's.
const Synonym* synonym_of(const std::string& word, const std::vector<std::string>& names,
                          bool (*alike)(const std::string& word,
                                        const std::string& known) = nullptr);

}  // namespace mw
