// Processes of this machine: how one is started, who started whom, how one has ended, and what this
// one keeps while it runs and leaves undone when it ends.
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

// A copy of this process, as fork() makes it, that gets `signal` when this process ends, however.
pid_t fork_tied(int signal);

struct ProcessStart {
  std::vector<std::string>
      command;          // its first word is a path, or a name that is looked up in PATH
  std::string program;  // the file that runs, where the first word is not it
  std::vector<std::string> variables;  // "NAME=value", in place of this process' of that name
  std::string output;          // file for what it says, then its input is empty; "": both as here
  bool own_group = false;      // the terminal's Ctrl-C is this process' to handle
  int tied_by = SIGTERM;       // what it gets when this process ends
  std::int64_t memory = 0;     // bytes that it may allocate; 0: no limit
  int lock = -1;               // a file that stays open in it
  bool fresh_signals = false;  // it heeds signals that this process ignores or handles
  std::optional<sigset_t> signals_blocked;  // in it; none: as here
};

// The word as a shell's command line has it: in quotes if it needs them.
std::string shell_word(const std::string& word);

// Throws std::system_error if it does not start, its program included. Throws Error (environment,
// "file.write") if `output` cannot be written.
pid_t start_process(const ProcessStart& start);

// Whether it has ended; then `status` is as waitpid has it.
bool child_ended(pid_t process, int& status);

// "SIGSEGV", or "signal 40" where it has no name.
std::string signal_name(int number);

std::vector<pid_t> children_of(pid_t process);  // of all its threads; none if it is gone
bool runs_this_program(pid_t process);
// A variable of the environment with which it was started; empty if it has none of the name.
std::string variable_of(pid_t process, const std::string& name);

std::string host_name();  // of this machine

// Clock ticks from the machine's boot to a process' start; none if it is not there, or has ended
// and nobody has asked how.
std::optional<unsigned long long> process_start(int process);

// To be called first in main(). When the process ends, what was registered since still happens
// (statics of functions, plugins, files); the libraries that were loaded before are not taken down:
// libtorch's operators, unregistered one by one, take longer than many a command.
void exit_without_unloading();

// From now on the process keeps what it frees; for main(). A step frees what the next one allocates
// again, and so do plans made one after the other. By default glibc hands big blocks back to the
// system at once and faults every page in anew: 6 to 8 % of a small model's CPU time, a third of
// what a plan takes. 32 MiB is the largest threshold that it takes; the padding is what a thread's
// heap keeps.
void keep_freed_memory();

// work(0) … work(count - 1), in any order, in copies of this process; here if `processes` is 1. The
// text of each; one line. Ends with the wish to stop by throwing Stopped. Throws Error (run) if a
// copy dies. What `work` throws ends all.
std::vector<std::string> forked_map(std::size_t count, int processes,
                                    const std::function<std::string(std::size_t)>& work);

}  // namespace mw
