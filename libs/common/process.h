// Starts processes, tells who started whom and how one has ended, and says what this process keeps
// while it runs and skips when it ends.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <functional>

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mw {

// Like fork(), but the child gets `signal` when this process ends, however it ends.
pid_t fork_tied(int signal);

struct ProcessStart {
  // The first word is a path, or a name that is looked up in PATH.
  std::vector<std::string> command;
  std::string program;  // file to run instead of the first word; empty: that word
  // "NAME=value", in place of this process' variable of that name
  std::vector<std::string> variables;
  std::string output;          // file for stdout and stderr, with empty stdin; "": all as here
  bool own_group = false;      // process group of its own: Ctrl-C does not reach it
  int tied_by = SIGTERM;       // signal that it gets when this process ends
  std::int64_t memory = 0;     // bytes that it may allocate; 0: no limit
  int lock = -1;               // descriptor that stays open in it; -1: none
  bool fresh_signals = false;  // SIGINT, SIGTERM, SIGHUP, SIGPIPE act by default
  std::optional<sigset_t> signals_blocked;  // its signal mask; none: this thread's
};

// The word as a shell's command line has it: in quotes if it needs them.
std::string shell_word(const std::string& word);

// Starts a process. Throws std::system_error if the fork fails or the program cannot be run, and
// Error (environment, "file.write") if `output` cannot be written.
pid_t start_process(const ProcessStart& start);

// Whether the child has ended; then `status` is what waitpid gives, or 0 if somebody else has
// waited for it.
bool child_ended(pid_t process, int& status);

// "SIGSEGV", or "signal 40" where it has no name.
std::string signal_name(int number);

std::vector<pid_t> children_of(pid_t process);  // children of all its threads; none if it is gone
bool runs_this_program(pid_t process);
// A variable of the environment with which the process was started; empty if it has none of that
// name.
std::string variable_of(pid_t process, const std::string& name);

std::string host_name();

// Clock ticks from the machine's boot to a process' start; none if there is no such process, or it
// is a zombie.
std::optional<unsigned long long> process_start(int process);

// Call it first in main(). At the end of the process, what is registered after this call is still
// torn down (statics of functions, plugins, files), and the libraries that were loaded before are
// not: libtorch's operators, unregistered one by one, take longer than many a command.
void exit_without_unloading();

// Makes the process keep the memory that it frees; for main(). A step allocates again what the last
// one freed, and so do plans made one after the other. By default glibc hands big blocks back to
// the system at once and faults every page in anew: 6 to 8 % of a small model's CPU time, a third
// of the time of a plan. 32 MiB is the largest threshold that glibc takes; the padding is what the
// heap of a thread keeps.
void keep_freed_memory();

// Calls work(0) … work(count - 1), in any order, in forked copies of this process; in this one if
// `processes` is 1. Returns the texts, of one line each. Throws Stopped when the user wishes to
// stop, Error (run) if a copy dies. An exception of `work` ends all.
std::vector<std::string> forked_map(std::size_t count, int processes,
                                    const std::function<std::string(std::size_t)>& work);

}  // namespace mw
