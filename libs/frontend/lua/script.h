// Runs an experiment script against a Host.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lua/host.h"
#include "meshwright/json.h"

namespace mw {

struct ScriptOptions {
  std::vector<std::string> settings;            // of --set, "key=value" each
  std::map<std::string, std::string> given_as;  // settings that other options stand for, with these
  std::vector<std::string> words;               // the script's arguments: arg[1], arg[2], …
  std::string train_as = "train";  // what mw.train does: "train", "plan", "verify" or "prove"
  std::filesystem::path library;   // folder that holds meshwright/init.lua
  // What the script's tables and texts may take, in bytes, of a script that nobody vouches for: it
  // finds only what computes in Lua's libraries (sandbox.h). 0: it is trusted.
  std::size_t sandboxed = 0;
  std::function<void(const std::string&)> say;  // tells the user which settings were applied
};

// A script as it was read, once: standard input cannot be read again.
struct ScriptText {
  std::string name;  // in messages: the path, or "stdin"
  std::filesystem::path
      folder;  // where its modules and data are looked for: its own, or the working directory
  std::string text;
  bool is_file = false;  // and no pipe
  // Where copies of what it loads lie (Host::loaded), which are taken where the file of that name
  // has changed or is gone; empty: there are none.
  std::filesystem::path copies = {};
};

// "-" is standard input; pipes (/dev/stdin, <(…)) are read to their end.
// Throws Error (script) if there is none.
ScriptText read_script(const std::filesystem::path& file);

// ../share/meshwright/lua beside the program.
std::filesystem::path lua_library();
std::string lua_release();  // "Lua 5.4.4"

// Where the prompt's lines come from, and where what they yield goes.
struct Prompt {
  // The next line, without its end; nothing at the end of the input. Throws Stopped where the user
  // gave a line up: what was begun is forgotten.
  std::function<std::optional<std::string>(const std::string& prompt)> read;
  std::function<void(const std::string&)> print;
  std::function<void(const Error&)> error;
  // What the prompt's help(x) prints: of a name ("mw.train", "steps"), which is a value's where x
  // is none; of "", what there is. Throws Error where nothing is called so. Null: there is no help.
  std::function<std::string(const std::string& name)> help;
};

struct Completion {
  std::string word;                  // what is there: the last part of a path
  std::vector<std::string> choices;  // whole words, sorted
};

// A Lua state with the module "meshwright" to be required. Errors are thrown as Error with the
// script's file and line: stage script for the script's own, else whatever the host threw. The
// second and later messages of a script that fails are all its problems at once.
class Script {
 public:
  Script(Host& host, ScriptOptions options);
  ~Script();
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  void run_file(const std::filesystem::path& file) { run(read_script(file)); }
  // Returns too where a sweep was only listed, which ends the script (Host::run_sweep).
  void run(const ScriptText& script);
  // `name` stands for the file in messages.
  void run_text(const std::string& text, const std::string& name);
  // Reads statements and expressions until the end of input; errors are told, not thrown.
  void repl(const Prompt& prompt);
  // What the word before the cursor may become: a global name, a field of a table ("mw.tr"), or,
  // inside the braces of what takes options, one of their names ("tp { wa").
  Completion complete(const std::string& before);

  // Runs those sweeps that the script made and did not run itself; how many it made.
  std::size_t run_sweeps();

  // The texts of results that the script did not print itself, in order. Of more than two that can
  // stand in a list (Host::row_of), the first whole and a list of the others, at the end.
  std::vector<std::string> unprinted() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// The condition sees the row's fields by name, math, string, type, tonumber, tostring, and KiB,
// MiB, GiB, TiB; nothing of the machine. It may take some million instructions and 64 MiB.
class Predicate {
 public:
  // `fields`: all that a row may have; any other name is a mistake. `asked_by` names the option.
  // Throws Error (options) if it is no expression.
  Predicate(std::string asked_by, std::string text, std::set<std::string> fields);
  ~Predicate();
  Predicate(const Predicate&) = delete;
  Predicate& operator=(const Predicate&) = delete;

  enum class Answer { yes, no, lacks };  // lacks: it computes with a field that this row lacks
  // Throws Error (options) if the condition fails, or names a field that there is not.
  Answer operator()(const Json& row);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mw
