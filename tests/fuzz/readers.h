// Readers of what comes from outside, as fuzzers call them: libFuzzer's program (entry/fuzzer.cpp)
// for as long as one likes, and replay_test.cpp, which needs no clang, for a moment in each run of
// the tests. A reader is the product's own; what stands here only hands bytes to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lua/host.h"
#include "meshwright/json.h"
#include "script/read_experiment.h"

namespace mw::fuzz {

using Bytes = std::span<const std::uint8_t>;

struct Reader {
  const char* name;
  // What it is given is refused by an Error and nothing else: a crash, another exception, more than
  // 10 s or more than 2 GB are faults.
  void (*read)(Bytes input);
  int tries;  // mutated inputs of a run of the tests: about half a second
};

// All of them, by name.
const std::vector<Reader>& readers();
const Reader* find_reader(std::string_view name);

class AddReader {
 public:
  explicit AddReader(Reader reader);
};

// What the reader throws that is no Error, with its type; empty: nothing.
std::string fault_of(const Reader& reader, Bytes input);

// The input as text.
std::string text_of(Bytes input);
// Lines are cut off one by one: the first of `text`, which is left without it.
std::string take_line(std::string& text);

// A file in a folder of this process, which goes with it. Each has another time of its last change,
// by which readers know what they have seen.
std::filesystem::path file_of(const std::string& name, std::string_view bytes);
std::filesystem::path scratch_folder();
// Removes what lies in that folder.
void clear_scratch();

// Throws std::logic_error, which is a fault.
void must(bool holds, const char* what);

// The plugins beside this program.
PluginRegistry& test_plugins();
// The experiment of such a table; nothing where its plans would be large or it would write files,
// which is no reader's matter. Throws Error.
std::optional<Experiment> small_experiment(const Json& table, const CallFunction& call);

// What a Lua expression yields, "{ layers = 2 }", as scripts' tables are read. There are no
// libraries, and it may take some million instructions and 64 MiB. Throws Error (script) for what
// is no expression.
Json lua_table(const std::string& expression);

}  // namespace mw::fuzz
