// The base of the program's commands. Each command has a file of its own, where it registers itself
// with the words that call it, its options and what it does.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "app/joined.h"
#include "app/output.h"
#include "app/sandboxed.h"
#include "meshwright/engine/interrupt.h"
#include "meshwright/engine/registry.h"

namespace mw {

constexpr int exit_cells_failed = 4;

// The arguments that any command may have.
struct Arguments {
  virtual ~Arguments() = default;
  // paths of the scripts that the command runs
  virtual std::vector<std::string> scripts() const { return {}; }
  bool json = false, quiet = false;
  std::vector<std::string> settings, plugin_path;
  std::vector<std::string> words;  // what stands after "--": the script's `arg`
  ProcessArguments processes;
  SandboxArguments sandbox;
};

class Command {
 public:
  enum Flags {
    plain = 0,
    scripted = 1,  // takes words after "--", which are for its script
    joins = 2,     // runs in each of several processes; other commands run in the first one alone
  };
  struct About {
    const char* path;  // the words that call it: "runs list"
    int place;         // place in --help, which lists the lowest first
    std::string about;
    int flags = plain;
    bool is(Flags flag) const { return (flags & flag) != 0; }
  };
  explicit Command(About about);  // registers the command
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  const About& about() const { return about_; }
  virtual void add_options(CLI::App& command) = 0;
  virtual Arguments& arguments() = 0;
  virtual int run(Output& output) = 0;  // returns the exit code

 private:
  About about_;
};
const std::vector<Command*>& all_commands();  // in the order of their places

// A command whose options are read into a structure of its own, which derives from Arguments.
template <class Own>
class CommandOf final : public Command {
 public:
  using Add = void (*)(CLI::App& command, Own& arguments);
  using Run = int (*)(const Own& arguments, Output& output);
  CommandOf(About about, Add add_options_of, Run run_command)
      : Command(std::move(about)), add_(add_options_of), run_(run_command) {}

  void add_options(CLI::App& command) override { add_(command, own_); }
  Arguments& arguments() override { return own_; }
  int run(Output& output) override { return run_(own_, output); }

 private:
  Own own_;
  Add add_;
  Run run_;
};

// A group of commands, such as "runs", which does nothing by itself.
CommandOf<Arguments> command_group(Command::About about);

// Enters a sandbox if the arguments ask for one, or if this process was started in one. Returns the
// exit code if another process has done all there is to do, or after an error, which is printed.
std::optional<int> enter_sandbox(Arguments& arguments);

PluginRegistry registry_of(const Arguments& arguments);

// Accepts finite numbers from `least` to `most`. CLI::Range also accepts NaN, and words that C
// reads as numbers.
CLI::Validator number_in(double least, double most);

// Options that several commands have.
void add_json(CLI::App& command, Arguments& arguments);
void add_quiet(CLI::App& command, Arguments& arguments);
void add_settings(CLI::App& command, Arguments& arguments);
void add_common(CLI::App& command, Arguments& arguments,
                bool json = true);  // --plugin-path, --json

}  // namespace mw
