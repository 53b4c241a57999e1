// Hashes what a function of a script can reach: its code, without line numbers, what it closes
// over, and the globals and modules that it names.
#include "lua/code.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "lua/state.h"
#include "meshwright/engine/hash.h"
#include "meshwright/engine/text.h"
#include "meshwright/error.h"

namespace mw {
namespace {

static_assert(LUA_VERSION_NUM == 504, "the layout of binary code is that of Lua 5.4");

// The head of a Lua dump: signature, version, format, LUAC_DATA, three sizes, one integer, one
// number; then the count of the function's upvalues.
constexpr std::size_t bytes_of_head = 4 + 1 + 1 + 6 + 3 + sizeof(lua_Integer) + sizeof(lua_Number);
// Types of constants, as lobject.h has them.
constexpr unsigned char integer_constant = LUA_TNUMBER, real_constant = LUA_TNUMBER | 1 << 4,
                        short_text_constant = LUA_TSTRING,
                        long_text_constant = LUA_TSTRING | 1 << 4;
constexpr std::size_t bytes_of_instruction = 4, bytes_of_upvalue = 3;

// The binary code of Lua 5.4 (ldump.c of its sources) without the lines at which functions begin
// and end, the only line numbers that stripping leaves: a comment or an empty line above a function
// makes no other function of it.
class StrippedCode {
 public:
  explicit StrippedCode(std::string_view stripped) : dump_(stripped) {
    keep(bytes_of_head + 1);
    function();
  }
  const std::string& without_lines() const { return kept_; }
  // Every text constant: names of globals, fields and modules, and any other.
  const std::set<std::string>& texts() const { return texts_; }

 private:
  void function() {
    text();    // the name of its source, which is stripped
    number();  // the lines at which it begins and ends
    number();
    keep(3);  // how many parameters it has, whether it takes more, how large its stack is
    keep(kept_number() * bytes_of_instruction);
    for (std::size_t left = kept_number(); left > 0; --left) constant();
    keep(kept_number() * bytes_of_upvalue);
    for (std::size_t left = kept_number(); left > 0; --left) function();
    for (int stripped = 0; stripped < 4; ++stripped) number();
  }

  void constant() {
    const auto type = static_cast<unsigned char>(take(1).front());
    kept_ += static_cast<char>(type);
    if (type == integer_constant || type == real_constant) keep(sizeof(lua_Integer));
    if (type != short_text_constant && type != long_text_constant) return;
    const std::size_t size = text();
    texts_.emplace(dump_.substr(at_ - size, size));
  }

  std::size_t text() {
    const std::size_t size = kept_number();  // the text's length plus 1; 0: no text
    if (size > 0) keep(size - 1);
    return size > 0 ? size - 1 : 0;
  }

  std::size_t kept_number() {
    const std::size_t from = at_;
    const std::size_t value = number();
    kept_ += dump_.substr(from, at_ - from);
    return value;
  }

  // A number in the dump: seven bits a byte, the highest first; the last byte has the bit of 128.
  std::size_t number() {
    std::size_t value = 0;
    while (true) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value = value << 7 | (byte & 0x7f);
      if ((byte & 0x80) != 0) return value;
    }
  }

  void keep(std::size_t bytes) { kept_ += take(bytes); }

  std::string_view take(std::size_t bytes) {
    if (bytes > dump_.size() - at_)
      throw Error(Stage::script, "script.unreadable", "", "a function's code ends in its middle",
                  "build with Lua 5.4");
    const std::string_view taken = dump_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }

  std::string_view dump_;
  std::size_t at_ = 0;
  std::string kept_;
  std::set<std::string> texts_;
};

int take_code(lua_State*, const void* data, std::size_t size, void* code) {
  static_cast<std::string*>(code)->append(static_cast<const char*>(data), size);
  return 0;
}

// Hashes Lua values with all that they refer to. Functions and tables get numbers in the order in
// which they are found, and each is visited once, so that cycles end. Functions and tables as keys
// have no order that is the same in every process: they are sorted by a hash of some levels below
// them, and keys with equal hashes are not told apart.
class ValueHash {
 public:
  ValueHash(lua_State* lua, bool tables) : lua_(lua), tables_(tables) {
    luaL_checkstack(lua, 16, "functions nested too deep");
    lua_newtable(lua);
    list_ = lua_gettop(lua);
    find_names();
  }
  ValueHash(const ValueHash&) = delete;
  ValueHash& operator=(const ValueHash&) = delete;
  ~ValueHash() { lua_settop(lua_, list_ - 1); }

  // Adds a value; for a function or table, its number.
  void add(int index) {
    index = lua_absindex(lua_, index);
    const int type = lua_type(lua_, index);
    hash_.add(&type, sizeof type);
    if (type == LUA_TFUNCTION || type == LUA_TTABLE) {
      const auto named = names_.find(lua_topointer(lua_, index));
      if (named != names_.end()) return text(named->second);
      const bool followed = type == LUA_TTABLE ? tables_ || module_ : !lua_iscfunction(lua_, index);
      if (followed && walks_)
        number(index);
      else if (followed && levels_ > 0)
        look(index);
    } else {
      text(plain(index));
    }
  }

  // Visits all numbered functions and tables, and returns the hash.
  std::string whole() {
    for (std::size_t n = 1; n <= numbers_.size(); ++n) {
      lua_rawgeti(lua_, list_, static_cast<lua_Integer>(n));
      parts();
    }
    return fmt::format("{:016x}", hash_.value());
  }

 private:
  void text(std::string_view bytes) {
    const std::size_t size = bytes.size();
    hash_.add(&size, sizeof size);
    hash_.add(bytes.data(), size);
  }

  // The bytes of a number, a text or a truth value; "" of anything else.
  std::string plain(int index) {
    const auto bytes = [](const auto& value) {
      return std::string(reinterpret_cast<const char*>(&value), sizeof value);
    };
    if (lua_isinteger(lua_, index) != 0) return bytes(lua_tointeger(lua_, index));
    if (lua_type(lua_, index) == LUA_TNUMBER) return bytes(lua_tonumber(lua_, index));
    if (lua_type(lua_, index) == LUA_TBOOLEAN) return lua_toboolean(lua_, index) != 0 ? "t" : "f";
    std::size_t size = 0;
    const bool is_text = lua_type(lua_, index) == LUA_TSTRING;
    const char* letters = is_text ? lua_tolstring(lua_, index, &size) : "";
    return std::string(letters, size);
  }

  void number(int index) {
    const auto [found, fresh] = numbers_.emplace(lua_topointer(lua_, index), numbers_.size());
    hash_.add(&found->second, sizeof found->second);
    if (!fresh) return;
    lua_pushvalue(lua_, index);
    lua_rawseti(lua_, list_, static_cast<lua_Integer>(numbers_.size()));
  }

  // Adds the contents of the function or table on top of the stack, and pops it.
  void parts() {
    const int own = lua_gettop(lua_);
    luaL_checkstack(lua_, 16, "tables nested too deep");
    if (lua_isfunction(lua_, own))
      function();
    else
      table();
    lua_settop(lua_, own - 1);
  }

  // The hash of what `body` adds.
  template <class Body>
  std::uint64_t apart(const Body& body) {
    const auto outer = std::exchange(hash_, {});
    body();
    return std::exchange(hash_, outer).value();
  }

  // Adds a hash of a function or table that gives no numbers, made once for each depth.
  void look(int index) {
    const auto [seen, fresh] = seen_.try_emplace({lua_topointer(lua_, index), levels_});
    if (fresh) {
      module_ = false;
      --levels_;
      seen->second = apart([&] {
        lua_pushvalue(lua_, index);
        parts();
      });
      ++levels_;
    }
    hash_.add(&seen->second, sizeof seen->second);
  }

  // A sort key for a table's entry whose key is a function or a table.
  std::string place_of(int key, int value) {
    const auto known = numbers_.find(lua_topointer(lua_, key));
    if (walks_ && known != numbers_.end()) return fmt::format("#{:016x}", known->second);
    const bool walked = std::exchange(walks_, false);
    const std::uint64_t seen = apart([&] {
      add(key);
      add(value);
    });
    walks_ = walked;
    return fmt::format("{:016x}", seen);
  }

  void find_names() {
    lua_getfield(lua_, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    for (lua_pushnil(lua_); lua_next(lua_, -2) != 0; lua_pop(lua_, 1)) {
      if (lua_type(lua_, -2) != LUA_TSTRING || lua_type(lua_, -1) != LUA_TTABLE) continue;
      const std::string module = lua_tostring(lua_, -2);
      modules_.insert(lua_topointer(lua_, -1));
      const bool ours = module.starts_with("meshwright");
      if (ours || module == LUA_GNAME || module == LUA_LOADLIBNAME)
        names_[lua_topointer(lua_, -1)] = module;
      find_names_in(module, ours ? 2 : 0);
    }
    lua_pop(lua_, 1);
  }

  // Names the C functions in the table on top of the stack, and down to a depth also its Lua
  // functions and tables, whose code other releases of the program change.
  void find_names_in(const std::string& table, int depth) {
    for (lua_pushnil(lua_); lua_next(lua_, -2) != 0; lua_pop(lua_, 1)) {
      const bool is_table = lua_istable(lua_, -1);
      const bool has_name =
          lua_iscfunction(lua_, -1) != 0 || (depth > 0 && (is_table || lua_isfunction(lua_, -1)));
      if (lua_type(lua_, -2) != LUA_TSTRING || !has_name) continue;
      const std::string name = table + "." + lua_tostring(lua_, -2);
      std::string& known = names_[lua_topointer(lua_, -1)];
      if (known.empty() || name < known) known = name;
      if (is_table && depth > 1) find_names_in(name, depth - 1);
    }
  }

  std::string library_file_of(int function) {
    lua_Debug info;
    lua_pushvalue(lua_, function);
    lua_getinfo(lua_, ">S", &info);
    return library_file(lua_, info.source);
  }

  // Adds the code of the function on top of the stack, its upvalues, and the globals that it names.
  // A library function's code may change in each release: its file stands for it, and of its
  // upvalues only a script's functions count.
  void function() {
    const int own = lua_gettop(lua_);
    if (const std::string file = library_file_of(own); !file.empty()) {
      text(file);
      for (int i = 1; lua_getupvalue(lua_, own, i) != nullptr; lua_settop(lua_, own), ++i)
        if (lua_isfunction(lua_, -1) && library_file_of(-1).empty()) add(-1);
      return;
    }
    std::string dump;
    lua_dump(lua_, take_code, &dump, /*strip=*/1);
    const StrippedCode code(dump);
    text(code.without_lines());
    lua_rawgeti(lua_, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    const int globals = lua_gettop(lua_);
    for (int i = 1; lua_getupvalue(lua_, own, i) != nullptr; lua_settop(lua_, globals), ++i) {
      if (lua_rawequal(lua_, -1, globals) != 0) {
        named(code.texts(), globals);
      } else {
        add_held(-1);
      }
    }
  }

  // Adds a value that a function refers to. Modules count even where tables do not.
  void add_held(int index) {
    module_ = modules_.contains(lua_topointer(lua_, index));
    add(index);
    module_ = false;
  }

  // Adds the globals of these names, and the files that a function loads when it is called.
  void named(const std::set<std::string>& texts, int globals) {
    for (const std::string& name : texts) {
      lua_pushlstring(lua_, name.data(), name.size());
      if (lua_rawget(lua_, globals) != LUA_TNIL) {
        text(name);
        add_held(-1);
      }
      lua_pop(lua_, 1);
    }
    if (!walks_) return;
    const bool loads = texts.contains("dofile") || texts.contains("loadfile");
    for (const std::string& name : texts) {
      const bool file = loads && name.ends_with(".lua");
      if (!file && (!texts.contains("require") || name.starts_with("meshwright"))) continue;
      if (!files_.insert(name).second) continue;
      if (file)
        lua_getglobal(lua_, "loadfile");
      else
        lua_getfield(lua_, LUA_REGISTRYINDEX, searcher_key);
      lua_pushlstring(lua_, name.data(), name.size());
      if (lua_pcall(lua_, 1, 1, 0) == LUA_OK && lua_isfunction(lua_, -1)) add(-1);
      lua_pop(lua_, 1);
    }
  }

  // Adds the entries of the table on top of the stack, sorted by key: Lua keeps no order.
  void table() {
    const int own = lua_gettop(lua_);
    lua_newtable(lua_);  // the keys by their number
    std::vector<std::pair<std::string, lua_Integer>> order;
    for (lua_pushnil(lua_); lua_next(lua_, own) != 0; lua_pop(lua_, 1)) {
      const int type = lua_type(lua_, -2);
      std::string place(1, static_cast<char>(type));
      place += plain(-2);
      if (type != LUA_TNUMBER && type != LUA_TSTRING && type != LUA_TBOOLEAN) {
        place += place_of(lua_gettop(lua_) - 1, lua_gettop(lua_));
      } else if (place.substr(1) == place_key) {
        continue;  // the line at which the table was made
      }
      order.emplace_back(std::move(place), static_cast<lua_Integer>(order.size() + 1));
      lua_pushvalue(lua_, -2);
      lua_rawseti(lua_, own + 1, static_cast<lua_Integer>(order.size()));
    }
    std::sort(order.begin(), order.end());
    for (std::size_t k = 0; k < order.size(); ++k) {
      const auto& [place, n] = order[k];
      const bool alike = (k > 0 && order[k - 1].first == place) ||
                         (k + 1 < order.size() && order[k + 1].first == place);
      if (alike) {  // keys that are not told apart
        text(place);
        continue;
      }
      lua_rawgeti(lua_, own + 1, n);
      add(-1);
      lua_rawget(lua_, own);
      add(-1);
      lua_pop(lua_, 1);
    }
    const bool ours = luaL_getmetafield(lua_, own, "__name") == LUA_TSTRING &&
                      std::string_view(lua_tostring(lua_, -1)).starts_with("meshwright.");
    if (!ours && lua_getmetatable(lua_, own) != 0) add(-1);
  }

  lua_State* const lua_;
  const bool tables_;
  int list_ = 0;  // stack index of the list of numbered values, at number + 1
  std::map<const void*, std::size_t> numbers_;  // numbers of functions and tables
  std::set<std::string> files_;                 // files that functions load
  // Names of values that the program gives to all scripts: modules, their fields, the table of
  // globals, C functions.
  std::map<const void*, std::string> names_;
  std::set<const void*> modules_;
  bool module_ = false;  // the value that is added is a module
  bool walks_ = true;    // functions and tables get numbers; else look() hashes them
  int levels_ = 32;      // how many levels deeper look() goes
  std::map<std::pair<const void*, int>, std::uint64_t> seen_;
  Fnv1a<std::uint64_t> hash_;
};

}  // namespace

std::string code_of_function(lua_State* lua, int index, bool tables) {
  index = lua_absindex(lua, index);
  ValueHash hash(lua, tables);
  hash.add(index);
  return hash.whole();
}

}  // namespace mw
