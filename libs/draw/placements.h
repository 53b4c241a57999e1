// Tables of parameters' placements, and of their shapes on each class of ranks.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"

namespace mw {

// Replaces the number of the layer: "layers.3.q" becomes "layers.*.q". Other names stay unchanged.
std::string of_any_layer(const std::string& name);

// A list with an entry for each stage: { stage, classes: [{ first_rank, ranks }], parameters: [{
// name, dims, shape, placement, local: [shape on each class], in_parts }] }.
Json placements_json(const Plan& plan);
std::string placements_text(const Plan& plan);

// A row for parameters of a stage that differ only in their layer.
struct PlacementRow {
  std::string first, last;  // names of the first and the last of these parameters
  int count = 0;            // the number of these parameters
  std::vector<std::string> dims;
  std::string placement, in_parts;
  std::vector<std::string> shapes;  // the shape on each class of ranks: "32 x 64"
  std::string name() const;         // "layers.0.q … layers.3.q (4)"
};
std::vector<PlacementRow> placement_rows(const Json& stage);

}  // namespace mw
