// What a search chooses among: strategies by what they split, with their ways and options, and the
// schedules of stages.
#pragma once

#include <string>
#include <vector>

#include "search/search.h"

namespace mw {

// Entries of a plan behind that of the data, in mesh order: those that split sequences, layers'
// dims and experts, or change how these do.
struct InnerSide {
  std::vector<Json> entries;
  int ranks = 1;                  // their own
  int lent = 1;                   // ranks of the data that they borrow
  int plain = 0;                  // the side without experts, itself if it has none
  SoftwareRuns::Parts parts = 0;  // its parts of combinations that the software does not run
};

// What splits the batch, without its ways.
struct DataSide {
  std::string name;
  Json options = Json::object();
  std::string groups;  // the option that parts its ranks into groups; empty: it has none
  SoftwareRuns::Parts parts = 0;
};
struct DataWays {
  int ways = 1;
  int groups = 1;  // of equal size
};

// What splits the layers, without its ways.
struct StagesSide {
  std::string name;
  std::string schedule;  // empty: it takes none
  int chunks = 1;
  SoftwareRuns::Parts parts = 0;
};

// What is computed again, and what goes to host memory.
struct SearchPolicy {
  RecomputeChoice recompute;
  OffloadChoice offload;
  int offload_place = 0;  // of the request's
  // The policy chooses what to recompute by the memory that is left, which the closed form cannot
  // price. So it is tried on whole plans alone, in place of the policies of the fastest ones. Where
  // all policies of a search are such, each is priced by its choice for a few layers.
  bool later = false;
  // Whether the policy chooses alike for each size of a microbatch. A policy that looks at bytes
  // may not.
  bool same_for_all_sizes() const;
};

struct SearchSpace {
  std::vector<InnerSide> inner;    // the first is none
  std::vector<DataSide> data;      // the first holds most
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
