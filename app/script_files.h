// What stands in a script, and in the files that it has loaded.
#pragma once

#include <map>
#include <string>

namespace mw {

struct ScriptFiles {
  std::string text;
  std::map<std::string, std::string> loaded;  // Host::loaded(): places and texts
};

}  // namespace mw
