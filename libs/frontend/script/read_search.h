// Reads a script's table of mw.search into what a search is asked.
#pragma once

#include <memory>

#include "script/read_experiment.h"
#include "search/search.h"

namespace mw {

// The keys of mw.search: its own, and those of an experiment. Of these it reads what a plan's step
// depends on; the rest may stand there and is not looked at.
const Options& search_options();

struct ReadSearch {
  SearchRequest request;
  std::shared_ptr<const ClusterMachine> machine;  // the request's
};

// Throws Error with every problem found. `context` must outlive what is returned.
ReadSearch read_search(const Json& table, const ReadContext& context);

}  // namespace mw
