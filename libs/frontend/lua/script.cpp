// Makes the Lua state that a script runs in, runs a file or a prompt in it, and turns Lua's
// errors into ours.
#include "lua/script.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "lua/chunks.h"
#include "lua/guarded.h"
#include "lua/state.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

int no_exit(lua_State* lua) {
  return luaL_error(lua, "os.exit is not available: a script ends by returning from its last line");
}

// print: shows results that are `soon` first, and then prints as Lua does.
int print_values(lua_State* lua) {
  std::string line;
  const int count = lua_gettop(lua);
  for (int i = 1; i <= count; ++i) {
    std::size_t size = 0;
    const char* text = luaL_tolstring(lua, i, &size);
    line += i > 1 ? "\t" : "";
    line.append(text, size);
    lua_pop(lua, 1);
  }
  Script::State::of(lua).show_results();
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  return 0;
}

void set_package_path(lua_State* lua, const std::vector<fs::path>& folders) {
  std::string path;
  for (const fs::path& folder : folders) {
    path += fmt::format("{0}/?.lua;{0}/?/init.lua;", folder.string());
  }
  lua_getglobal(lua, "package");
  lua_getfield(lua, -1, "meshwright_path");  // Lua's own default, kept at the first call
  if (lua_isnil(lua, -1)) {
    lua_pop(lua, 1);
    lua_getfield(lua, -1, "path");
    lua_pushvalue(lua, -1);
    lua_setfield(lua, -3, "meshwright_path");
  }
  path += lua_tostring(lua, -1);
  lua_pop(lua, 1);
  lua_pushlstring(lua, path.data(), path.size());
  lua_setfield(lua, -2, "path");
  lua_pop(lua, 1);
}

std::vector<fs::path> module_folders(const Script::State& state) {
  std::vector<fs::path> folders;
  for (const fs::path& folder : {state.copies, state.folder})
    if (!folder.empty()) folders.push_back(folder);
  folders.push_back(state.options.library);
  return folders;
}

}  // namespace

fs::path lua_library() {
  return share_folder() / "lua";
}

std::string lua_release() {
  return LUA_RELEASE;
}

Script::Script(Host& host, ScriptOptions options)
    : state_(std::make_unique<State>(host, std::move(options))) {
  state_->memory.most = state_->options.sandboxed;
  const bool sandboxed = state_->options.sandboxed > 0;
  lua_State* lua = sandboxed ? new_bounded_state(state_->memory) : luaL_newstate();
  if (lua == nullptr) throw std::bad_alloc();
  state_->lua = lua;
  *static_cast<State**>(lua_getextraspace(lua)) = state_.get();
  luaL_openlibs(lua);
  lua_getglobal(lua, "os");
  lua_pushcfunction(lua, no_exit);
  lua_setfield(lua, -2, "exit");
  lua_pop(lua, 1);
  lua_pushcfunction(lua, guarded<print_values>);
  lua_setglobal(lua, "print");
  lua_getglobal(lua, "package");
  lua_getfield(lua, -1, "preload");
  lua_pushcfunction(lua, open_core);
  lua_setfield(lua, -2, "meshwright.core");
  lua_pop(lua, 2);
  set_package_path(lua, module_folders(*state_));
  load_text_only(lua);
  if (sandboxed) keep_to_sandbox(lua);
  state_->watch.begin(lua);
}

Script::~Script() {
  lua_close(state_->lua);
}

void Script::run(const ScriptText& script) {
  lua_State* lua = state_->lua;
  state_->folder = script.folder;
  state_->copies = script.copies;
  state_->file = script.name;
  set_package_path(lua, module_folders(*state_));
  const std::vector<std::string>& words = state_->options.words;
  luaL_checkstack(lua, static_cast<int>(words.size()) + 8, "too many arguments");
  lua_createtable(lua, static_cast<int>(words.size()), 1);
  lua_pushlstring(lua, script.name.data(), script.name.size());
  lua_rawseti(lua, -2, 0);
  lua_Integer position = 0;
  for (const std::string& word : words) {
    lua_pushlstring(lua, word.data(), word.size());
    lua_rawseti(lua, -2, ++position);
  }
  lua_setglobal(lua, "arg");
  load_script(lua, script);
  for (const std::string& word : words) lua_pushlstring(lua, word.data(), word.size());
  const InScript running(state_->watch.stuck());
  try {
    protected_call(lua, static_cast<int>(words.size()), 0);  // the words are `...` too
  } catch (const Error& error) {
    if (error.problems().front().code != script_ends) throw;
  }
}

void Script::run_text(const std::string& text, const std::string& name) {
  lua_State* lua = state_->lua;
  if (luaL_loadbufferx(lua, text.data(), text.size(), ("=" + name).c_str(), "t") != LUA_OK) {
    throw load_error(lua, name);
  }
  const InScript running(state_->watch.stuck());
  protected_call(lua, 0, 0);
}

std::vector<std::string> Script::unprinted() const {
  constexpr std::size_t most_whole = 2;
  std::vector<std::string> texts;
  std::vector<Json> rows;
  for (const State::Result& result : state_->results)
    if (!result.printed && !result.row.is_null()) rows.push_back(result.row);
  const bool lists = rows.size() > most_whole;
  bool first = true;
  for (const State::Result& result : state_->results) {
    if (result.printed) continue;
    const bool listed = lists && !result.row.is_null() && !first;
    if (!listed) texts.push_back(result.text);
    first = first && result.row.is_null();
  }
  if (lists) texts.push_back(state_->host.list_of(rows));
  return texts;
}

}  // namespace mw
