// Which ops of a program are alike: a model's layers repeat them, and what one costs on a rank all
// of them cost.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "meshwright/program.h"

namespace mw {

class LikeOps {
 public:
  // Keeps a reference to the program.
  explicit LikeOps(const Program& program);
  // Of the ops asked for so far that have this one's type, dims and cut, the first: this one where
  // there is none.
  int first(int op);

 private:
  std::size_t digest(int op) const;
  bool alike(int a, int b) const;

  const Program& program_;
  std::vector<int> first_;  // of each op; -1: not asked for
  std::unordered_multimap<std::size_t, int> kinds_;
};

}  // namespace mw
