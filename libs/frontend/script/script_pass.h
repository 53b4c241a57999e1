// Passes that a script makes of a table: mw.pass { name, segments, changes, edit } and
// mw.directives { … }.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "meshwright/options.h"
#include "meshwright/passes.h"
#include "meshwright/strategy.h"

namespace mw {

const Options& pass_options();

struct Directive;

// A pass's table, read.
class PassTable {
 public:
  // Problems have keys in `path`: "late.passes[1].segments".
  PassTable(const Json& table, std::string path, Problems& problems);
  // Adds the pass to a draft. What its function does is counted anew for each plan. `option`: the
  // key of the plan's entry under which the table stands, for messages.
  void add_to(Draft& draft, const std::shared_ptr<const ScriptReach>& reach,
              const std::string& option) const;

 private:
  void read_segments(const std::string& path, Problems& problems);
  // `any`: the table does not say what the pass changes, so that its directives say it.
  void read_directives(const std::string& path, bool any, Problems& problems);

  std::string name_;
  Values values_;
  std::vector<std::string> segments_;  // kinds of segments that it edits; empty: all
  std::vector<std::shared_ptr<const Directive>> directives_;
  Pass::Changes changes_ = Pass::Changes::order;
};

// Answers a call that a pass's function makes about the code that it edits. `arguments`: a verb,
// the number of the edit that the function was given, and what the verb takes; `place`: the
// script's line, which is named if a condition of the call turns out to take nothing. Throws Error.
Json call_pass(const Json& arguments, const std::string& place);

}  // namespace mw
