// The prompt: reads statements and expressions line by line, runs each, and knows what a word may
// become.
#include <algorithm>
#include <cctype>
#include <string_view>

#include "lua/chunks.h"
#include "lua/guarded.h"
#include "lua/names.h"
#include "lua/state.h"
#include "meshwright/engine/interrupt.h"

namespace mw {
namespace {

bool part_of_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

// The path that the text ends with: "mw.microbatch.f"; empty if it ends with none.
std::string path_at_end(const std::string& text) {
  std::size_t at = text.size();
  while (at > 0 && (part_of_name(text[at - 1]) || text[at - 1] == '.')) --at;
  return text.substr(at);
}

// The name before the innermost open brace, which takes the table: "tp", "mw.llama". Braces in
// texts do not count.
std::string taker_of(const std::string& text) {
  std::vector<std::size_t> open;
  char quoted = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted != 0) {
      if (c == '\\') {
        ++i;
      } else if (c == quoted) {
        quoted = 0;
      }
    } else if (c == '"' || c == '\'') {
      quoted = c;
    } else if (c == '{') {
      open.push_back(i);
    } else if (c == '}' && !open.empty()) {
      open.pop_back();
    }
  }
  if (open.empty() || quoted != 0) return "";
  std::string before = text.substr(0, open.back());
  while (!before.empty() && (before.back() == ' ' || before.back() == '(')) before.pop_back();
  return path_at_end(before);
}

std::vector<std::string> parts_of_path(const std::string& path) {
  std::vector<std::string> parts(1);
  for (const char c : path) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Pushes what a path of globals holds, without metatables; false (nothing pushed) if there is
// nothing.
bool push_path(lua_State* lua, const std::vector<std::string>& parts, std::size_t count) {
  const int top = lua_gettop(lua);
  lua_pushglobaltable(lua);
  for (std::size_t i = 0; i < count; ++i) {
    if (lua_type(lua, -1) != LUA_TTABLE) {
      lua_settop(lua, top);
      return false;
    }
    lua_pushlstring(lua, parts[i].data(), parts[i].size());
    lua_rawget(lua, -2);
  }
  lua_replace(lua, top + 1);
  lua_settop(lua, top + 1);
  return true;
}

// A text field of the table on top of the stack; empty if it has none.
std::string raw_text(lua_State* lua, const char* key) {
  if (lua_type(lua, -1) != LUA_TTABLE) return "";
  lua_pushstring(lua, key);
  lua_rawget(lua, -2);
  std::string text = lua_type(lua, -1) == LUA_TSTRING ? lua_tostring(lua, -1) : "";
  lua_pop(lua, 1);
  return text;
}

constexpr Kind kinds_of_tables[] = {Kind::scheduler, Kind::model,     Kind::data,
                                    Kind::optimizer, Kind::recompute, Kind::microbatch,
                                    Kind::hook,      Kind::cluster,   Kind::lr_schedule,
                                    Kind::weave,     Kind::observer,  Kind::packing};

// The options of the table that the name `path` takes; null if it takes none.
const Options* options_of(Script::State& state, const std::string& path) {
  if (path.empty()) return nullptr;
  const std::string name = path.starts_with("mw.") ? path.substr(3) : "";
  for (const Verb& verb : state.host.verbs())
    if (verb.name == name) return &state.host.experiment();
  for (const Constructor& constructor : state.host.constructors())
    if (constructor.name == name) return &constructor.registration->options();
  const std::vector<std::string> parts = parts_of_path(path);
  if (!push_path(state.lua, parts, parts.size())) return nullptr;
  const std::string plugin = raw_text(state.lua, "plugin"), kind = raw_text(state.lua, "kind");
  lua_pop(state.lua, 1);
  const auto named = [&](Kind of, const std::string& wanted) -> const Options* {
    for (const Registration* one : state.host.plugins().list(of))
      if (wanted == one->name) return &one->options();
    return nullptr;
  };
  if (!plugin.empty()) return named(Kind::strategy, plugin);
  for (const Kind of : kinds_of_tables)
    if (const Options* found = kind.empty() ? nullptr : named(of, kind)) return found;
  return nullptr;
}

// Whether the table on top of the stack holds the value at `wanted`; `name` becomes its key.
bool is_field(lua_State* lua, int wanted, std::string& name) {
  for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
    if (lua_type(lua, -2) != LUA_TSTRING || lua_rawequal(lua, -1, wanted) == 0) continue;
    name = lua_tostring(lua, -2);
    lua_pop(lua, 2);
    return true;
  }
  return false;
}

// The name that `mw` has for the value at `wanted`, as "mw.train" or "mw.microbatch.fit"; empty if
// it has none.
std::string name_in_module(lua_State* lua, int wanted) {
  const int top = lua_gettop(lua);
  std::string found, name;
  lua_getglobal(lua, "mw");
  if (lua_type(lua, -1) == LUA_TTABLE) {
    if (is_field(lua, wanted, name)) found = "mw." + name;
    for (lua_pushnil(lua); found.empty() && lua_next(lua, -2) != 0; lua_pop(lua, 1)) {
      const bool table = lua_type(lua, -2) == LUA_TSTRING && lua_type(lua, -1) == LUA_TTABLE;
      if (!table || !is_field(lua, wanted, name)) continue;
      found = std::string("mw.") + lua_tostring(lua, -2) + "." + name;
    }
  }
  lua_settop(lua, top);
  return found;
}

// The name of the argument at 1. A text is itself the name; a table has the name of what made it: a
// plugin, a constructor, or the verb whose result it is.
std::string name_asked_for(lua_State* lua) {
  if (lua_gettop(lua) == 0) return "";
  if (lua_type(lua, 1) == LUA_TSTRING) return lua_tostring(lua, 1);
  if (const std::string name = name_in_module(lua, 1); !name.empty()) return name;
  lua_settop(lua, 1);
  const std::string plugin = raw_text(lua, "plugin"), kind = raw_text(lua, "kind");
  if (!plugin.empty()) return plugin;
  // The table of a constructor has neither `status` nor `text`.
  const bool result = !raw_text(lua, "status").empty() || !raw_text(lua, "text").empty();
  if (!kind.empty()) return result ? kind + " result" : kind;
  throw Error(Problem{Stage::script, "help.unknown", "",
                      std::string("help: there is nothing to say of a ") + luaL_typename(lua, 1),
                      "help(mw.train), or a name between quotes: help \"steps\"", ""});
}

int show_help(lua_State* lua) {
  const auto* prompt = static_cast<const Prompt*>(lua_touserdata(lua, lua_upvalueindex(1)));
  prompt->print(prompt->help(name_asked_for(lua)));
  return 0;
}

}  // namespace

Completion Script::complete(const std::string& before) {
  lua_State* lua = state_->lua;
  const std::string path = path_at_end(before);
  const std::vector<std::string> parts = parts_of_path(path);
  Completion completion;
  completion.word = parts.back();
  const auto offer = [&](const std::string& name) {
    const bool hidden = name.starts_with("_") && !completion.word.starts_with("_");
    if (!name.empty() && name.starts_with(completion.word) && !hidden)
      completion.choices.push_back(name);
  };
  if (parts.size() == 1) {
    const std::string rest = before.substr(0, before.size() - path.size());
    if (const Options* options = options_of(*state_, taker_of(rest)))
      for (const Option& option : options->list()) offer(option.name);
    for (const char* word : lua_keywords)
      if (!completion.word.empty()) offer(word);
  }
  if (push_path(lua, parts, parts.size() - 1)) {
    if (lua_type(lua, -1) == LUA_TTABLE) {
      for (lua_pushnil(lua); lua_next(lua, -2) != 0; lua_pop(lua, 1))
        if (lua_type(lua, -2) == LUA_TSTRING) offer(lua_tostring(lua, -2));
    }
    lua_pop(lua, 1);
  }
  std::erase_if(completion.choices, [](const std::string& name) {
    return !std::all_of(name.begin(), name.end(), part_of_name);
  });
  std::sort(completion.choices.begin(), completion.choices.end());
  completion.choices.erase(std::unique(completion.choices.begin(), completion.choices.end()),
                           completion.choices.end());
  return completion;
}

void Script::repl(const Prompt& prompt) {
  lua_State* lua = state_->lua;
  run_text("mw = require 'meshwright'", "repl");
  if (prompt.help) {
    lua_pushlightuserdata(lua, const_cast<Prompt*>(&prompt));
    lua_pushcclosure(lua, guarded<show_help>, 1);
    lua_setglobal(lua, "help");
  }
  std::string chunk;
  while (true) {
    std::optional<std::string> read;
    try {
      read = prompt.read(chunk.empty() ? "> " : ">> ");
    } catch (const Stopped&) {
      chunk.clear();
      continue;
    }
    if (!read) return;
    std::string line = *read;
    if (chunk.empty() && line.starts_with("=")) line = "return " + line.substr(1);
    chunk += chunk.empty() ? line : "\n" + line;
    // An expression prints its values, as in Lua's own prompt.
    const std::string expression = "return " + chunk;
    int status = luaL_loadbufferx(lua, expression.data(), expression.size(), "=repl", "t");
    if (status != LUA_OK) {
      lua_pop(lua, 1);
      status = luaL_loadbufferx(lua, chunk.data(), chunk.size(), "=repl", "t");
    }
    if (status == LUA_ERRSYNTAX && std::string_view(lua_tostring(lua, -1)).ends_with("<eof>")) {
      lua_pop(lua, 1);
      continue;
    }
    chunk.clear();
    const int base = lua_gettop(lua) - 1;
    try {
      if (status != LUA_OK) throw load_error(lua, "repl");
      {
        const InScript running(state_->watch.stuck());
        protected_call(lua, 0, LUA_MULTRET);
      }
      std::string values;
      for (int i = base + 1; i <= lua_gettop(lua); ++i) {
        values += i > base + 1 ? "\t" : "";
        values += luaL_tolstring(lua, i, nullptr);
        lua_pop(lua, 1);
      }
      state_->show_results();
      if (lua_gettop(lua) > base) prompt.print(values);
    } catch (const Error& error) {
      prompt.error(error);
    }
    lua_settop(lua, base);
    forget_stop_request();
    state_->watch.verb_ended();
    state_->watch.begin(lua);
  }
}

}  // namespace mw
