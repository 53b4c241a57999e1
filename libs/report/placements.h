// Who holds what: for each parameter its placement, and the shape that each class of ranks holds.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"

namespace mw {

// "layers.3.q" -> "layers.*.q"; other names as they are.
std::string of_any_layer(const std::string& name);

// A list with an entry for each stage: { stage, classes: [{ first_rank, ranks }], parameters: [{
// name, dims, shape, placement, local: [shape on each class], in_parts }] }.
Json placements_json(const Plan& plan);
std::string placements_text(const Plan& plan);

// Parameters of one of those stages; layers in which all is alike stand in one row.
struct PlacementRow {
  std::string first, last;  // names, alike but for the layer
  int count = 0;
  std::vector<std::string> dims;
  std::string placement, in_parts;
  std::vector<std::string> shapes;  // of each class: "32 x 64"
  std::string name() const;         // "layers.0.q … layers.3.q (4)"
};
std::vector<PlacementRow> placement_rows(const Json& stage);

}  // namespace mw
