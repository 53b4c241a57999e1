// The closed form: a candidate's step and memory from the terms of its parts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "predict/search_terms.h"

namespace mw {

// A mix: indices into the space's sides, their ways, and how the batch is split. Ways of one: none.
struct SearchCandidate {
  std::int64_t microbatch = 1;
  double seconds = 0, bytes = 0;  // of a step; of the rank that holds most
  std::int32_t inner = 0, stages = 1;
  DataWays split;
  std::int16_t data = -1, stages_side = -1, policy = 0;

  // What makes it this mix.
  auto key() const {
    return std::tuple(inner, data, split.ways, split.groups, stages_side, stages, policy,
                      microbatch);
  }
};

class ClosedForm {
 public:
  explicit ClosedForm(const SearchRequest& request);

  // Takes what candidates have in common that differ in the order of their stages alone; `sent` is
  // null with one stage.
  void take(const WorkTerms& work, const DataTerms& data, const SentProbe* sent,
            const SearchCandidate& of);
  // Into the candidate's seconds and bytes; `order`: null with one stage.
  void price(const OrderTerms* order, int chunks, SearchCandidate& candidate) const;

 private:
  double send(const SentProbe& sent, const SearchCandidate& candidate) const;

  const SearchRequest& request_;
  double layers_ = 1, stragglers_ = 1, kept_ = 0;
  std::int64_t batch_ = 1;
  // A transfer of each microbatch beside work of its own: a run of a segment waits for one layer's
  // at least, and all runs together for what the work does not hide.
  struct Beside {
    double layer = 0, longer = 0;
    double waits(int runs) const { return std::max(runs * layer, longer); }
  };
  // A microbatch on a stage: what does not depend on the order, and what does.
  struct Microbatch {
    double own = 0, backward = 0;
    Beside forward_moves, backward_moves;
    double at(int chunks) const {
      return own + forward_moves.waits(chunks) + backward_moves.waits(chunks);
    }
  };
  Microbatch microbatch(const WorkTerms& work, const DataTerms& data, double layers,
                        bool ends) const;

  // Of what was taken: microbatches; a microbatch on the fullest stage and on the last one, and
  // seconds of its work on a usual one; seconds of the step's end, and of a send.
  double microbatches_ = 1, usual_ = 0, end_ = 0, sent_ = 0;
  Microbatch middle_, last_;
  // Bytes that last, and of each microbatch under way, of both stages; and of each that waits.
  double first_bytes_ = 0, first_held_ = 0, last_bytes_ = 0, last_held_ = 0, again_ = 0;
};

// All that are possible, priced, in no order. `refused` counts the others; `interrupted`: the user
// stopped it, and these are those so far.
struct PricedCandidates {
  std::vector<SearchCandidate> all;
  std::int64_t refused = 0;
  bool divides = false;        // some number of the data's ways divides the batch
  double pricing_seconds = 0;  // of a core, without making terms
  bool interrupted = false;
};
PricedCandidates price_candidates(const SearchRequest& request, const SearchSpace& space,
                                  SearchTerms& terms);

}  // namespace mw
