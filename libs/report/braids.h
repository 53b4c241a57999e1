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
  double seconds = 0;                          // what the run takes
  double waited = 0;                           // the part of `seconds` in which nothing computes
  double apart = 0;                            // what its works take one after the other
  double apart_waited = 0;                     // the part of `apart` in which nothing computes
  std::vector<std::string> row_names;          // works, then axes
  std::vector<std::vector<TimedAction>> rows;  // what computes, and what is on its way
};

// A picture of each braid of one stage, as the stage's first rank runs it in the middle of the
// step. The stage is the middle one of those that have the most braids. Empty: the plan has none.
std::vector<BraidPicture> braid_pictures(const Plan& plan, const Machine& machine, int threads);

// The pictures as text at most `columns` wide: the letter of a work stands where the work computes
// or its transfers are on their way.
std::string braids_text(const std::vector<BraidPicture>& pictures, int columns);
Json braids_json(const std::vector<BraidPicture>& pictures);
// What the page of plans shows of each: { name, stage, words, line }. timeline_json() makes `line`.
Json braids_page(const std::vector<BraidPicture>& pictures);
// One drawing with all pictures, one below the other; the time of each begins at 0.
std::string braids_svg(const std::vector<BraidPicture>& pictures, const std::string& title);

}  // namespace mw
