// A condition on the rows of a list, written in Lua: `loss < 2.5 and status == "done"`.
#pragma once

#include <memory>
#include <set>
#include <string>

#include "meshwright/json.h"

namespace mw {

// The condition sees the row's fields by name, math, string, type, tonumber, tostring, and KiB,
// MiB, GiB, TiB; nothing of the machine. It may take some million instructions and 64 MiB.
class Predicate {
 public:
  // `fields`: all that a row may have; any other name is a mistake. `asked_by` names the option.
  // Throws Error (options) if it is no expression.
  Predicate(std::string asked_by, std::string text, std::set<std::string> fields);
  ~Predicate();
  Predicate(const Predicate&) = delete;
  Predicate& operator=(const Predicate&) = delete;

  enum class Answer { yes, no, lacks };  // lacks: it computes with a field that this row lacks
  // Throws Error (options) if the condition fails, or names a field that there is not.
  Answer operator()(const Json& row);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mw
