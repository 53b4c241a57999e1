// Replicas of the model that differ: groups of ranks each train a replica by themselves, on their
// part of the batch, and outer steps bring the replicas together (Local SGD, Stich 2019; DiLoCo,
// Douillard et al. 2023; its streaming form, Douillard et al. 2025).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/dtype.h"
#include "meshwright/optimizer.h"

namespace mw {

// Ranks whose coordinates on `atoms` differ train different replicas: each has its own trained
// parameters and optimizer state. The anchor, the parameters after the last outer step, is the same
// on all replicas. An outer step moves the anchor by the outer gradient, which is the anchor minus
// the mean of the replicas' parameters, and all replicas go on from the anchor.
struct OuterSteps {
  std::vector<int> atoms;
  std::int64_t every = 1;  // steps from one outer step of a fragment to its next one
  // The buckets are brought together in so many groups (Bucket::fragment), whose outer steps are
  // every / fragments steps apart.
  int fragments = 1;
  // Steps from the start of the sum of outer gradients to the outer step itself; less than `every`.
  std::int64_t delay = 0;
  // The share of its own parameters that a replica keeps in an outer step: they become
  // keeps * own + (1 - keeps) * anchor.
  double keeps = 0;
  std::optional<Dtype> dtype;  // in which outer gradients are summed; none: the optimizer's
  // The outer optimizer, and how it updates the anchor by the outer gradient; it has `apply` alone.
  // Null: the anchor becomes the mean of the replicas, as it always does for counters
  // (Value::counts).
  std::shared_ptr<const Optimizer> optimizer;
  UpdateRule rule;
};

// What happens after a step: the sums of the outer gradients of a fragment begin, or the outer step
// awaits them and ends, or both.
struct OuterEvent {
  int fragment = 0;
  bool begins = false, ends = false;
  std::int64_t count = 0;  // outer steps of the fragment before this one
  bool same_kind(const OuterEvent& other) const {
    return fragment == other.fragment && ends == other.ends;
  }
};

// The events after a step, which counts from 0, in their order.
std::vector<OuterEvent> outer_events(const OuterSteps& outer, std::int64_t step);
// The rule by which an outer step updates a bucket's anchor.
const UpdateRule& rule_of_outer_step(const struct Program& program, int bucket);
// The names and slots of the tensors that outer steps keep of a bucket from step to step; empty
// where no replicas of the bucket differ.
std::vector<std::pair<std::string, int>> states_of_outer_steps(const struct Program& program,
                                                               const struct Bucket& bucket);

// All kinds of events that there are; their `count` is 0.
std::vector<OuterEvent> kinds_of_outer_events(const OuterSteps& outer);

}  // namespace mw
