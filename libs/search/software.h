// What the stack's software cannot run is left out of a search, unless its request asks for it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "search/price.h"
#include "search/space.h"

namespace mw {

// Removes from the request the strategies, schedules and policies that the software lacks, and
// returns one phrase for each. Throws Error (search.software) where nothing is left of a list.
std::vector<std::string> leave_out(SearchRequest& request);

// Removes from the space the sides with options that the software lacks, and notes these in its
// `left_out`. Marks the other sides with the combinations' parts that they are (`parts`).
void leave_out(const SearchRequest& request, SearchSpace& space);

// Whether the stack's software runs a candidate's strategies together.
class GoesTogether {
 public:
  GoesTogether(const SearchRequest& request, const SearchSpace& space)
      : runs_(request.unsupported ? nullptr : &request.machine->stack().runs), space_(space) {
    if (runs_ != nullptr && runs_->everything()) runs_ = nullptr;
  }
  bool operator()(const SearchCandidate& candidate) const {
    if (runs_ == nullptr) return true;
    SoftwareRuns::Parts parts = space_.inner[static_cast<std::size_t>(candidate.inner)].parts;
    if (candidate.data >= 0 && candidate.split.ways > 1)
      parts |= space_.data[static_cast<std::size_t>(candidate.data)].parts;
    if (candidate.stages > 1 && candidate.stages_side >= 0)
      parts |= space_.stages[static_cast<std::size_t>(candidate.stages_side)].parts;
    return runs_->go_together(parts);
  }

 private:
  const SoftwareRuns* runs_;
  const SearchSpace& space_;
};

}  // namespace mw
