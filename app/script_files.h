// The text of a script, and the texts of the files that it has loaded.
#pragma once

#include <map>
#include <string>

namespace mw {

struct ScriptFiles {
  std::string text;
  std::map<std::string, std::string> loaded;  // texts by place: see Host::loaded()
};

}  // namespace mw
