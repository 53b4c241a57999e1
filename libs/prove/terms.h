// The terms that gradients are sums of, and the set of terms in each value's complete gradient.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "meshwright/graph.h"

namespace mw::proving {

// A multiset of terms, as its number in TermSets. 0: the empty one.
using TermSet = int;

// All multisets that a proof meets, each kept once, so that to compare two is to compare numbers.
class TermSets {
 public:
  TermSets();
  TermSet single(int term) {
    const auto at = static_cast<std::size_t>(term);
    if (at >= singles_.size()) singles_.resize(at + 1, 0);
    if (singles_[at] == 0) singles_[at] = number({term});
    return singles_[at];
  }
  TermSet join(TermSet a, TermSet b);
  const std::vector<int>& terms(TermSet set) const { return sets_[set]; }  // ascending

 private:
  TermSet number(std::vector<int> terms);

  std::vector<std::vector<int>> sets_;
  std::vector<TermSet> singles_;  // by term: the set of that term alone; 0: not made yet
  std::unordered_multimap<std::size_t, int> by_digest_;
  std::unordered_map<std::uint64_t, TermSet> joined_;
};

// The terms of a graph's gradients. Each gradient that an op's backward makes of an operand is a
// term, and so is the seed of the losses. The complete gradient of a value is the sum of the terms
// of all its uses on a way to a loss. Where an operand's gradient is the output's gradient,
// unchanged, that use has the terms of the output.
class Gradients {
 public:
  explicit Gradients(const Graph& graph);

  int term(int op, int input) const { return first_[op] + input; }
  int seed() const { return first_.back(); }
  // The term that stands for a loss in the step's sum of losses.
  int loss(int value) const { return first_.back() + 1 + value; }
  TermSet complete(int value) const { return complete_[value]; }
  // Whether the op has a backward to run: it is differentiable, and an output leads to a loss.
  bool goes_back(int op) const { return goes_back_[op]; }
  // "layers.31.mlp.down, input 1".
  std::string text(int term) const;

  TermSets sets;

 private:
  const Graph& graph_;
  std::vector<int> first_;  // by op: its first term; last element: the number of terms of all ops
  std::vector<TermSet> complete_;
  std::vector<bool> goes_back_;
};

}  // namespace mw::proving
