// The closed form: a candidate's step and memory from the terms of its parts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
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
  double least = 0;               // bytes that it holds at least, as a work may take none beside
  double host = 0;                // bytes in host memory of the node that holds most
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
  // Seconds are those that the cluster takes.
  ClosedForm(const SearchRequest& request, const Cluster& cluster);

  // Takes what candidates have in common that differ in the order of their stages alone; `sent` is
  // null with one stage.
  void take(const WorkTerms& work, const DataTerms& data, const SentProbe* sent,
            const SearchCandidate& of);
  // Into the candidate's seconds and bytes, of hosts too; `order`: null with one stage. Returns the
  // bubble's part of the seconds.
  double price(const OrderTerms* order, int chunks, SearchCandidate& candidate) const;

 private:
  // Seconds of a work on a stage, and what each run of a segment of it adds: a chunk is a run.
  struct Runs {
    double own = 0, each = 0;
    double at(int runs) const { return own + runs * each; }
  };
  // What a stage does for a microbatch.
  struct Works {
    Runs forward, backward, dgrad, wgrad;
  };
  // What of the model's ends lies on a stage.
  struct Ends {
    bool first = false, last = false;
  };
  // Bytes of each that is counted of a stage, and beside these of each kind of work; what each of
  // its layers adds that are `turning` or `reducing`, where more comes than goes.
  struct Bytes {
    std::array<float, counted_padded> each{};
    std::array<float, work_kinds> works{}, turning{}, reducing{};
    void set(Counted what, double count) {
      each[static_cast<std::size_t>(what)] = static_cast<float>(count);
    }
    double operator[](Counted what) const { return each[static_cast<std::size_t>(what)]; }
  };
  // In host memory of a rank: of the layers, what lasts on the stage with most and on the last one;
  // what lasts of the model's ends, on the first stage and on the last; of each
  // microbatch under way on a stage, between F and B or I, and between I and W; and of one beside
  // its layers, which the first chunk makes.
  struct Host {
    double first = 0, last = 0, ends = 0, kept = 0, waiting = 0, made = 0;
    bool any() const { return first > 0 || last > 0 || ends > 0 || kept > 0 || made > 0; }
  };
  // Reductions of gradients whenever a stage turns to another chunk: seconds of those of all its
  // chunks, what of that the last ones are waited for, and of the rank's own work.
  struct Turns {
    bool any = false;
    double all = 0, late = 0, own = 0;
  };
  // Works of the stage with most layers, of the last one and of a usual one.
  struct Stages {
    Works most, last, usual;
  };
  // The stages of a plan that balances them, each with a layer in every chunk but that of the loss.
  const Stages& stages(int chunks) const;
  double host(const OrderTerms* order, const SearchCandidate& candidate) const;
  double turning(const OrderTerms& order, int chunks, double busy) const;
  double send(const SentProbe& sent, const SearchCandidate& candidate) const;
  Works works(const WorkTerms& work, const DataTerms& data, double layers, Ends ends) const;
  Bytes bytes(const WorkTerms& work, const DataTerms& data, double sent, bool staged) const;
  void fill(const Moments& moments, bool all_held, double more, bool sends_all, bool assumed,
            SearchCandidate& candidate) const;

  const SearchRequest& request_;
  const Cluster& cluster_;
  double layers_ = 1, stragglers_ = 1, kept_ = 0;
  std::int64_t batch_ = 1;

  // The candidate that was taken: its terms, and the number of stages; microbatches; seconds of the
  // step's end, and of a send; works of one stage with all layers; bytes with one stage, and of
  // stages.
  const WorkTerms* work_ = nullptr;
  const DataTerms* data_ = nullptr;
  int stages_count_ = 1;
  double microbatches_ = 1, end_ = 0, sent_ = 0;
  Works whole_;
  mutable std::map<int, Stages> stages_;  // by layers of the last one
  Bytes bytes_;
  bool by_chunk_ = false;
  double on_first_ = 0.5, on_last_ = 0.5;  // shares of what the ends keep, by stages
  std::array<Moments, 2> one_stage_;       // of one microbatch, of several
  Host host_;
  Turns turns_;
  double slows_ = 0;  // of reductions by chunk, on the mean
};

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
