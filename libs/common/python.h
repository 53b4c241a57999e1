// Starts Python that does a part of the program's work: the packages of python/src.
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
  // The package talks to the user itself. Else its output is shown only where it fails.
  bool speaks = false;
};

// Runs the package and returns its answer to `request`. A wish to stop is passed on as one SIGTERM.
// `reply` answers the package's questions meanwhile; its Errors are sent to the package. Throws
// Error if there is no Python, if the package fails, and for the problems in its answer.
Json answer_of(const PythonPackage& package, const Json& request,
               const std::function<Json(const Json& question)>& reply = {});

// Problems as JSON, in the form in which a package is given them and answers with them.
Json json_of(const std::vector<Problem>& problems);

}  // namespace mw
