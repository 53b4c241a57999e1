// mw.load: hands a run's result, or a list of them, to a script, and refuses fields that no run
// has.
#include <fmt/format.h>

#include <set>

#include "lua/guarded.h"
#include "lua/state.h"
#include "lua/value.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace {

Json without_text(Json result) {
  result.erase("text");
  return result;
}

std::string lines_of(const Json& loaded) {
  if (loaded.is_object()) return loaded.value("text", "");
  std::string text;
  for (const Json& each : loaded) text += each.value("text", "");
  return text;
}

int loaded_text(lua_State* lua) {
  lua_pushvalue(lua, lua_upvalueindex(1));
  return 1;
}

// A field that no run has is a misspelt one; one that this run lacks is nil.
int no_such_field(lua_State* lua) {
  if (lua_type(lua, 2) != LUA_TSTRING) return 0;
  const std::string key = lua_tostring(lua, 2);
  std::vector<std::string> known;
  for (const Json& name : to_json(lua, lua_upvalueindex(1), "")) {
    if (name == key) return 0;
    known.push_back(name.get<std::string>());
  }
  const std::string near = did_you_mean(key, known);
  Problem problem{Stage::script, "script.unknown", "",
                  fmt::format("a loaded run has no field {}", quote(key)),
                  near.empty() ? "it has " + join(known) : near};
  problem.place = user_place(lua);
  throw Error(std::move(problem));
}

// Gives the table on top of the stack a text, and refuses fields that are not `known`.
void make_typed(lua_State* lua, const Json& known, std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);  // print adds one
  lua_createtable(lua, 0, 2);
  lua_pushlstring(lua, text.data(), text.size());
  lua_pushcclosure(lua, loaded_text, 1);
  lua_setfield(lua, -2, "__tostring");
  push_json(lua, known);
  lua_pushcclosure(lua, guarded<no_such_field>, 1);
  lua_setfield(lua, -2, "__index");
  lua_setmetatable(lua, -2);
}

}  // namespace

Json Host::load(const std::string& path, const std::string&) {
  throw Error(Stage::options, "file.missing", "", path + ": there is no such file or folder");
}

int core_load(lua_State* lua) {
  Script::State& state = Script::State::of(lua);
  if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TSTRING) {
    throw Error(Stage::script, "script.argument", "",
                fmt::format("mw.load takes the path of a run file or of a folder of runs; got {}",
                            luaL_typename(lua, 1)),
                "for example mw.load \"runs/quickstart.h5\"");
  }
  const Json loaded = state.host.load(lua_tostring(lua, 1), state.folder.string());
  std::set<std::string> names;
  for (const Json& each : loaded.is_array() ? loaded : Json::array({loaded}))
    for (const auto& [key, value] : each.items()) names.insert(key);
  for (const std::string& name : state.host.result_fields("loaded")) names.insert(name);
  names.erase("text");
  const Json known(names);
  if (loaded.is_object()) {
    push_json(lua, without_text(loaded));
    make_typed(lua, known, lines_of(loaded));
    return 1;
  }
  lua_createtable(lua, static_cast<int>(loaded.size()), 0);
  lua_Integer i = 0;
  for (const Json& each : loaded) {
    push_json(lua, without_text(each));
    make_typed(lua, known, lines_of(each));
    lua_rawseti(lua, -2, ++i);
  }
  make_typed(lua, Json::array(), lines_of(loaded));
  return 1;
}

}  // namespace mw
