// The list of readers, and files and tables for them.
#include "fuzz/readers.h"

#include <cxxabi.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <lua.hpp>
#include <memory>
#include <stdexcept>
#include <typeinfo>

#include "lua/value.h"
#include "meshwright/error.h"

namespace mw::fuzz {

namespace fs = std::filesystem;

namespace {

std::vector<Reader>& all_readers() {
  static std::vector<Reader> all;
  return all;
}

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type.name();
}

// A folder that the process which made it removes at its end. Copies of the process
// (record/probe.h) leave it alone.
class Scratch {
 public:
  Scratch() : owner_(::getpid()) {
    // In memory where that can be: run files are brought to the disk, which may take long.
    const fs::path memory = "/dev/shm";
    const fs::path folder =
        ::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
    std::string name = (folder / "meshwright-fuzz-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for files");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (::getpid() == owner_) fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  pid_t owner_;
  fs::path path_;
};

// What Lua allocates, up to a limit.
struct LuaMemory {
  std::size_t left = std::size_t{64} << 20;
  static void* change(void* self, void* block, std::size_t before, std::size_t size) {
    auto& memory = *static_cast<LuaMemory*>(self);
    if (block == nullptr) before = 0;
    if (size > before && size - before > memory.left) return nullptr;
    memory.left += before;
    memory.left -= size;
    if (size > 0) return std::realloc(block, size);
    std::free(block);
    return nullptr;
  }
};

void too_long(lua_State* lua, lua_Debug*) {
  luaL_error(lua, "it takes too long");
}

}  // namespace

const std::vector<Reader>& readers() {
  static const bool sorted = [] {
    std::sort(all_readers().begin(), all_readers().end(),
              [](const Reader& a, const Reader& b) { return std::string_view(a.name) < b.name; });
    return true;
  }();
  static_cast<void>(sorted);
  return all_readers();
}

const Reader* find_reader(std::string_view name) {
  for (const Reader& reader : readers())
    if (reader.name == name) return &reader;
  return nullptr;
}

AddReader::AddReader(Reader reader) {
  all_readers().push_back(reader);
}

std::string fault_of(const Reader& reader, Bytes input) {
  try {
    reader.read(input);
  } catch (const Error&) {  // refused
  } catch (const std::exception& thrown) {
    return fmt::format("{}: {}", type_name(typeid(thrown)), thrown.what());
  }
  return "";
}

std::string text_of(Bytes input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

std::string take_line(std::string& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line = text.substr(0, end);
  text.erase(0, end + 1);
  return line;
}

fs::path scratch_folder() {
  static const Scratch scratch;
  return scratch.path();
}

void clear_scratch() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(scratch_folder(), ignored))
    fs::remove_all(entry.path(), ignored);
}

fs::path file_of(const std::string& name, std::string_view bytes) {
  static long files = 0;
  fs::path path = scratch_folder() / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  const timespec time{1'000'000'000 + ++files, 0};
  const timespec times[] = {time, time};
  ::utimensat(AT_FDCWD, path.c_str(), times, 0);
  return path;
}

void must(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

Json lua_table(const std::string& expression) {
  LuaMemory memory;
  const std::unique_ptr<lua_State, decltype(&lua_close)> lua(
      lua_newstate(&LuaMemory::change, &memory), &lua_close);
  must(lua != nullptr, "no Lua state");
  const auto refuse = [&] {
    const char* said = lua_tostring(lua.get(), -1);
    throw Error(Stage::script, "script.table", "", said == nullptr ? "it is no table" : said);
  };
  const std::string chunk = "return " + expression;
  if (luaL_loadbufferx(lua.get(), chunk.data(), chunk.size(), "=input", "t") != LUA_OK) refuse();
  lua_sethook(lua.get(), too_long, LUA_MASKCOUNT, 2'000'000);
  if (lua_pcall(lua.get(), 0, 1, 0) != LUA_OK) refuse();
  lua_sethook(lua.get(), nullptr, 0, 0);
  // Reading the table allocates a little in Lua, which is not to count for the script.
  memory.left += std::size_t{64} << 20;
  return to_json(lua.get(), -1, "");
}

}  // namespace mw::fuzz
