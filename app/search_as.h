// A plan that a search found, as the flags of Megatron-LM and as a configuration of torchtitan.
#pragma once

#include <string>
#include <vector>

#include "meshwright/json.h"

namespace mw {

// What all plans of a search have in common.
struct SearchedFor {
  Json model;  // as a script has it
  int ranks = 1;
  std::int64_t batch = 0, sequence = 0, layers = 0;
  std::string precision = {};
};

struct PlanElsewhere {
  std::string before;               // a command of the shell that must come before; empty: none
  std::string text;                 // flags, or TOML
  std::vector<std::string> cannot;  // what of the plan it cannot express, a phrase each

  Json to_json() const { return {{"text", text}, {"before", before}, {"cannot", cannot}}; }
  // The text for people, with what it cannot express as comments before it.
  std::string shown() const {
    std::string all;
    for (const std::string& one : cannot) all += "# not expressed: " + one + "\n";
    if (!before.empty()) all += "# before it: " + before + "\n";
    return all + text;
  }
};

// `found`: of a search's `best`.
PlanElsewhere as_megatron(const Json& found, const SearchedFor& searched);
PlanElsewhere as_torchtitan(const Json& found, const SearchedFor& searched);

}  // namespace mw
