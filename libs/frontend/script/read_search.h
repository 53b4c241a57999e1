// Reads a script's table of mw.search into a search's request.
#pragma once

#include <memory>

#include "script/read_experiment.h"
#include "search/search.h"

namespace mw {

// The keys of mw.search: its own, and those of an experiment. It reads the keys that a plan's step
// depends on, and ignores the others.
const Options& search_options();

struct ReadSearch {
  SearchRequest request;
  std::shared_ptr<const ClusterMachine> machine;  // the request's machine
};

// Throws Error with every problem found. `context` must outlive what is returned.
ReadSearch read_search(const Json& table, const ReadContext& context);

}  // namespace mw
