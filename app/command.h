// What a command of the program is: it stands in a file of its own, where it registers itself with
// the words that call it, its options and what it does.
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

// What any command may be given.
struct Arguments {
  virtual ~Arguments() = default;
  virtual std::vector<std::string> scripts() const { return {}; }  // paths of those that it runs
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
    scripted = 1,  // what stands after "--" is for its script
    joins = 2,     // it runs in several processes; others are left to the first one
  };
  struct About {
    const char* path;  // the words that call it: "runs list"
    int place;         // among all commands of --help, which lists the lowest first
    std::string about;
    int flags = plain;
    bool is(Flags flag) const { return (flags & flag) != 0; }
  };
  explicit Command(About about);  // registers it
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
const std::vector<Command*>& all_commands();  // by their places

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

// The words under which commands stand together ("runs"), which are no command alone.
CommandOf<Arguments> command_group(Command::About about);

// Goes on in a sandbox where the arguments ask for one, or where this process was started in one.
// Returns the exit code where another process has done all there is to do; what was wrong is told.
std::optional<int> enter_sandbox(Arguments& arguments, const Command::About& about);

// The registry over the plugin path that was given.
PluginRegistry registry_of(const Arguments& arguments);

// Takes finite numbers from `least` to `most`; CLI::Range takes NaN too, and words that C reads.
CLI::Validator number_in(double least, double most);

// Options that several commands have.
void add_json(CLI::App& command, Arguments& arguments);
void add_quiet(CLI::App& command, Arguments& arguments);
void add_settings(CLI::App& command, Arguments& arguments);
void add_common(CLI::App& command, Arguments& arguments,
                bool json = true);  // --plugin-path, --json

}  // namespace mw
