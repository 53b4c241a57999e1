// Which ops of a program are alike: a model's layers repeat them, and what one costs on a rank all
// of them cost.
#pragma once

#include <vector>

#include "meshwright/program.h"

namespace mw {

class LikeOps {
 public:
  // Keeps a reference to the program.
  explicit LikeOps(const Program& program);
  // Of the ops asked for so far that are of this one's kind (Graph::kind) and have its cut, the
  // first: this one where there is none.
  int first(int op);
  // Numbers these first ones from 0, in the order in which they were asked for.
  int number(int op) { return number_[first(op)]; }

 private:
  bool cut_alike(int a, int b) const;

  const Program& program_;
  std::vector<int> first_;            // of each op; -1: not asked for
  std::vector<int> number_;           // of those that are the first
  std::vector<int> of_kind_, other_;  // the last one of a kind, and the one before it; -1: none
  int count_ = 0;
};

}  // namespace mw
