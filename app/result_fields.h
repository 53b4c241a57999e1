// The fields of what verbs return: for the check of scripts that read them, and for editors.
#pragma once

#include <string>
#include <vector>

namespace mw {

struct ResultField {
  // type: as the Lua language server writes it; "…?" may be nil
  const char *name, *type, *doc;
};

// Of a verb's result, or of what lies in one: "train", "plan", "verify", "prove", "compare",
// "model";
// "loaded": of mw.load. Empty: not known, and not checked.
const std::vector<ResultField>& result_fields(const std::string& kind);

}  // namespace mw
