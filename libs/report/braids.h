// Pictures of braids, priced: how a stage interleaves the works of a group, with a row for each
// work and one for each axis that it sends over.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"
#include "meshwright/schedule.h"
#include "predict/machine.h"

namespace mw {

// One run of a braid, from its begin, with nothing under way before it.
struct BraidPicture {
  std::string name, weave;
  int stage = 0;
  double seconds = 0;  // that the run takes
  double waited = 0;   // of these, without compute
  double apart = 0;    // what its works take one after the other
  double apart_waited = 0;
  std::vector<std::string> row_names;          // works, then axes
  std::vector<std::vector<TimedAction>> rows;  // what computes, and what is on its way
};

// Each braid of a stage, as its first rank runs it in the middle of the step: of the stages that
// have the most braids, the one in the middle. Empty: the plan has none.
std::vector<BraidPicture> braid_pictures(const Plan& plan, const Machine& machine, int threads);

// At most `columns` wide: a letter of the work where something of it goes on.
std::string braids_text(const std::vector<BraidPicture>& pictures, int columns);
Json braids_json(const std::vector<BraidPicture>& pictures);
// What the page of plans shows: { name, stage, words, line }, line as timeline_json() makes it.
Json braids_page(const std::vector<BraidPicture>& pictures);
// All of them, one below the other, each from its own begin.
std::string braids_svg(const std::vector<BraidPicture>& pictures, const std::string& title);

}  // namespace mw
