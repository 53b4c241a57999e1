// The closed form: a candidate's step and memory, as sums of the terms of its parts.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "search/terms.h"

namespace mw {

// A mix: indices into the space's sides, their ways, and how the batch is split. Ways of one: none.
struct SearchCandidate {
  std::int64_t microbatch = 1;
  double seconds = 0, bytes = 0;  // of a step of balanced stages; of the rank that holds most
  double host = 0;                // bytes in host memory of the node that holds most
  std::int32_t inner = 0, stages = 1;
  DataWays split;
  std::int16_t data = -1, stages_side = -1, policy = 0;

  // Microbatches of a step of so many samples.
  double microbatches(std::int64_t batch) const {
    return static_cast<double>(batch / split.ways / microbatch);
  }
  // What makes it this mix.
  auto key() const {
    return std::tuple(inner, data, split.ways, split.groups, stages_side, stages, policy,
                      microbatch);
  }
};

// What a candidate consists of.
struct CandidateTerms {
  const WorkTerms* work = nullptr;
  const DataTerms* data = nullptr;
  const OrderTerms* order = nullptr;  // null, as `sent`: one stage
  const SentTerms* sent = nullptr;
  int chunks = 1;
};

// Into the candidate's seconds, which are those that the cluster takes. Returns the bubble's part.
double price_time(const SearchRequest& request, const Cluster& cluster, const CandidateTerms& of,
                  SearchCandidate& candidate);
// Into the candidate's bytes, of hosts too.
void price_memory(const SearchRequest& request, const CandidateTerms& of,
                  SearchCandidate& candidate);

// All that are possible, priced, in no order. `refused` counts those that are not; `interrupted`:
// the user stopped it, and these are those so far.
struct PricedCandidates {
  std::vector<SearchCandidate> all;
  std::int64_t refused = 0;
  bool formed = false;             // the strategies can make so many ranks
  bool divides = false;            // one has a number of the data's ways that divides the batch
  bool sized = false;              // one has a microbatch that divides what is left of it
  std::set<std::int64_t> unsized;  // what is left of it where none did
  // Those passed over as their stages have more chunks than the model layers, and the least layers
  // with which one would not be.
  std::int64_t shallow = 0, least_layers = 0;
  std::set<std::string> passed;  // what else was, for people
  double pricing_seconds = 0;    // of a core, without making terms
  bool interrupted = false;
};
PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  PartTerms& terms);
// Whether there is any. Throws Stopped.
bool any_candidate(const SearchRequest& request);

}  // namespace mw
