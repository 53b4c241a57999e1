// mw.search as scripts see it: the search, its progress, and its result as a table and as text.
#pragma once

#include "app/output.h"
#include "script/read_experiment.h"

namespace mw {

// Status "interrupted" if the user stopped it: what is there are the best so far.
Json run_search(const Json& table, const ReadContext& context, Output& output);

}  // namespace mw
