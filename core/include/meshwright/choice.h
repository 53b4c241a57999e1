// Options that name one of several things, with options of its own.
#pragma once

#include <optional>
#include <string>

#include "meshwright/json.h"

namespace mw {

struct NamedChoice {
  std::string name;
  Json options = Json::object();  // as a table of a script, without the name
};

// Reads "NAME", mw.NAME { … }, { kind = "NAME", … } or { "NAME", … }; nothing if `given` names
// nothing.
std::optional<NamedChoice> named_choice(const Json& given);

}  // namespace mw
