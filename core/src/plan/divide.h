// Ops that need a dim whole and can be computed in parts of it (OpTraits::divides).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "meshwright/graph.h"
#include "meshwright/strategy.h"

namespace mw {

// A model's graph in which the ops that rules would cut, if they did not need the dim whole, are
// computed in parts; with the strategies' rules and orders, also for the dims of parts.
struct DividedGraph {
  std::shared_ptr<const Graph> graph;  // the model's own, if nothing is divided
  std::vector<Rule> rules;
  std::map<Dim, std::vector<Range>> order;
  int document_parts = 1;  // Draft::part_documents
};
DividedGraph divide(const std::shared_ptr<const Graph>& graph, const Draft& draft);

}  // namespace mw
