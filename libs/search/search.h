// The search for the best mix of a model on a cluster: what splits what is enumerated by role, each
// candidate is priced by a closed form, and the best are planned whole and priced by events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/run_request.h"
#include "meshwright/schedule.h"
#include "predict/cluster_machine.h"
#include "predict/prediction.h"

namespace mw {

// A value of `recompute` or `offload` as scripts write it, and what it means.
struct RecomputeChoice {
  Json written;
  RecomputePolicy policy;
};
struct OffloadChoice {
  Json written;
  OffloadPolicy policy;
};

struct SearchRequest {
  // A plan of one rank, whose model, batch, sequence, precision and optimizer every candidate has.
  std::shared_ptr<const Plan> base;
  StrategySource source;
  const ClusterMachine* machine = nullptr;
  int ranks = 0;                           // that every candidate has
  std::int64_t memory = 0;                 // bytes that a rank may hold; of hosts, see the machine
  std::int64_t asked_memory = 0;           // the same as the user has it, who may ask for more than
                                           // a device has; 0: no limit
  std::vector<std::string> strategies;     // that may stand in a plan
  std::vector<std::string> schedules;      // that stages may have, where their strategy takes one
  std::vector<std::int64_t> microbatches;  // empty: powers of two that divide what a rank has
  std::vector<RecomputeChoice> recompute;
  std::vector<OffloadChoice> offload;
  // Plans that the stack's software cannot run are priced too.
  bool unsupported = false;
  int best = 5;      // how many to return
  int checked = 24;  // candidates that are planned whole, at least while that many are left
  int sampled =
      0;  // candidates planned beside these, whatever they are, to see how far the closed form errs
  // The same model with so many layers; null: it cannot be made with others.
  std::function<std::shared_ptr<const Model>(std::int64_t layers)> with_layers;
  // The options of a strategy.
  std::function<const Options&(const std::string& name)> options_of;
  // A named schedule's order. Throws Error for what it does not make.
  std::function<Schedule(const std::string& name, const ScheduleRequest& request)> schedule;
  // Chunks of a stage that it takes; 0: any number.
  std::function<int(const std::string& name)> chunks_of;
  std::function<void(const std::string& text)> progress;  // null: nobody looks
};

// A candidate that was planned whole: its numbers are those of `plan`.
struct FoundPlan {
  std::string plan;  // Plan::mix()
  Json entries;      // the same as a table
  std::int64_t microbatch = 1;
  Json recompute, offload;
  std::vector<int> layers;         // of each virtual stage, in model order; empty: one stage
  double closed_form_seconds = 0;  // of a step, as all candidates were priced
  double closed_form_bytes = 0;
  double closed_form_host_bytes = 0;  // of the node that holds most in host memory
  Prediction predicted;
  bool fits = false;
  // The nearest published step; nothing if none was published under this stack.
  std::optional<NearestMeasured> measured;
  bool beyond_measured() const { return !measured || !measured->near; }
};

struct SearchOutcome {
  std::int64_t candidates = 0;  // that were priced
  std::int64_t refused = 0;     // that the strategies or the model do not allow
  std::int64_t fitting = 0;     // of the candidates, by the closed form
  // As fast as the fastest that were planned whole, most likely too large, and not looked at.
  std::int64_t unconfirmed = 0;
  std::int64_t probes = 0;         // plans of few layers, of which the closed form has its terms
  std::vector<FoundPlan> best;     // that fit, the fastest first
  std::vector<FoundPlan> edge;     // of those planned: none has less memory and is as fast
  std::vector<FoundPlan> checked;  // all that were planned whole, in the order of the closed form
  std::vector<FoundPlan> sample;   // of what was asked for as `sampled`
  std::string why;
  std::vector<std::string> left_out;  // what the stack's software cannot run, a phrase each
  double seconds = 0;                 // all of the search
  double probing_seconds = 0;   // of a core: plans of few layers, orders of works, terms of both
  double pricing_seconds = 0;   // of a core: the sums that price candidates
  double checking_seconds = 0;  // of a core: planning the best whole
  bool interrupted = false;
  // Candidates priced in a second of a core, all that prices them included.
  double rate() const {
    return static_cast<double>(candidates) / std::max(probing_seconds + pricing_seconds, 1e-9);
  }
};

// Throws Error (plan) where no candidate is possible, or none fits, with the nearest.
SearchOutcome search(const SearchRequest& request);

}  // namespace mw
