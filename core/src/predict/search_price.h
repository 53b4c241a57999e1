// The closed form: a candidate's step and memory from the terms of its parts.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "predict/search_terms.h"

namespace mw {

// A mix: indices into the space's sides, their ways, and how the batch is split. Ways of one: none.
struct SearchCandidate {
  int inner = 0, data = -1, data_ways = 1, stages_side = -1, stages = 1, policy = 0;
  std::int64_t microbatch = 1;
  double seconds = 0, bytes = 0;  // of a step; of the rank that holds most

  // What makes it this mix.
  auto key() const {
    return std::tuple(inner, data, data_ways, stages_side, stages, policy, microbatch);
  }
};

// What the closed form reads of one candidate; `order` and `sent` are null with one stage.
struct CandidateTerms {
  const WorkTerms* work = nullptr;
  const DataTerms* data = nullptr;
  const ScheduleTerms* order = nullptr;
  const SearchTerms::Sent* sent = nullptr;
  int chunks = 1;
};

class ClosedForm {
 public:
  explicit ClosedForm(const SearchRequest& request);
  // Into the candidate's seconds and bytes.
  void price(const CandidateTerms& terms, SearchCandidate& candidate) const;

 private:
  double send(const SearchTerms::Sent& sent, const SearchCandidate& candidate) const;

  const SearchRequest& request_;
  double layers_ = 1, stragglers_ = 1;
  std::int64_t batch_ = 1;
};

// All that are possible, priced, in no order. `refused` counts the others; `interrupted`: the user
// stopped it, and these are those so far.
struct PricedCandidates {
  std::vector<SearchCandidate> all;
  std::int64_t refused = 0;
  bool divides = false;  // some number of the data's ways divides the batch
  double pricing_seconds = 0;
  bool interrupted = false;
};
PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  SearchTerms& terms);

}  // namespace mw
