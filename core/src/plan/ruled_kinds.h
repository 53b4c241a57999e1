// Which rules hold for an op, and which op before it they hold for alike: ops of one kind for which
// the same rules hold are placed alike, so that a model's layers are derived once and not each.
#pragma once

#include <unordered_map>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/strategy.h"

namespace mw {

class RuledKinds {
 public:
  // Keeps references to all of them.
  RuledKinds(const Graph& graph, const std::vector<Rule>& rules,
             const std::vector<RotationRule>& rotations);

  struct Held {
    // The first op of this one's kind for which the same rules hold; itself where there is none.
    int first = -1;
    std::vector<const Rule*> rules;  // over dims of the op that need not be whole
    std::vector<const RotationRule*> rotations;
  };
  // Asks each rule that may hold for the op (Rule::where), one after the other. The result is good
  // until the next call.
  const Held& ask(int op);

 private:
  struct Kind {
    std::vector<const Rule*> rules;  // that hold by the op's dims
    bool shared = true;
    std::vector<Held> known;
  };
  Kind make(int op) const;

  const Graph& graph_;
  const std::vector<Rule>& rules_;
  const std::vector<RotationRule>& rotations_;
  std::unordered_map<int, Kind> kinds_;  // by Graph::kind
  Held held_;
};

}  // namespace mw
