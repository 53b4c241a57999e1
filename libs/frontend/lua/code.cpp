// Walks through the binary code of Lua 5.4 (ldump.c of its sources) and leaves line numbers out.
#include "lua/code.h"

#include <lua.hpp>

#include <cstdint>
#include <string_view>

#include "meshwright/error.h"

namespace mw {
namespace {

static_assert(LUA_VERSION_NUM == 504, "the layout of binary code is that of Lua 5.4");

// Signature, version, format, LUAC_DATA, three sizes, one integer, one number; then the count of
// the function's upvalues.
constexpr std::size_t bytes_of_head = 4 + 1 + 1 + 6 + 3 + sizeof(lua_Integer) + sizeof(lua_Number);
// Types of constants, as lobject.h has them.
constexpr unsigned char integer_constant = LUA_TNUMBER, real_constant = LUA_TNUMBER | 1 << 4,
                        short_text_constant = LUA_TSTRING,
                        long_text_constant = LUA_TSTRING | 1 << 4;
constexpr std::size_t bytes_of_instruction = 4, bytes_of_upvalue = 3;

class Walk {
 public:
  explicit Walk(std::string_view dump) : dump_(dump) {}

  std::string run() {
    keep(bytes_of_head + 1);
    function();
    return std::move(kept_);
  }

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
    if (type == short_text_constant || type == long_text_constant) text();
  }

  void text() {
    const std::size_t size = kept_number();  // one more than it has; 0: there is none
    if (size > 0) keep(size - 1);
  }

  std::size_t kept_number() {
    const std::size_t from = at_;
    const std::size_t value = number();
    kept_ += dump_.substr(from, at_ - from);
    return value;
  }

  // Seven bits a byte, the highest first; the last byte has the bit of 128.
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
};

}  // namespace

std::string code_without_lines(const std::string& dump) {
  if (dump.empty()) return dump;  // of a function that is not Lua's
  return Walk(dump).run();
}

}  // namespace mw
