// Pictures of braids with predicted times: how a stage interleaves the actions of a group, with a
// row for each action and for each axis over which the braid sends.
#pragma once

#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/json.h"
#include "meshwright/schedule.h"
#include "predict/machine.h"

namespace mw {

// One predicted run of a braid, from its begin, with no transfers under way before it.
struct BraidPicture {
  std::string name, weave;
  int stage = 0;
  double seconds = 0;                          // time of the run
  double waited = 0;                           // the part of `seconds` in which nothing computes
  double apart = 0;                            // time of its actions one after the other
  double apart_waited = 0;                     // the part of `apart` in which nothing computes
  std::vector<std::string> row_names;          // the actions, then the axes
  std::vector<std::vector<TimedAction>> rows;  // computation of each action, transfers of each axis
};

// A picture of each braid of one stage, as the stage's first rank runs it in the middle of the
// step. The stage is the middle one of those that have the most braids. Empty: the plan has none.
std::vector<BraidPicture> braid_pictures(const Plan& plan, const Machine& machine, int threads);

// The pictures as text, at most `columns` wide. An action's letter stands where the action
// computes, or where its transfers are under way.
std::string braids_text(const std::vector<BraidPicture>& pictures, int columns);
Json braids_json(const std::vector<BraidPicture>& pictures);
// The pictures for the page of plans, each { name, stage, words, line }; `line` is timeline_json().
Json braids_page(const std::vector<BraidPicture>& pictures);
// One drawing with all pictures, one below the other; the time of each begins at 0.
std::string braids_svg(const std::vector<BraidPicture>& pictures, const std::string& title);

}  // namespace mw
