// What a search chooses among: strategies by what they split, with their ways and options, and the
// schedules of stages.
#pragma once

#include <string>
#include <vector>

#include "search/search.h"

namespace mw {

// Entries of a plan that follow the data entry, in mesh order: those that split sequences, layers'
// dims or experts, or change how these are split.
struct InnerSide {
  std::vector<Json> entries;
  int ranks = 1;  // ranks of the entries' own axes
  int lent = 1;   // data ranks that the entries borrow
  int plain = 0;  // index of the same side without experts
  // Bits of this side in combinations that the software does not run.
  SoftwareRuns::Parts parts = 0;
};

// A strategy that splits the batch, without its ways.
struct DataSide {
  std::string name;
  Json options = Json::object();
  std::string groups;  // the option that parts its ranks into groups; empty: it has none
  SoftwareRuns::Parts parts = 0;
};
struct DataWays {
  int ways = 1;
  int groups = 1;  // groups of equal size
};

// A strategy that splits the layers into stages, without its ways.
struct StagesSide {
  std::string name;
  std::string schedule;  // name of the schedule; empty: the strategy takes none
  int chunks = 1;
  SoftwareRuns::Parts parts = 0;
};

// What is recomputed, and what goes to host memory.
struct SearchPolicy {
  RecomputeChoice recompute;
  OffloadChoice offload;
  int offload_place = 0;  // index in the request's `offload`
  // The policy chooses what to recompute by the memory that is left, which the closed form cannot
  // price. So it is tried on whole plans alone, in place of the policies of the fastest ones. Where
  // all policies of a search choose so, each is priced by its choice for a few layers.
  bool later = false;
  // Whether the policy chooses alike for each size of a microbatch. A policy that looks at bytes
  // may not.
  bool same_for_all_sizes() const;
};

struct SearchSpace {
  std::vector<InnerSide> inner;    // the first side has no entries
  std::vector<DataSide> data;      // the first side holds most on each rank
  std::vector<StagesSide> stages;  // empty: layers are not split
  std::vector<SearchPolicy> policies;
  std::vector<std::string> passed;    // sides that were passed over, for people
  std::vector<std::string> left_out;  // what the stack's software lacks, for people
};

SearchSpace search_space(const SearchRequest& request);

// The plan's entries: { { plugin = "dp", ways = 4 }, … }; sides of one way are left out.
Json entries_of(const StagesSide* stages, int stages_ways, const DataSide* data, DataWays split,
                const InnerSide& inner);
// Divisors of n, ascending.
std::vector<int> divisors(int n);

}  // namespace mw
