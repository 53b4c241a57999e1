// Reads an option whose value is a name, or a name with options of its own: a scheduler, an
// optimizer.
#pragma once

#include <optional>
#include <string>

#include "meshwright/json.h"

namespace mw {

struct NamedChoice {
  std::string name;
  Json options = Json::object();  // the table as the script has it, without the name
};

// Reads a value of the form "NAME", mw.NAME { … }, { kind = "NAME", … } or { "NAME", … }. Returns
// nothing if the value has no name.
std::optional<NamedChoice> named_choice(const Json& given);

}  // namespace mw
