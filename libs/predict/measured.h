// The configurations with a published step time under a stack, and how near a plan is to them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/mesh.h"

namespace mw {

// The sizes by which plans and published steps are compared: the model's parameters, devices, and
// ways by role.
struct PublishedStep {
  double parameters = 0, devices = 0;
  std::array<double, 4> ways = {1, 1, 1, 1};  // in the order of `measured_roles`
  std::string table;                          // table in tests/reference that has the step

  Json to_json() const;
};
inline constexpr Role measured_roles[] = {Role::layers, Role::model, Role::sequence, Role::experts};

// "175 B parameters on 384 devices, layers 12 ways, model 8 ways (narayanan2-ptdp)".
std::string measured_text(const PublishedStep& step);

std::vector<PublishedStep> read_measured(const Json& list, const std::string& path,
                                         Problems& problems);

PublishedStep sizes_of(const Plan& plan);

struct NearestMeasured {
  PublishedStep step;
  // Each number of the step is within a factor of two of the plan's, and both split the same
  // things.
  bool near = false;
};
// The measured step with the smallest sum of the logarithms of all ratios, those that are near
// before all others; nothing where nothing was measured.
std::optional<NearestMeasured> nearest_measured(const std::vector<PublishedStep>& measured,
                                                const PublishedStep& sizes);

}  // namespace mw
