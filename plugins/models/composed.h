// The model that plays a graph which Lua has recorded.
#pragma once

#include <memory>

#include "meshwright/model.h"

namespace mw {

// A key of the values of a composed model that makes it the graph of a kind of model
// (lua_model.cpp): its errors keep the keys that ops give them, a dim may be as large as a sequence
// is long ("sequence"), and not every dim has to be used.
inline constexpr const char* model_kind_key = "$kind";

// Makes the model of mw.model of values that options of the kind "model" have read.
std::unique_ptr<Model> composed_model(const Values& values);

// The options that a file of lua/meshwright says, of a kind of model or of an op
// (lua/meshwright/composites.lua).
Options options_in_lua(const std::string& kind);
// Throws Error with all problems that the check of such a file finds in values of its options.
// Messages begin with `op`, the full name of the op, if that is not empty.
void check_in_lua(const std::string& kind, const std::vector<Json>& arguments,
                  const std::string& op = "");

}  // namespace mw
