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
  std::vector<std::string> settings;  // values of --set, each "key=value"
  // By setting: the option that stands for it, as "--stack megatron-core".
  std::map<std::string, std::string> given_as;
  std::vector<std::string> words;  // the script's arguments: arg[1], arg[2], …
  std::string train_as = "train";  // what mw.train does: "train", "plan", "verify" or "prove"
  std::filesystem::path library;   // folder that holds meshwright/init.lua
  // Bytes that the tables and texts of an untrusted script may take; it runs in a sandbox
  // (sandbox.h). 0: the script is trusted.
  std::size_t sandboxed = 0;
  std::function<void(const std::string&)> say;  // tells the user which settings were applied
};

// A script as it was read, once: standard input cannot be read again.
struct ScriptText {
  std::string name;  // name in messages: the path, or "stdin"
  // The folder where modules and data are looked for: the script's own, or the working
  // directory.
  std::filesystem::path folder;
  std::string text;
  bool is_file = false;  // a regular file, no pipe
  // The folder with copies of files that the script loads (Host::loaded), taken where a file has
  // changed or is gone. Empty: none.
  std::filesystem::path copies = {};
};

// Reads a script. "-" is standard input; pipes (/dev/stdin, <(…)) are read to their end. Throws
// Error (script) if there is none.
ScriptText read_script(const std::filesystem::path& file);

// The folder of the Lua library: ../share/meshwright/lua beside the program.
std::filesystem::path lua_library();
std::string lua_release();  // "Lua 5.4.4"

// The input and output of the prompt.
struct Prompt {
  // The next line, without its end; nothing at the end of the input. Throws Stopped where the user
  // gave a line up: the lines before it are forgotten, too.
  std::function<std::optional<std::string>(const std::string& prompt)> read;
  std::function<void(const std::string&)> print;
  std::function<void(const Error&)> error;
  // What help(x) prints for a name ("mw.train", "steps"), or for "" a list of all. If x is no text,
  // `name` is that of x. Throws Error for an unknown name. Null: there is no help.
  std::function<std::string(const std::string& name)> help;
};

struct Completion {
  std::string word;                  // the last part of a path, which may be completed
  std::vector<std::string> choices;  // whole words, sorted
};

// A Lua state that can require the module "meshwright". Errors are thrown as Error with the
// script's file and line: of stage script for the script's own, else as the host threw them. An
// Error may hold several problems.
class Script {
 public:
  Script(Host& host, ScriptOptions options);
  ~Script();
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  void run_file(const std::filesystem::path& file) { run(read_script(file)); }
  // Runs a script to its end, or to where a sweep was only listed (Host::run_sweep).
  void run(const ScriptText& script);
  // `name` stands for the file in messages.
  void run_text(const std::string& text, const std::string& name);
  // Reads statements and expressions until the end of input; errors go to `prompt.error`.
  void repl(const Prompt& prompt);
  // The completions of the word before the cursor: a global name, a field of a table ("mw.tr"), or,
  // inside the braces of a table with options, a name of one ("tp { wa").
  Completion complete(const std::string& before);

  // Runs the sweeps that the script made and did not run itself; returns how many it made.
  std::size_t run_sweeps();

  // The texts of results that the script did not print itself, in order. If more than two can stand
  // in a list (Host::row_of), the first is whole, and a list of them comes at the end.
  std::vector<std::string> unprinted() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// A condition on rows. It sees a row's fields by name, math, string, type, tonumber, tostring,
// ipairs, pairs, and KiB, MiB, GiB, TiB; nothing of the machine. It may take some million
// instructions and 64 MiB.
class Predicate {
 public:
  // `fields`: all names that a row may have. `asked_by` names the option. Throws Error (options) if
  // the text is no expression.
  Predicate(std::string asked_by, std::string text, std::set<std::string> fields);
  ~Predicate();
  Predicate(const Predicate&) = delete;
  Predicate& operator=(const Predicate&) = delete;

  enum class Answer { yes, no, lacks };  // lacks: it computes with a field that this row lacks
  // Throws Error (options) if the condition fails, or names an unknown field.
  Answer operator()(const Json& row);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace mw
