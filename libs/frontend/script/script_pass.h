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

// The keys of such a table.
const Options& pass_options();

struct Directive;

// Such a table, read.
class PassTable {
 public:
  // Problems have keys in `path`: "late.passes[1].segments".
  PassTable(const Json& table, std::string path, Problems& problems);
  ~PassTable();
  PassTable(PassTable&&) noexcept;

  const std::string& name() const { return name_; }
  // Adds it to a draft. What its function does is counted anew for each plan. `place`: the plan's
  // entry, for messages; `option`: which of the entry's keys the table is.
  void add_to(Draft& draft, const std::shared_ptr<const ScriptReach>& reach,
              const std::string& option) const;

 private:
  void read_segments(const std::string& path, Problems& problems);
  // `any`: they may change what they will.
  void read_directives(const std::string& path, bool any, Problems& problems);

  std::string name_;
  Values values_;
  std::vector<std::string> segments_;  // kinds; empty: all
  std::vector<std::shared_ptr<const Directive>> directives_;
  Pass::Changes changes_ = Pass::Changes::order;
};

// What a pass's function asks of the code that it edits, or does to it: a verb, the number of the
// edit that it was given, and what the verb takes. `place`: the script's line. Throws Error.
Json call_pass(const Json& arguments, const std::string& place);

}  // namespace mw
