// Which instructions a script means: a condition on what it sees of them, { code = "start", axis =
// "ep" }.
#pragma once

#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"
#include "meshwright/program.h"
#include "meshwright/weave.h"

namespace mw {

// What scripts see of an instruction, by name: those of InstructionFacts, and
//   segment   the kind of its segment: "forward", "backward", "dgrad", "wgrad", "reduce", …
//   stream    that a transfer goes on, by name
//   reads, writes   names of slots
const std::vector<std::string>& names_of_facts();

// The facts of a segment's instructions. Those of an axis also have, under "axes", all names and
// roles that fit its ranks; those of a bucket, under "parameters", the names of what it holds.
class SegmentFacts {
 public:
  explicit SegmentFacts(const Program& program) : program_(program), facts_(program) {}
  Json of(const Segment& segment, const Instruction& instruction) const;

 private:
  const Program& program_;
  const InstructionFacts facts_;
};

// "forward", "backward", "dgrad", "wgrad", "gather", "reduce", …; "" for those that passes of
// scripts leave alone: what only sends, receives or begins a step.
std::string kind_in_scripts(const Segment& segment);

class InstructionFilter {
 public:
  InstructionFilter() = default;
  // Reads a table; problems have keys such as "PATH.axis".
  InstructionFilter(const Json& table, const std::string& path, Problems& problems);

  // From now on it takes only what starts a transfer.
  void keep_to_starts();

  bool takes(const Json& facts) const;
  // Whether it may take the instruction, by what need not be looked up.
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
