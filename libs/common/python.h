// Python that does a part of the program's work: packages of python/src, which the program starts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/json.h"

namespace mw {

struct PythonPackage {
  std::string name;      // its folder in python/src
  std::string asked_by;  // "--figures", or a command: what the user asked for it with
  std::string does;      // "draws figures"
  std::string needs;     // what a Python must have: "python3, numpy and matplotlib"
  // It talks to the user itself. Else what it says is shown where it fails.
  bool speaks = false;
};

// What the package answers to `request`. A wish to stop is passed on to it as SIGTERM, once.
// `reply` answers what the package asks meanwhile; the package gets the Errors that it throws.
// Throws Error if there is no Python, if it fails, and for what the answer calls wrong.
Json answer_of(const PythonPackage& package, const Json& request,
               const std::function<Json(const Json& question)>& reply = {});

// Problems as JSON, in the form in which a package is given them and answers with them.
Json json_of(const std::vector<Problem>& problems);

}  // namespace mw
