// The conditions by which a script names instructions: a table of what it sees of them, { code =
// "start", axis = "ep" }.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/program.h"
#include "meshwright/weave.h"

namespace mw {

// The names of the facts that scripts see of an instruction: those of InstructionFacts, and
//   segment   the kind of its segment: "forward", "backward", "dgrad", "wgrad", "reduce", …
//   stream    that a transfer goes on, by name
//   reads, writes   names of slots
const std::vector<std::string>& names_of_facts();

// The facts of a segment's instructions. Where they have an axis, they also have, under "axes", all
// names and roles that fit its ranks; where they have a bucket, under "parameters", the names of
// the parameters that it holds.
class SegmentFacts {
 public:
  explicit SegmentFacts(const Program& program) : program_(program), facts_(program) {}
  Json of(const Segment& segment, const Instruction& instruction) const;

 private:
  const Program& program_;
  const InstructionFacts facts_;
};

Json names_of_parameters(const Program& program, const Bucket& bucket);
// Adds what a condition may call the axis: its name, and its role if it has one.
void add_names_of(const Axis& axis, std::set<std::string>& names);

// What scripts call a segment: "forward", "backward", "dgrad", "wgrad", "gather", "reduce", …; ""
// for segments that passes of scripts leave alone, which only send, receive or begin a step.
std::string kind_in_scripts(const Segment& segment);

class InstructionFilter {
 public:
  InstructionFilter() = default;
  // Reads a table; problems have keys such as "PATH.axis".
  InstructionFilter(const Json& table, const std::string& path, Problems& problems);

  // Adds the condition that an instruction starts a transfer.
  void keep_to_starts();

  bool takes(const Json& facts) const;
  // False if the instruction's own fields say already that it is not taken, so that its facts,
  // which cost more, need not be asked for.
  bool may_take(const Instruction& instruction) const;
  // Whether it may match nothing: { …, optional = true }.
  bool optional() const { return optional_; }
  std::string text() const;  // { axis = "ep", code = "start" }

  // After it has matched none of the programs' instructions: which of its conditions is at fault,
  // and what is nearest.
  std::string why_nothing(const std::vector<Program>& programs) const;

 private:
  struct Condition {
    std::string fact;
    Json wanted;
  };
  static bool holds(const Condition& condition, const Json& facts);
  std::vector<Condition> conditions_;
  bool optional_ = false;
};

}  // namespace mw
