// The conditions by which a script's passes, directives and weaves name instructions: tables of
// facts, { code = "start", axis = "ep" }.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/program.h"
#include "meshwright/weave.h"

namespace mw {

// The names of the facts that scripts see of an instruction (InstructionFacts).
const std::vector<std::string>& names_of_facts();
// The values of the fact `segment` (kind_in_scripts).
const std::vector<std::string>& kinds_of_segments();

class InstructionFilter {
 public:
  InstructionFilter() = default;
  // Reads a table; problems have keys such as "PATH.axis".
  InstructionFilter(const Json& table, const std::string& path, Problems& problems);
  // Reads the table that a script's function gives to `what` ("code:each"). Throws Error.
  static InstructionFilter of_call(const Json& table, const std::string& what);

  // From here on the filter takes only instructions that start a transfer.
  void keep_to_starts() { starts_ = true; }

  bool takes(const Json& facts) const;
  // The kind in `known` that is nearest to an unknown kind which a condition names; "" where no
  // condition names one, or none is near.
  std::string misspelt_kind(const std::vector<std::string>& known) const;
  // The problem of a condition on an axis that neither the plan nor a strategy that ships has;
  // nothing where all names are right. A pass or a weave for any plan may ask for axes that this
  // plan lacks. An optional condition may also name an axis that no name is near to, of a strategy
  // that only other plans have.
  std::optional<Problem> unknown_axis(const std::vector<std::string>& of_plan) const;
  // False if the instruction's own fields say already that it is not taken, so that its facts,
  // which cost more, need not be asked for.
  bool may_take(const Instruction& instruction) const;
  // Whether the filter may match nothing: { …, optional = true }.
  bool optional() const { return optional_; }
  std::string text() const;  // { axis = "ep", code = "start" }, sorted by fact

  // Says why the filter matched none of some instructions: which condition is at fault, and which
  // value is nearest. `visit` is to call its argument with the facts of each of them.
  using Visit = std::function<void(const Json& facts)>;
  std::string why_nothing(const std::function<void(const Visit&)>& visit) const;

 private:
  struct Condition {
    std::string fact;
    Json wanted;
  };
  static bool holds(const Condition& condition, const Json& facts);
  void read(const std::string& fact, const Json& wanted, const std::string& path, Problems&);
  std::vector<Condition> conditions_;
  bool optional_ = false, starts_ = false;
};

}  // namespace mw
