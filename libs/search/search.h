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
  int ranks = 0;            // ranks of every candidate
  std::int64_t memory = 0;  // bytes that a rank may hold; the machine says what a host may
  // Bytes that the user lets a rank hold, which may be more than a device has; 0: no limit.
  std::int64_t asked_memory = 0;
  std::vector<std::string> strategies;  // names of the strategies that plans may have
  // Names of the schedules for stages whose strategy takes one.
  std::vector<std::string> schedules;
  // Sizes to try; empty: powers of two that divide a rank's sequences.
  std::vector<std::int64_t> microbatches;
  std::vector<RecomputeChoice> recompute;
  std::vector<OffloadChoice> offload;
  // Plans that the stack's software cannot run are priced too.
  bool unsupported = false;
  int best = 5;      // how many plans to return
  int checked = 24;  // least number of candidates to plan whole, if there are so many
  // Candidates that are planned whole besides, whatever they are, to see how far the closed form
  // errs.
  int sampled = 0;
  // Makes the base's model with so many layers; null: it cannot be made with others.
  std::function<std::shared_ptr<const Model>(std::int64_t layers)> with_layers;
  // The options that a strategy declares.
  std::function<const Options&(const std::string& name)> options_of;
  // Makes the order of a named schedule. Throws Error for what the schedule does not make.
  std::function<Schedule(const std::string& name, const ScheduleRequest& request)> schedule;
  // Chunks of a stage that a named schedule takes; 0: any number.
  std::function<int(const std::string& name)> chunks_of;
  // Called with texts for people; null: nobody looks.
  std::function<void(const std::string& text)> progress;
};

// A candidate that was planned whole: its numbers are those of `plan`.
struct FoundPlan {
  std::string plan;  // Plan::mix()
  Json entries;      // entries of the plan, as a table
  std::int64_t microbatch = 1;
  Json recompute, offload;
  std::vector<int> layers;         // layers of each virtual stage, in model order; empty: one stage
  double closed_form_seconds = 0;  // seconds of a step by the closed form
  double closed_form_bytes = 0;
  double closed_form_host_bytes = 0;  // bytes on the node that holds most in host memory
  Prediction predicted;
  bool fits = false;
  // The nearest published step; nothing if none was published under this stack.
  std::optional<NearestMeasured> measured;
  bool beyond_measured() const { return !measured || !measured->near; }
};

struct SearchOutcome {
  std::int64_t candidates = 0;  // candidates that were priced
  std::int64_t refused = 0;     // candidates that the strategies or the model do not allow
  std::int64_t fitting = 0;     // candidates that fit by the closed form
  // Candidates as fast as the fastest that were planned whole, but most likely too large and not
  // planned.
  std::int64_t unconfirmed = 0;
  // Plans of few layers, off which the terms of the closed form were read.
  std::int64_t probes = 0;
  std::vector<FoundPlan> best;     // plans that fit: the recommended one, then the fastest first
  std::vector<FoundPlan> edge;     // plans that no other one beats in both time and memory
  std::vector<FoundPlan> checked;  // all plans made whole, in the order of the closed form
  std::vector<FoundPlan> sample;   // plans made for SearchRequest::sampled
  std::string why;
  std::vector<std::string> left_out;  // what the stack's software cannot run, a phrase each
  double seconds = 0;
  // Core seconds for plans of few layers, orders of works, and the terms of both.
  double probing_seconds = 0;
  double pricing_seconds = 0;   // core seconds for the sums that price candidates
  double checking_seconds = 0;  // core seconds for planning the best candidates whole
  bool interrupted = false;
  // Candidates priced in a second of a core, all that prices them included.
  double rate() const {
    return static_cast<double>(candidates) / std::max(probing_seconds + pricing_seconds, 1e-9);
  }
};

// Runs the search. Throws Error (plan) where no candidate is possible, or where none fits; the
// message then names the nearest.
SearchOutcome search(const SearchRequest& request);

}  // namespace mw
