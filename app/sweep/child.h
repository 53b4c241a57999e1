// The process of one cell: started, limited, waited for, and what became of it in a sentence.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace mw {

struct ChildOptions {
  std::vector<std::string> arguments;  // of this program
  std::string output;                  // file for what it says
  std::vector<std::string> variables;  // "NAME=value", in place of this process' of that name
  std::int64_t memory = 0;             // bytes that it may allocate; 0: no limit
  int lock = -1;                       // a file that stays open in it
};

// Starts this program again with these arguments, in a process group of its own, so that Ctrl-C is
// this process' to handle; it is killed when this process ends, however. Throws Error (run).
pid_t start_child(const ChildOptions& options);

// Bytes that the limit above would count of this process, before it has done anything much.
std::int64_t allocated_here();

// Whether it has ended; then `status` is as waitpid has it.
bool child_ended(pid_t process, int& status);

// How often the kernel has killed for want of memory in this process' control group, or on the
// machine where no group is to be seen; -1: nobody says.
std::int64_t kills_for_memory();

// Why a process that left no result ended so: "crashed: SIGSEGV (…)", "out of memory: …". `output`:
// its file, whose last words are told too. `kills`: of memory, while it ran.
std::string reason_of_end(int status, const std::string& output, bool killed_for_memory);

}  // namespace mw
