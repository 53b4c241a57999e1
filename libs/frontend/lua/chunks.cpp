// Reads scripts and the modules that they require, as text only: compiled Lua could do anything
// to the process.
#include "lua/chunks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <sstream>
#include <system_error>

#include "common/files.h"
#include "lua/code.h"
#include "lua/guarded.h"
#include "lua/host.h"
#include "lua/state.h"
#include "meshwright/engine/bounds.h"
#include "meshwright/engine/files.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/text.h"

namespace mw {
namespace fs = std::filesystem;
namespace {

constexpr char compiled = LUA_SIGNATURE[0];
constexpr std::size_t most_script_bytes = std::size_t{64} << 20;

// A hint for a script that is not there: the file nearest to its name.
std::string nearest_file(const fs::path& file) {
  std::vector<std::string> names;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".lua") names.push_back(entry->path().filename().string());
  }
  // Shipped scripts lie in scripts/.
  const fs::path shipped = fs::path("scripts") / file.filename();
  if (!file.has_parent_path() && fs::is_regular_file(shipped, error))
    return fmt::format("did you mean {}?", shipped.string());
  const std::string near = nearest(file.filename().string(), names);
  return near.empty() ? "" : fmt::format("did you mean {}?", (file.parent_path() / near).string());
}

std::string read_all(int file, const std::string& name) {
  std::string text;
  char block[1 << 16];
  while (true) {
    if (text.size() > most_script_bytes) {
      throw Error(Stage::script, "script.unreadable", "",
                  fmt::format("{}: it has more than {} MiB, and scripts are short", name,
                              most_script_bytes >> 20),
                  "give the script's own text");
    }
    const ssize_t got = ::read(file, block, sizeof block);
    if (got > 0) text.append(block, static_cast<std::size_t>(got));
    if (got == 0) return text;
    if (got < 0 && errno == EINTR && !stop_requested()) continue;
    if (got < 0 && stop_requested()) throw Stopped("interrupted");
    if (got < 0) {
      throw Error(
          Stage::script, "script.unreadable", "",
          fmt::format("{}: cannot read it: {}", name, std::generic_category().message(errno)));
    }
  }
}

// Calls the wrapped function with the mode "t" (text only) as argument `index`, whatever was given
// there.
int call_as_text(lua_State* lua, int index) {
  if (lua_gettop(lua) < index) lua_settop(lua, index);
  lua_pushliteral(lua, "t");
  lua_replace(lua, index);
  const int arguments = lua_gettop(lua);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, arguments, LUA_MULTRET);
  return lua_gettop(lua);
}

// load(chunk, name, mode, env), loadfile(file, mode, env)
int load(lua_State* lua) {
  return call_as_text(lua, 3);
}
// luaL_loadfilex for text, which opens nothing that is no regular file.
int load_file(lua_State* lua, const char* file) {
  const std::string kind = file == nullptr ? "" : irregular(file);
  if (kind.empty()) return luaL_loadfilex(lua, file, "t");
  lua_pushfstring(lua, "cannot open %s: it is %s", file, kind.c_str());
  return LUA_ERRFILE;
}

// Where the copy of a file lies, relative to the folder of copies: at the path that the script
// names, if that is below the working directory. Files from elsewhere may share a name, so each has
// a folder of its own.
fs::path place_of_copy(const fs::path& file) {
  const fs::path place = file.lexically_normal();
  if (place.is_relative() && !place.empty() && *place.begin() != "..") return place;
  const std::string whole = place.string();
  Fnv1a<std::uint64_t> hash;
  hash.add(whole.data(), whole.size());
  return fs::path("loaded") / fmt::format("{:016x}", hash.value()) / place.filename();
}

// The file that loadfile and dofile read: the named one, or its copy if the named one is gone or
// has changed since copies were made.
std::string file_meant(lua_State* lua, const std::string& given) {
  const Script::State& state = Script::State::of(lua);
  std::error_code error;
  const auto copy_in = [&](const fs::path& folder) {
    const fs::path copy = folder / place_of_copy(given);
    return !folder.empty() && fs::is_regular_file(copy, error) ? copy.string() : "";
  };
  const bool there = fs::exists(given, error);
  const auto text_of = [&](const std::string& file) {
    return fs::is_regular_file(file, error) ? whole_file(file) : std::nullopt;
  };
  if (const std::string copy = copy_in(state.copies); !copy.empty())
    return there && text_of(given) == text_of(copy) ? given : copy;
  if (there) return given;
  const std::string copy = copy_in(state.folder);
  return copy.empty() ? given : copy;
}

// Tells the host of a file that is loaded, but for those that ship.
void tell_loaded(lua_State* lua, const fs::path& place, const std::string& file) {
  Script::State& state = Script::State::of(lua);
  std::error_code error;
  const fs::path library = fs::weakly_canonical(state.options.library, error);
  const fs::path path = fs::weakly_canonical(file, error).lexically_relative(library);
  const bool ships = !path.empty() && *path.begin() != "..";
  const bool reads = !ships && fs::is_regular_file(file, error);
  const std::optional<std::string> text = reads ? whole_file(file) : std::nullopt;
  if (text) state.host.loaded(place.generic_string(), *text);
}

// Replaces the first argument of loadfile and dofile by the file that file_meant() finds.
void take_file(lua_State* lua) {
  if (lua_type(lua, 1) != LUA_TSTRING) return;  // standard input
  const std::string given = lua_tostring(lua, 1), file = file_meant(lua, given);
  lua_pushlstring(lua, file.data(), file.size());
  lua_replace(lua, 1);
  tell_loaded(lua, place_of_copy(given), file);
}

int loadfile(lua_State* lua) {
  take_file(lua);
  const char* file = luaL_optstring(lua, 1, nullptr);
  if (file == nullptr || irregular(file).empty()) return call_as_text(lua, 2);
  lua_pushnil(lua);
  load_file(lua, file);
  return 2;
}

int dofile(lua_State* lua) {
  take_file(lua);
  const char* file = luaL_optstring(lua, 1, nullptr);
  lua_settop(lua, 1);
  if (load_file(lua, file) != LUA_OK) return lua_error(lua);
  lua_call(lua, 0, LUA_MULTRET);
  return lua_gettop(lua) - 1;
}

// The first file of a search path that is there and that the script may read; "": none is, and
// `missing` becomes why. Opens nothing, unlike Lua's own: opening a named pipe waits for its
// writer.
std::string find_module(lua_State* lua, const char* name, const char* path, std::string& missing) {
  std::istringstream files(luaL_gsub(lua, path, LUA_PATH_MARK, name));
  lua_pop(lua, 1);
  for (std::string file; std::getline(files, file, *LUA_PATH_SEP);) {
    if (may_read(file) && ::access(file.c_str(), R_OK) == 0) return file;
    missing += fmt::format("{}no file '{}'", missing.empty() ? "" : "\n\t", file);
  }
  return "";
}

// package.searchpath(name, path, separator, replacement)
int search_path(lua_State* lua) {
  const char* separator = luaL_optstring(lua, 3, ".");
  const char* replacement = luaL_optstring(lua, 4, LUA_DIRSEP);
  const char* name = luaL_checkstring(lua, 1);
  if (*separator != '\0') name = luaL_gsub(lua, name, separator, replacement);
  std::string missing;
  const std::string found = find_module(lua, name, luaL_checkstring(lua, 2), missing);
  if (found.empty()) lua_pushnil(lua);
  lua_pushstring(lua, found.empty() ? missing.c_str() : found.c_str());
  return found.empty() ? 2 : 1;
}

// Pushes what a searcher of package.searchers returns for a module's file: the module's function
// and the file's name. Raises an error of Lua if the file does not load.
int load_module(lua_State* lua, const std::string& name, const std::string& file) {
  if (load_file(lua, file.c_str()) != LUA_OK) {
    return luaL_error(lua, "error loading module '%s' from file '%s':\n\t%s", lua_tostring(lua, 1),
                      file.c_str(), lua_tostring(lua, -1));
  }
  tell_loaded(lua, place_of_copy(name + ".lua"), file);
  lua_pushlstring(lua, file.data(), file.size());
  return 2;
}

// The second of package.searchers: a module's Lua file. Refuses an irregular file that a later
// searcher would open.
int search(lua_State* lua) {
  const char* name = luaL_gsub(lua, luaL_checkstring(lua, 1), ".", LUA_DIRSEP);
  std::string missing;
  lua_getfield(lua, lua_upvalueindex(1), "path");
  if (lua_type(lua, -1) != LUA_TSTRING) return luaL_error(lua, "'package.path' must be a string");
  const std::string file = find_module(lua, name, lua_tostring(lua, -1), missing);
  if (!file.empty()) return load_module(lua, name, file);
  lua_getfield(lua, lua_upvalueindex(1), "cpath");
  std::string ignored;
  const std::string compiled_module = lua_type(lua, -1) == LUA_TSTRING
                                          ? find_module(lua, name, lua_tostring(lua, -1), ignored)
                                          : "";
  if (const std::string kind = irregular(compiled_module); !kind.empty())
    return luaL_error(lua, "cannot open %s: it is %s", compiled_module.c_str(), kind.c_str());
  lua_pushstring(lua, missing.c_str());
  return 1;
}

void wrap(lua_State* lua, const char* name, lua_CFunction function) {
  lua_getglobal(lua, name);
  lua_pushcclosure(lua, function, 1);
  lua_setglobal(lua, name);
}

}  // namespace

ScriptText read_script(const fs::path& file) {
  ScriptText script;
  std::error_code error;
  const bool from_stdin = file == "-";
  script.name = from_stdin ? "stdin" : file.string();
  script.folder = ".";
  if (from_stdin) {
    script.text = read_all(STDIN_FILENO, script.name);
    return script;
  }
  const std::string kind = irregular(file);
  if (!fs::exists(file, error) || !kind.empty()) {
    throw Error(Stage::script, "script.unreadable", "",
                fmt::format("{}: {}", file.string(),
                            kind.empty() ? "there is no such script"
                                         : fmt::format("this is {}, not a script", kind)),
                nearest_file(file));
  }
  // A pipe has no folder of its own.
  if (fs::is_regular_file(file, error) && file.has_parent_path())
    script.folder = file.parent_path();
  script.is_file = fs::is_regular_file(file, error);
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) {
    throw Error(Stage::script, "script.unreadable", "",
                fmt::format("{}: cannot read it: {}", file.string(),
                            std::generic_category().message(errno)));
  }
  try {
    script.text = read_all(opened, script.name);
  } catch (...) {
    ::close(opened);
    throw;
  }
  ::close(opened);
  return script;
}

Error load_error(lua_State* lua, const std::string& name) {
  Problem problem = take_error(lua).problems().front();
  // Lua says "file:3: what", with long file names cut ("...ts/long.lua:3:"); the whole one can be
  // clicked on.
  const std::string_view said = problem.message;
  const auto begin = said.find(':'), end = said.find(": ");
  std::string_view file = said.substr(0, begin);
  if (file.starts_with("...")) file.remove_prefix(3);
  if (end != said.npos && end > begin && name.ends_with(file)) {
    problem.place = name + problem.message.substr(begin, end - begin);
    problem.message.erase(0, end + 2);
  }
  return Error(std::move(problem));
}

void load_script(lua_State* lua, const ScriptText& script) {
  std::string_view text = script.text;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  // The first line may be for the shell; its end stays, so that lines keep their numbers.
  if (text.starts_with("#")) text.remove_prefix(std::min(text.size(), text.find('\n')));
  if (text.starts_with(compiled)) {
    throw Error(Stage::script, "script.unreadable", "",
                fmt::format("{}: this is compiled Lua, and scripts are text", script.name),
                "give the source that it was compiled from");
  }
  const std::string chunk = (script.is_file ? "@" : "=") + script.name;
  if (luaL_loadbufferx(lua, text.data(), text.size(), chunk.c_str(), "t") == LUA_OK) return;
  throw load_error(lua, script.name);
}

void load_text_only(lua_State* lua) {
  wrap(lua, "load", load);
  wrap(lua, "loadfile", loadfile);
  wrap(lua, "dofile", dofile);
  lua_getglobal(lua, "package");
  lua_pushcfunction(lua, guarded<search_path>);
  lua_setfield(lua, -2, "searchpath");
  lua_getfield(lua, -1, "searchers");
  lua_pushvalue(lua, -2);
  lua_pushcclosure(lua, guarded<search>, 1);
  lua_pushvalue(lua, -1);
  lua_setfield(lua, LUA_REGISTRYINDEX, searcher_key);
  lua_rawseti(lua, -2, 2);
  lua_pop(lua, 2);
}

}  // namespace mw
