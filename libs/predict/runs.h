// What the software of a stack can run: strategies, values of their options, schedules, kinds of
// recompute and offload, and what does not go together. A list that is absent allows everything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/engine/plan.h"
#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

class SoftwareRuns {
 public:
  // Bit k says that a plan has part k of the combinations that the software does not run.
  using Parts = std::uint64_t;

  // Reads the stack's table `runs`; null allows everything.
  static SoftwareRuns read(const Json& table, const std::string& path, Problems& problems);

  bool everything() const { return everything_; }
  // Each lacks_… returns why the software cannot run it, as one phrase; empty: it can.
  std::string lacks_strategy(const std::string& name) const;
  std::string lacks_schedule(const std::string& name) const;
  // `what`: "recompute" or "offload".
  std::string lacks_policy(const char* what, const std::string& kind) const;
  // Takes a strategy's resolved options, its schedule among them.
  std::string lacks_options(const std::string& name, const Json& options) const;

  Parts parts_of(const std::string& name, const Json& options) const;
  // Whether the software runs a plan with these parts, and why it does not; empty: it does.
  bool go_together(Parts parts) const { return apart(parts) == nullptr; }
  std::string lacks_together(Parts parts) const;

  // Everything in a plan that the software cannot run, a phrase each.
  std::vector<std::string> lacks(const PlanRequest& request) const;

 private:
  // Allowed values, by the option's name.
  using OptionValues = std::map<std::string, std::vector<Json>>;
  struct Part {
    std::string strategy;
    bool absent = false;  // the combination is of plans without this strategy
    OptionValues options;
  };
  struct Together {
    std::vector<Part> parts;
    Parts all = 0, absent = 0;
    int first = 0;  // the bit of the combination's first part
  };

  static std::optional<OptionValues> options_in(const Json& table);
  bool read_together(const Json& list);
  // The combination that makes these parts impossible; null: none does.
  const Together* apart(Parts parts) const;
  // Whether the list of this key is declared and lacks the name.
  bool leaves_out(const std::string& key, const std::string& name) const;

  bool everything_ = true;  // no key is declared
  std::map<std::string, OptionValues> strategies_;
  // Allowed names, by "schedules", "recompute", "offload".
  std::map<std::string, std::vector<std::string>> lists_;
  std::vector<Together> apart_;
};

// The policy's kind as a stack's lists have it: "none", "selective", "full", "fit" and so on.
std::string kind_name(const RecomputePolicy& policy);
std::string kind_name(const OffloadPolicy& policy);

}  // namespace mw
