// Turns Lua values into Json and back.
#include "luajson/luajson.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

constexpr int most_depth = 100;

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

[[noreturn]] void refuse(const std::string& path, const std::string& what, std::string hint = "") {
  throw Error(Stage::script, "script.table", path,
              fmt::format("{} {}", path.empty() ? "this table" : path, what), std::move(hint));
}

class Reader {
 public:
  Reader(lua_State* lua, FunctionToJson function) : lua_(lua), function_(function) {}

  Json read(int index, const std::string& path) {
    switch (lua_type(lua_, index)) {
      case LUA_TNIL:
      case LUA_TNONE:
        return nullptr;
      case LUA_TBOOLEAN:
        return lua_toboolean(lua_, index) != 0;
      case LUA_TNUMBER:
        if (lua_isinteger(lua_, index)) return lua_tointeger(lua_, index);
        return lua_tonumber(lua_, index);
      case LUA_TSTRING: {
        std::size_t size = 0;
        const char* text = lua_tolstring(lua_, index, &size);
        return std::string(text, size);
      }
      case LUA_TFUNCTION:
        if (function_ != nullptr) return function_(lua_, index);
        refuse(path, "is a function", "what is read here holds numbers, text, booleans and tables");
      case LUA_TTABLE:
        return read_table(lua_absindex(lua_, index), path);
      default:
        refuse(path, fmt::format("is a {}", luaL_typename(lua_, index)),
               "a table for Meshwright holds numbers, text, booleans, functions and tables");
    }
  }

 private:
  Json read_table(int index, const std::string& path) {
    const void* self = lua_topointer(lua_, index);
    if (std::find(inside_.begin(), inside_.end(), self) != inside_.end()) {
      refuse(path, "contains itself", "a table for Meshwright is a tree");
    }
    if (inside_.size() >= most_depth) {
      refuse(path, fmt::format("is nested more than {} tables deep", most_depth));
    }
    luaL_checkstack(lua_, 8, "tables nested too deep");
    inside_.push_back(self);

    std::vector<std::string> names;
    lua_Integer entries = 0, last = 0;
    for (lua_pushnil(lua_); lua_next(lua_, index) != 0; lua_pop(lua_, 1)) {
      if (lua_isinteger(lua_, -2)) {
        const lua_Integer key = lua_tointeger(lua_, -2);
        if (key < 1) refuse(path, fmt::format("has the entry [{}]", key), "lists count from 1");
        last = std::max(last, key);
        ++entries;
      } else if (lua_type(lua_, -2) == LUA_TSTRING) {
        std::size_t size = 0;
        const char* name = lua_tolstring(lua_, -2, &size);
        names.emplace_back(name, size);
        if (names.back().find('\0') != std::string::npos) {
          refuse(path, fmt::format("has the key {}, which holds the byte 0", quote(names.back())),
                 "keys are names, or 1, 2, 3, …");
        }
      } else {
        refuse(path, fmt::format("has a key that is a {}", luaL_typename(lua_, -2)),
               "keys are names, or 1, 2, 3, …");
      }
    }
    if (last != entries) {
      refuse(path, fmt::format("has holes: {} up to [{}]", plural(entries, "value"), last),
             "one of its entries is nil: a misspelt variable?");
    }
    std::sort(names.begin(), names.end());

    Json list = Json::array();
    for (lua_Integer i = 1; i <= entries; ++i) {
      lua_rawgeti(lua_, index, i);
      list.push_back(read(-1, fmt::format("{}[{}]", path, i)));
      lua_pop(lua_, 1);
    }
    Json table = Json::object();
    // Each name comes once, so entries are appended without a search.
    auto& entries_by_name = table.get_ref<Json::object_t&>();
    entries_by_name.reserve(names.size());
    for (const std::string& name : names) {
      lua_pushlstring(lua_, name.data(), name.size());
      lua_rawget(lua_, index);
      const std::string step = is_name(name) ? "." + name : fmt::format("[{}]", quote(name));
      entries_by_name.push_back(
          {name, read(-1, path.empty() && step[0] == '.' ? name : path + step)});
      lua_pop(lua_, 1);
    }
    inside_.pop_back();
    if (names.empty() && entries > 0) return list;
    if (entries > 0) table[unnamed_key] = entries == 1 ? list[0] : std::move(list);
    return table;
  }

  lua_State* lua_;
  const FunctionToJson function_;
  std::vector<const void*> inside_;  // the tables around the one being read
};

}  // namespace

Json json_from_lua(lua_State* lua, int index, const std::string& path, FunctionToJson function) {
  const int top = lua_gettop(lua);
  try {
    return Reader(lua, function).read(index, path);
  } catch (...) {
    lua_settop(lua, top);
    throw;
  }
}

void push_as_lua(lua_State* lua, const Json& value, PushFunction push_function,
                 EachTable each_table) {
  luaL_checkstack(lua, 4, "tables nested too deep");
  if (value.is_boolean()) {
    lua_pushboolean(lua, value.get<bool>() ? 1 : 0);
  } else if (value.is_number_integer()) {
    lua_pushinteger(lua, value.get<std::int64_t>());
  } else if (value.is_number()) {
    lua_pushnumber(lua, value.get<double>());
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    lua_pushlstring(lua, text.data(), text.size());
  } else if (push_function != nullptr && is_function(value) &&
             value[function_key].is_number_integer() &&
             push_function(lua, value[function_key].get<std::int64_t>())) {
    return;
  } else if (value.is_array()) {
    lua_createtable(lua, static_cast<int>(value.size()), 0);
    lua_Integer i = 0;
    for (const Json& item : value) {
      push_as_lua(lua, item, push_function, each_table);
      lua_rawseti(lua, -2, ++i);
    }
  } else if (value.is_object()) {
    lua_createtable(lua, 0, static_cast<int>(value.size()));
    for (const auto& [key, item] : value.items()) {
      lua_pushlstring(lua, key.data(), key.size());
      push_as_lua(lua, item, push_function, each_table);
      lua_rawset(lua, -3);
    }
  } else {
    lua_pushnil(lua);
  }
  if (each_table != nullptr && value.is_structured()) each_table(lua);
}

}  // namespace mw
