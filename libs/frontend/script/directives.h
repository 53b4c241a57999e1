// Directives: edits of a program that a script writes as data, { "order", { axis = "ep" }, before =
// { phase = "gradients" } }.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "script/code_edit.h"

namespace mw {

struct Directive {
  enum class Kind : std::uint8_t { order, stream, budget, issue, reduce };
  enum class After : std::uint8_t {
    gradients,  // as soon as a bucket's last gradient is there
    chunk,      // at the end of the last backward that adds to the bucket
    step,       // when all backwards are over
    each,       // in every microbatch
  };
  Kind kind = Kind::order;
  InstructionFilter filter, other;
  bool sinks = false;   // order: `filter`'s instructions go after the others
  bool layers = false;  // order: only among instructions of one layer
  std::string stream;
  int number = 0;  // budget: transfers under way; issue: layers ahead
  After after = After::gradients;

  // What a pass with this directive must declare at least as its `changes`.
  Pass::Changes changes() const;
  // The directive's name in the note of a plan: "stream exchange".
  std::string name() const;
};

// Reads an entry of a list of directives; null, and problems, where it is none.
std::shared_ptr<const Directive> read_directive(const Json& entry, const std::string& path,
                                                Problems& problems);

// How many instructions a condition took.
struct Matches {
  int filter = 0, other = 0;
};
// Carries out a directive that changes order, and adds to `matches` what its conditions took.
EditOutcome carry_out(const Directive& directive, CodeEdit& code, Matches& matches);

// Carry out `reduce`: decide when the named buckets are reduced. reduce_each(), for `each = true`,
// is called before the buckets have their flat slots; reduce_after(), for the others, in
// Pass::finish.
EditOutcome reduce_each(const Directive& directive, Program& program);
EditOutcome reduce_after(const Directive& directive, Program& program);

}  // namespace mw
