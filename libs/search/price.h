// The closed form: a candidate's step and memory, as sums of the terms of its parts.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "search/terms.h"

namespace mw {

// A mix: indices into the sides of the SearchSpace, their ways, and how the batch is split. A side
// of one way is not used.
struct SearchCandidate {
  std::int64_t microbatch = 1;
  // Seconds of a step with balanced stages; bytes of the rank that holds most.
  double seconds = 0, bytes = 0;
  double host = 0;  // bytes in host memory of the node that holds most
  std::int32_t inner = 0, stages = 1;
  DataWays split;
  std::int16_t data = -1, stages_side = -1, policy = 0;

  // Microbatches of a step of so many samples.
  double microbatches(std::int64_t batch) const {
    return static_cast<double>(batch / split.ways / microbatch);
  }
  // All that tells this mix from others.
  auto key() const {
    return std::tuple(inner, data, split.ways, split.groups, stages_side, stages, policy,
                      microbatch);
  }
};

// The terms from which a candidate is priced.
struct CandidateTerms {
  const WorkTerms* work = nullptr;
  const DataTerms* data = nullptr;
  const OrderTerms* order = nullptr;  // null, like `sent`, where there is one stage
  const SentTerms* sent = nullptr;
  int chunks = 1;
};

// Sets the candidate's seconds on the cluster. Returns the bubble's part of them.
double price_time(const SearchRequest& request, const Cluster& cluster, const CandidateTerms& of,
                  SearchCandidate& candidate);
// Sets the candidate's bytes, those in host memory too.
void price_memory(const SearchRequest& request, const CandidateTerms& of,
                  SearchCandidate& candidate);

// All possible candidates, priced, in no order. `refused` counts those that are not possible;
// `interrupted`: the user stopped the search, and these are the candidates so far.
struct PricedCandidates {
  std::vector<SearchCandidate> all;
  std::int64_t refused = 0;
  bool formed = false;             // the strategies can form the number of ranks that was asked for
  bool divides = false;            // a mix has a number of data ways that divides the batch
  bool sized = false;              // a mix has a microbatch that divides a rank's sequences
  std::set<std::int64_t> unsized;  // a rank's sequences, where no microbatch divides them
  // Candidates that were passed over because their stages have more chunks than the model has
  // layers, and the fewest layers that one of them needs.
  std::int64_t shallow = 0, least_layers = 0;
  std::set<std::string> passed;  // what else was passed over, for people
  double pricing_seconds = 0;    // core seconds of pricing, without making terms
  bool interrupted = false;
};
PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  PartTerms& terms);
// Whether any candidate is possible. Throws Stopped.
bool any_candidate(const SearchRequest& request);

}  // namespace mw
